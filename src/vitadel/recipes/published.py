"""The published tables of papers: rows, columns and numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vitadel.recipes.axes import Axis
from vitadel.recipes.columns import Column

# a column whose numbers come from the training log instead of an evaluation
GPU_HOURS = "GPU hours"


@dataclass(frozen=True, slots=True)
class PublishedAccuracy:
    """Accuracies in percent as a paper prints them.

    Args:
        clean: Clean accuracy.
        robust: Accuracy under the attack of the table, which is its column `robust`.
        standard_clean: Clean accuracy without adversarial training.
        others: The numbers of further columns, by their names.
    """

    clean: float | None
    robust: float | None
    standard_clean: float | None = None
    others: Mapping[str, float] = field(default_factory=dict)

    def of(self, column: str) -> float | None:
        """The number of a column."""
        return {"clean": self.clean, "robust": self.robust, **self.others}.get(column)


@dataclass(frozen=True, slots=True)
class PublishedSweep:
    """A table of a paper as a sweep.

    Args:
        source: The paper and the number of the table.
        about: Description in one line.
        recipe: The recipe that is varied.
        axes: The axes that are varied.
        threat: The threat model of the robust accuracies.
        attack: The attack of the robust accuracies.
        rows: The accuracies, by the labels of the axes.
        settings: Settings in which all runs of the table differ from the recipe.
        note: Other differences.
        columns: The paper's evaluations.
        test_images: The number of images that the paper evaluates.
        studies: Studies of every model, as text for `vitadel analyze`.
    """

    source: str
    about: str
    recipe: str
    axes: tuple[Axis, ...]
    threat: str
    attack: str
    rows: Mapping[tuple[str, ...], PublishedAccuracy]
    settings: tuple[str, ...] = ()
    note: str = ""
    columns: tuple[Column, ...] = ()
    test_images: int | None = None
    studies: tuple[str, ...] = ()
