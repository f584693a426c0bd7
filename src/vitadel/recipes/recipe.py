"""A run, written down before it happens."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from vitadel.attacks import Attack
from vitadel.errors import UsageError
from vitadel.models import Option, Tuning
from vitadel.objectives import Objective
from vitadel.threat import Threat
from vitadel.train import Plan


class Normalise(enum.Enum):
    """Where a model's normalisation comes from."""

    MODEL = "the architecture's own"
    DATA = "the data set's mean and deviation"
    NONE = "none: raw pixels"
    HALF = "0.5 and 0.5 in every channel: pixels in [-1, 1]"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The architecture to train, and from which weights; `start` is anything `models.load` takes.

    With `tuning` that network is frozen, with its head as it is, and what is trained are adapters and heads beside it.
    """

    start: str
    image_size: int
    patch_size: int | None = None
    normalise: Normalise = Normalise.MODEL
    options: Mapping[str, Option] = field(default_factory=dict)
    tuning: Tuning | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """What chooses the checkpoint: accuracy on the hold-out, under an attack if there is one.

    With a `clean_share` it is that share of clean accuracy and the rest of accuracy under attack: robust accuracy alone
    chooses weights that have not learnt clean images yet, where a model overfits its attack.
    `split` says "test" only to repeat a published run that selected on its test images, and the manifest records it.
    """

    attack: Attack | None = None
    threat: Threat | None = None
    images: int = 1000
    split: str = "holdout"
    clean_share: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.clean_share <= 1:
            raise UsageError(f"selection.clean_share must be from 0 to 1, got {self.clean_share}.")


@dataclass(frozen=True, slots=True)
class SyntheticChoice:
    """A folder made by `vitadel data convert`, and the share of every batch that comes from it."""

    folder: str = "data/synthetic"
    share: float = 0.8


@dataclass(frozen=True, slots=True)
class Recipe:
    """Model, data, objective and plan; `sources` says for each value where it comes from.

    `preprocess` is written as on the command line. `expect` holds measured results, and stays empty until a run on
    record fills it.
    """

    name: str
    about: str
    model: ModelChoice
    data: str
    preprocess: str
    objective: Objective
    plan: Plan
    selection: Selection
    synthetic: SyntheticChoice | None = None
    seed: int = 0
    sources: Mapping[str, str] = field(default_factory=dict)
    expect: Mapping[str, str] = field(default_factory=dict)
