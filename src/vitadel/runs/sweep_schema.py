"""The record of a sweep, `table.json`: one row per combination, with our numbers beside the published ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitadel.core.errors import UsageError, short_repr
from vitadel.core.files import read_json
from vitadel.core.stats import Accuracy
from vitadel.runs.schema import Measure
from vitadel.runs.typed_json import from_json, to_json

_REMEDY = "Delete it and run the same command again."


@dataclass(frozen=True, slots=True)
class HoldoutScores:
    """Accuracies of the selected checkpoint on the hold-out, and its step."""

    step: int
    clean: float | None
    robust: float | None


@dataclass(frozen=True, slots=True)
class TestScores:
    """Accuracies on the test images: the evaluation's name, its numbers, and the codes of its flags."""

    name: str
    n: int
    clean: Accuracy | None
    robust: Accuracy | None
    flags: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PublishedScores:
    """Accuracies in percent as a paper prints them."""

    clean: float | None
    robust: float | None


@dataclass(frozen=True, slots=True)
class ColumnRecord:
    """One number of a row, and the paper's.

    Args:
        column: The heading.
        evaluation: The evaluation that gave it, a folder in `test/eval`.
        measure: Our number with its interval.
        published: The paper's, in percent if ours is a share.
        difference: Ours minus the paper's, in the paper's unit.
    """

    column: str
    evaluation: str
    measure: Measure
    published: float | None = None
    difference: float | None = None


@dataclass(frozen=True, slots=True)
class CombinationRecord:
    """One row of a sweep's table.

    Args:
        name: Its folder.
        values: The value of each axis.
        state: `done` or `failed`.
        reason: Why it failed.
        holdout: Its scores on the hold-out.
        test: Its scores on the test images.
        published: The paper's scores, if the sweep reproduces a table.
        columns: All its numbers on test images, clean accuracy first.
        folder: Its folder if several rows are evaluations of one model; otherwise empty, and the folder is its name.
        scale: Differences from the paper's run, because of which the numbers are not comparable.
        label: The reduced scale: model, data and epochs.
    """

    name: str
    values: Mapping[str, str]
    state: str
    reason: str | None = None
    holdout: HoldoutScores | None = None
    test: TestScores | None = None
    published: PublishedScores | None = None
    columns: Sequence[ColumnRecord] = field(default=(), metadata={"omit": True})
    folder: str = field(default="", metadata={"omit": True})
    scale: Sequence[str] = field(default=(), metadata={"omit": True})
    label: str = field(default="", metadata={"omit": True})


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """The published table that a sweep reproduces: its source, the attack of its robust accuracies, and a note."""

    source: str
    attack: str
    note: str


@dataclass(frozen=True, slots=True)
class BestCombinations:
    """The names of the best combinations by a measure such as `test.robust`."""

    measure: str
    rows: Sequence[str]


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """The table of a sweep, finished or not.

    Args:
        recipe: The recipe that is trained.
        axes: The axes that are varied, the first changing slowest.
        suite: The suites of all columns, comma-separated.
        threat: The threat model.
        published: The published table that it reproduces.
        best: The best combinations so far.
        rows: One row for each combination tried.
        left_out: Columns that were left out, with reasons.
    """

    recipe: str
    axes: Sequence[str]
    suite: str | None
    threat: str | None
    published: PublishedTable | None
    best: BestCombinations | None
    rows: Sequence[CombinationRecord]
    left_out: Sequence[str] = field(default=(), metadata={"omit": True})

    def __post_init__(self) -> None:
        for row in self.rows:
            if missing := [axis for axis in self.axes if axis not in row.values]:
                raise UsageError(
                    f"the row {short_repr(row.name)} has no value of the axis {short_repr(missing[0])}. {_REMEDY}"
                )

    def to_json(self) -> dict[str, object]:
        """The record as plain JSON."""
        content: dict[str, object] = to_json(self)
        return content


def read_sweep(path: Path) -> SweepRecord:
    """The record in a `table.json`."""
    return from_json(SweepRecord, read_json(path), path, _REMEDY)
