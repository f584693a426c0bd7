"""The tables that a sweep prints, cell by cell."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from vitadel.api.sweep_result import SweepResult
from vitadel.core.stats import Accuracy, accuracy_of
from vitadel.runs.schema import Measure
from vitadel.runs.sweep_schema import (
    BestCombinations,
    ColumnRecord,
    CombinationRecord,
    HoldoutScores,
    PublishedScores,
    PublishedTable,
    SweepRecord,
    TestScores,
)

CLEAN, ROBUST = accuracy_of([1] * 30 + [0] * 10), accuracy_of([1] * 10 + [0] * 30)


def share(accuracy: Accuracy) -> Measure:
    return Measure("share", accuracy.accuracy, accuracy.low, accuracy.high, accuracy.n, "accuracy")


def row(name: str, **more: Any) -> CombinationRecord:
    scores = {"holdout": HoldoutScores(5, 0.7, 0.254), "test": TestScores("quick", 40, CLEAN, ROBUST)}
    return CombinationRecord(name, {"plan.epochs": name}, **{"state": "done", **scores, **more})


FAILED = row("two", state="failed", reason="no memory", holdout=None, test=None)
COLUMNS = (
    ColumnRecord("clean", "quick", share(CLEAN), 70.0, 5.0),
    ColumnRecord("PGD-20", "quick", share(ROBUST)),
    ColumnRecord("mCE", "corruptions", Measure("mCE", 80.06, None, None, 40, "mCE"), 81.0, -0.9),
)
TABLE = SweepRecord("digits", ("plan.epochs",), "quick", "linf:0.1", None, None, (row("one"), FAILED))


def printed(table: SweepRecord) -> SweepResult:
    return SweepResult(Path("run"), table)


def test_a_row_has_the_scores_with_intervals_and_the_best_is_starred() -> None:
    best = BestCombinations("test.robust", ("one",))
    (table,) = printed(replace(TABLE, best=best)).tables()
    assert list(table.columns) == ["epochs", "hold-out clean %", "hold-out robust %", "test clean %", "test robust %"]
    intervals = [f"({100 * one.low:.1f}-{100 * one.high:.1f})" for one in (CLEAN, ROBUST)]
    assert list(map(list, table.rows)) == [
        ["one", "70.0", "25.4", f"75.0 {intervals[0]}", f"25.0* {intervals[1]}"],
        ["two", "-", "-", "-", "-"],
    ]
    assert list(table.notes) == ["* best test robust", "two failed: no memory"]
    result = printed(replace(TABLE, best=replace(best, measure="holdout.robust")))
    (table,) = result.tables()
    assert list(table.rows[0])[1:4] == ["70.0", "25.4*", f"75.0 {intervals[0]}"]
    assert table.notes[0] == "* best hold-out robust"
    assert (result.combinations, result.failures) == (2, {"two": "no memory"})
    assert result.to_dict()["run"] == "run"


def test_two_numbers_per_row_need_no_second_table() -> None:
    assert len(printed(replace(TABLE, rows=(row("one", columns=COLUMNS[:2]),))).tables()) == 1
    first, second = printed(replace(TABLE, rows=(row("one", columns=COLUMNS),), left_out=("AA: too long",))).tables()
    assert list(first.rows[0]) == ["one", "70.0", "25.4", "75.0", "25.0"]  # intervals are in the second table
    assert list(second.columns) == ["epochs", "number", "ours", "95% interval"]
    low, high = (f"{100 * end:.1f}%" for end in (CLEAN.low, CLEAN.high))
    assert [list(cells) for cells in second.rows][::2] == [
        ["one", "clean", "75.0%", f"{low}-{high}"],
        ["one", "mCE", "80.1", "-"],
    ]
    assert list(second.notes) == ["AA: too long"]


def test_numbers_are_beside_those_of_the_paper() -> None:
    source = PublishedTable("Table 1", "PGD-20", "Of one run.")
    done = row("one", columns=COLUMNS, published=PublishedScores(70.0, None))
    first, second = printed(replace(TABLE, published=source, rows=(done,))).tables()
    assert not [name for name in first.columns if "published" in name]
    assert list(first.notes) == ["published: Table 1; robust under PGD-20. Of one run."]
    assert list(second.columns)[-2:] == ["published", "difference"]
    assert [list(cells)[-2:] for cells in second.rows] == [["70.00%", "+5.0"], ["-", "-"], ["81.00", "-0.9"]]
    assert list(second.notes) == []
    # without numbers of its own, the paper's are in the first table
    (only,) = printed(replace(TABLE, published=source, rows=(replace(done, columns=()),))).tables()
    assert (only.columns[-1], only.rows[0][-1]) == ("published clean %", "70.00")


def test_differences_at_another_scale_are_marked() -> None:
    source = PublishedTable("Table 1", "PGD-20", "")
    done = row("one", columns=COLUMNS, scale=("tiny, 2 epochs", "no EMA"), label="tiny, 2 epochs")
    first, second = printed(replace(TABLE, published=source, rows=(done, FAILED))).tables()
    assert list(first.columns)[:2] == ["epochs", "scale"]
    assert [list(cells)[:2] for cells in first.rows] == [["one", "tiny, 2 epochs"], ["two", ""]]
    assert [cells[-1] for cells in second.rows] == ["+5.0 ≠", "-", "-0.9 ≠"]
    assert list(second.notes) == ["≠ not the paper's scale: the column `scale`; no EMA"]
