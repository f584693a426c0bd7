"""What a table of a paper is: rows, columns and the numbers that it prints."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vitadel.recipes.axes import Axis
from vitadel.recipes.columns import Column

# the column of a table that no evaluation fills, but the log of the training
GPU_HOURS = "GPU hours"


@dataclass(frozen=True, slots=True)
class PublishedAccuracy:
    """Accuracies in percent as a paper prints them.

    Args:
        clean: On the images as they are.
        robust: Under the attack of the table, which is its column `robust`.
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
        about: What is varied.
        recipe: The recipe that it varies.
        axes: What is varied in it.
        threat: The threat model of the robust accuracies.
        attack: The attack of the robust accuracies.
        rows: The accuracies, by the labels of the axes.
        settings: Where all runs of the table differ from the recipe.
        note: What else differs.
        columns: What the paper evaluates with.
        test_images: How many images it evaluates.
        studies: What it shows of every model, as `vitadel analyze` takes it.
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
