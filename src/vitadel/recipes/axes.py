"""The axes of a sweep, and their values."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

from vitadel.core.errors import UsageError, short_repr, unknown_name_error
from vitadel.core.settings import split_assignment
from vitadel.recipes.augmentation_sets import AUGMENTATION_SETS
from vitadel.recipes.columns import Column
from vitadel.recipes.overrides import override
from vitadel.recipes.recipe import Recipe
from vitadel.train import Mixing, PILAugment

# the base of the sixteen sets: Debenedetti 2022, section 4.1.6
_JITTER = 0.4
_EXAMPLE = "path=value,value such as plan.epochs=10,20"


def _augmented(recipe: Recipe, name: str) -> Recipe:
    """One of Debenedetti's sixteen sets, on top of the recipe's own flips, crops and color jitter."""
    if name not in AUGMENTATION_SETS:
        raise unknown_name_error("set of augmentations", name, AUGMENTATION_SETS)
    chosen = AUGMENTATION_SETS[name]
    mixing = Mixing(mixup=chosen.mixup, cutmix=chosen.cutmix) if chosen.mixup or chosen.cutmix else None
    # timm leaves the jitter out where there is RandAugment, and the published runs used timm
    pil = recipe.plan.pil_augment or PILAugment(resized_crop=False)
    jitter = 0.0 if chosen.rand_augment else pil.color_jitter or _JITTER
    pil = replace(pil, rand_augment=chosen.rand_augment, erase=chosen.erase, color_jitter=jitter)
    return replace(recipe, plan=replace(recipe.plan, pil_augment=pil, mixing=mixing))


def _eps_warmed_up(recipe: Recipe, epochs: str) -> Recipe:
    """Convert a paper's number of warm-up epochs of the radius to the share of training that recipes use."""
    return override(recipe, [f"objective.eps_warmup={epochs}/{recipe.plan.total_epochs}"])


# axes with their own names: the setting they stand for, or the change that a value makes
AXES: dict[str, str | Callable[[Recipe, str], Recipe]] = {
    "architecture": "model.start",
    "augmentation": _augmented,
    "beta": "objective.beta",
    "eps-warmup": "objective.eps_warmup",
    "eps-warmup-epochs": _eps_warmed_up,
    "lambda": "objective.weight",
    "mix": "synthetic.share",
    "smoothing": "objective.smoothing",
    "weight-decay": "plan.optimizer.weight_decay",
}


@dataclass(frozen=True, slots=True)
class Value:
    """One value of an axis.

    Args:
        label: Its name in the table.
        settings: The settings that it makes.
        change: What it changes in the recipe beyond settings.
        recipe: The recipe that the settings of the sweep and of this value change, in place of that of the sweep.
        model: A model that is evaluated in place of a trained one.
        head: The head that is evaluated, of a model with adapters.
        columns: What the row is evaluated with, in place of the columns of the sweep.
    """

    label: str
    settings: tuple[str, ...] = ()
    change: Callable[[Recipe], Recipe] | None = None
    recipe: Callable[[], Recipe] | None = None
    model: str = ""
    head: str = ""
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """What a sweep varies, and its values."""

    name: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise UsageError(f"the axis {self.name!r} has no values. Write {_EXAMPLE}.")
        if twice := [label for label, times in Counter(self.labels).items() if times > 1]:
            raise UsageError(
                f"the axis {self.name!r} has two values labeled {short_repr(twice[0])}, which would share a row. "
                "Leave one out, or label it otherwise."
            )

    @classmethod
    def read(cls, text: str) -> "Axis":
        """Parse an axis such as `weight-decay=0.05,0.5` or `plan.optimizer.weight_decay=0.05,0.5`."""
        name, listed = split_assignment(text, "the axis", _EXAMPLE)
        labels = listed.split(",")
        if not all(labels):
            raise UsageError(f"cannot read the axis {text!r}. Write {_EXAMPLE}.")
        if "." not in name and name not in AXES and name not in {f.name for f in fields(Recipe)}:
            raise unknown_name_error("axis", name, AXES)
        return cls.of(name, labels)

    @classmethod
    def of(cls, name: str, labels: Sequence[str]) -> "Axis":
        """A named axis, or the setting of that path, over values written as text."""
        meaning = AXES.get(name, name)
        if isinstance(meaning, str):
            return cls(name, tuple(Value(label, (f"{meaning}={label}",)) for label in labels))
        return cls(name, tuple(Value(label, change=partial(_changed, meaning, label)) for label in labels))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(value.label for value in self.values)

    @property
    def makes_models(self) -> bool:
        """Whether its values are of different models, rather than different evaluations of one."""
        return any(value.settings or value.change or value.recipe or value.model for value in self.values) or not all(
            value.head or value.columns for value in self.values
        )


def _changed(meaning: Callable[[Recipe, str], Recipe], label: str, recipe: Recipe) -> Recipe:
    return meaning(recipe, label)
