"""A recipe: everything that defines a training."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from vitadel.attacks import Attack
from vitadel.core.errors import unknown_name_error
from vitadel.core.numeric import Count, Range, Seed, Side, check_ranges
from vitadel.models import AdapterConfig, Option
from vitadel.objectives import Objective
from vitadel.threats import Threat
from vitadel.train import TrainingConfig

_SPLITS = ("holdout", "test", "train", "none")


class Normalize(enum.Enum):
    """Which normalization a model has."""

    MODEL = "the architecture's own"
    DATA = "the data set's mean and deviation"
    NONE = "none: raw pixels"
    HALF = "0.5 and 0.5 in every channel: pixels in [-1, 1]"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The model to train.

    Args:
        start: Architecture and weights: anything that `vitadel.load_model` takes.
        image_size: The side of its images.
        patch_size: The side of its patches; with none that of the architecture.
        normalize: Which normalization it has.
        options: Options of its architecture.
        tuning: Adapters and heads added to it; they alone are trained, and the network itself is frozen.
    """

    former_names: ClassVar[dict[str, str]] = {"normalise": "normalize"}

    start: str
    image_size: Side
    patch_size: Side | None = None
    normalize: Normalize = Normalize.MODEL
    options: Mapping[str, Option] = field(default_factory=dict)
    tuning: AdapterConfig | None = None

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True)
class Selection:
    """How the best checkpoint is selected.

    Args:
        attack: Selects by robust accuracy under this attack; without one, by clean accuracy.
        threat: Its threat model.
        images: How many images are evaluated.
        split: `holdout`, which is taken from the training images. With `none` all of them are trained on, nothing is
            evaluated and the last weights are kept. `test` only to repeat a published run that selected on its test
            images; it and `train` hold nothing out either.
        clean_share: The weight of clean accuracy in the score. Robust accuracy alone can select weights that have not
            learned clean images yet, where a model overfits its attack.

    Raises:
        UsageError: If a value is out of its range, or there is no such split.
    """

    attack: Attack | None = None
    threat: Threat | None = None
    images: Count = 1000
    split: str = "holdout"
    clean_share: Annotated[float, Range(ge=0, le=1)] = 0.0

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.split not in _SPLITS:
            raise unknown_name_error("selection.split", self.split, _SPLITS)

    @property
    def holds_out(self) -> bool:
        """Whether a part of the training images is held out of training."""
        return self.split == "holdout"


@dataclass(frozen=True, slots=True)
class SyntheticConfig:
    """A folder made by `vitadel data convert`, and the share of every batch that comes from it.

    Args:
        folder: The folder of the shards.
        share: The share of synthetic images in every batch.
    """

    folder: str = "data/synthetic"
    share: Annotated[float, Range(ge=0, le=1)] = 0.8

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that defines a training, and for each value its source.

    Args:
        name: As `vitadel train` takes it.
        about: What it is, in a few words.
        model: The model and the weights it starts from.
        data: The data set, as `--data` takes it.
        preprocess: How images are brought to one size, as `--preprocess` takes it.
        objective: What is minimized.
        plan: Schedule, optimizer, augmentation and precision.
        selection: How the best checkpoint is selected.
        synthetic: Generated images in every batch.
        seed: Everything random depends on it.
        sources: Where values come from, by path; "*" for all others.
        expect: Measured results; empty until one has been recorded.

    Raises:
        UsageError: If a value is out of its range.

    Example:
        >>> recipe = RECIPES["digits-adversarial"]()
        >>> recipe.objective.attack.steps
        3
        >>> quick = replace(recipe, plan=replace(recipe.plan, epochs=1, warmup_epochs=0.0))
        >>> model = vd.train(quick, "runs/quick", data="digits[:64]", progress=False)
    """

    name: str
    about: str
    model: ModelConfig
    data: str
    preprocess: str
    objective: Objective
    plan: TrainingConfig
    selection: Selection
    synthetic: SyntheticConfig | None = None
    seed: Seed = 0
    sources: Mapping[str, str] = field(default_factory=dict)
    expect: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_ranges(self)
