"""A run, written down before it happens."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from vitadel.attacks import Attack
from vitadel.core.errors import unknown
from vitadel.core.numeric import Count, Range, Seed, Side, check_ranges
from vitadel.models import Option, Tuning
from vitadel.objectives import Objective
from vitadel.threats import Threat
from vitadel.train import TrainingConfig

_SPLITS = ("holdout", "test", "train")


class Normalize(enum.Enum):
    """Where a model's normalization comes from."""

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
    image_size: Side
    patch_size: Side | None = None
    normalize: Normalize = Normalize.MODEL
    options: Mapping[str, Option] = field(default_factory=dict)
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True)
class Selection:
    """What chooses the checkpoint: accuracy on the hold-out, under an attack if there is one.

    With a `clean_share` it is that share of clean accuracy and the rest of accuracy under attack: robust accuracy alone
    chooses weights that have not learned clean images yet, where a model overfits its attack.
    `split` says "test" only to repeat a published run that selected on its test images, and the manifest records it.
    """

    attack: Attack | None = None
    threat: Threat | None = None
    images: Count = 1000
    split: str = "holdout"
    clean_share: Annotated[float, Range(ge=0, le=1)] = 0.0

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.split not in _SPLITS:
            raise unknown("selection.split", self.split, _SPLITS)


@dataclass(frozen=True, slots=True)
class SyntheticChoice:
    """A folder made by `vitadel data convert`, and the share of every batch that comes from it."""

    folder: str = "data/synthetic"
    share: Annotated[float, Range(ge=0, le=1)] = 0.8

    def __post_init__(self) -> None:
        check_ranges(self)


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
    plan: TrainingConfig
    selection: Selection
    synthetic: SyntheticChoice | None = None
    seed: Seed = 0
    sources: Mapping[str, str] = field(default_factory=dict)
    expect: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_ranges(self)
