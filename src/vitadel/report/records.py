"""What a report knows about its runs, as plain frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from vitadel.report.exhibits import Findings
    from vitadel.report.masking import Masking
    from vitadel.report.surveys import Survey


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A share of images with its 95% interval, all in [0, 1]."""

    correct: int
    n: int
    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def percent(self) -> str:
        return f"{100 * self.value:.1f}"

    @property
    def interval(self) -> str:
        return f"{100 * self.low:.1f}\N{EN DASH}{100 * self.high:.1f}"


@dataclass(frozen=True, slots=True)
class Threat:
    """Where images were allowed to go; `eps` is None where no single number says it."""

    norm: str
    eps: float | None
    text: str


@dataclass(frozen=True, slots=True)
class AttackCost:
    """What one attack of a suite did and what it cost; None is what the summary did not say.

    `after` is the robust accuracy that this attack and those before it left. `rejected` counts successes of a search in
    low precision that the model in float32 did not share.
    """

    name: str
    tried: int | None
    fell: int | None
    forwards: int | None
    backwards: int | None
    seconds: float | None
    after: float | None = None
    rejected: int | None = None


@dataclass(frozen=True, slots=True)
class Flag:
    """A reason to doubt a number, as the evaluation wrote it down."""

    code: str
    sentence: str
    evidence: str


@dataclass(frozen=True, slots=True, eq=False)
class Gallery:
    """Some images of an evaluation, before and after; pixels [k, H, W, 3] in [0, 1]."""

    clean: NDArray[np.float32]
    adversarial: NDArray[np.float32]
    label: tuple[int, ...]
    clean_prediction: tuple[int, ...]
    prediction: tuple[int, ...]
    fell_to: tuple[str, ...]
    classes: tuple[str, ...]
    eps: float
    norm: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One finished evaluation: its summary, and of its rows what the page needs.

    `clean_right` and `right` say per image how often the model was right before and after: 0 or 1, or something between
    if it answers at random. `precision` is what the search was computed in; it is always judged in float32.
    """

    name: str
    suite: str
    threat: Threat | None
    n: int
    clean: Accuracy
    robust: Accuracy | None
    attacks: tuple[AttackCost, ...]
    flags: tuple[Flag, ...]
    fell_to: tuple[str, ...]
    size: tuple[float, ...]
    gallery: Gallery | None
    clean_right: tuple[float, ...] = ()
    right: tuple[float, ...] = ()
    precision: str = ""
    ids: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def is_expected(self) -> bool:
        """Whether the accuracies are those to be expected of a model that answers at random."""
        return any(share not in (0, 1) for share in (*self.clean_right, *self.right))


@dataclass(frozen=True, slots=True)
class Series:
    """One logged quantity over the steps of a training."""

    event: str
    name: str
    steps: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that training noticed about itself at a step."""

    step: int
    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One combination of a sweep: what it changed, and what came of it or why nothing did; hold-out scores in [0, 1].

    `published` are percentages as the paper prints them, clean and robust.
    """

    values: tuple[str, ...]
    holdout: tuple[float | None, float | None]
    test: tuple[Accuracy | None, Accuracy | None]
    published: tuple[float | None, float | None]
    failed: str
    best: bool


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep's table; `measure` says by which number the best was found, `published` whose table it repeats."""

    axes: tuple[str, ...]
    threat: str
    measure: str
    published: str
    rows: tuple[SweepRow, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """All that the page shows of one run; `label` is unique among the curves it appears with.

    `name` is what the model is called before runs of one name were told apart.
    """

    label: str
    folder: str
    manifest: Mapping[str, object]
    evaluations: tuple[Evaluation, ...]
    training: tuple[Series, ...]
    sweep: Sweep | None = None
    alarms: tuple[Alarm, ...] = ()
    masking: "Masking | None" = None
    findings: "Findings | None" = None
    surveys: "tuple[Survey, ...]" = ()
    name: str = ""

    @property
    def weights(self) -> str:
        """The hash of the weights that were measured; empty where there are none yet, as before training."""
        parts = self.manifest.get("parts")
        model = parts.get("model") if isinstance(parts, dict) else None
        return str(model.get("sha256") or "") if isinstance(model, dict) else ""


@dataclass(frozen=True, slots=True)
class Curve:
    """Accuracy against eps for one run, one norm and one suite; the first point is eps 0, the clean accuracy."""

    label: str
    norm: str
    suite: str
    points: tuple[tuple[float, Accuracy], ...]

    @property
    def swept(self) -> bool:
        """Whether more than one eps was attacked; a single one says nothing about a shape."""
        return len(self.points) > 2
