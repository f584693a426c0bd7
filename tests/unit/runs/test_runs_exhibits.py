"""Exhibits: what a study says is what the report reads, and what cannot be shown is refused."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from vitadel.analyze import Parts
from vitadel.core.errors import UsageError
from vitadel.report import Findings, exhibits, read_study
from vitadel.runs.exhibits import Bar, Bars, Heat, Line, Lines, Matrix, Picture, Pictures, Scale, Table, findings


def read_again(folder: Path, *shown: Lines | Heat | Pictures | Bars | Table) -> tuple[exhibits.Exhibit, ...]:
    Parts(folder / "study").close(findings("made-up", "Title", "Summary.", shown, {"n": 3}))
    found = read_study(folder)
    assert isinstance(found, Findings)
    assert (found.study, found.title, found.summary) == ("made-up", "Title", "Summary.")
    return found.exhibits


def test_lines_and_bars_keep_their_numbers_and_gaps(tmp_path: Path) -> None:
    third = 1 / 3
    line = Line("a", [0, 1, 2], [third, math.nan, None], [0.0, 0.1, 0.2], [1.0, math.inf, 2.0], dashed=True, color=4)
    bar = Bar("b", [third, None])
    lines, bars = read_again(
        tmp_path,
        Lines("L", "how", [line], "x", "y", log_x=True, y_range=(0, 1), references=[("chance", 0.1)]),
        Bars("B", "why", ["g", "h"], [bar], "z"),
    )
    assert isinstance(lines, exhibits.Lines)
    assert isinstance(bars, exhibits.Bars)
    (read,) = lines.lines
    assert read.y[0] == third
    assert np.isnan(read.y[1:]).all()
    assert np.isnan(read.high[1])
    assert (read.low.tolist(), read.dashed, read.color) == ([0.0, 0.1, 0.2], True, 4)
    assert (lines.log_x, lines.log_y, lines.y_range, lines.references) == (True, False, (0, 1), (("chance", 0.1),))
    assert (lines.title, lines.caption, lines.x_label, lines.y_label) == ("L", "how", "x", "y")
    assert bars.groups == ("g", "h")
    assert bars.bars[0].values[0] == third
    assert len(bars.bars[0].low) == 0
    assert bars.y_range is None


def test_heat_and_tables(tmp_path: Path) -> None:
    heat, table = read_again(
        tmp_path,
        Heat("H", "", [Matrix("m", [[1, 2.5], [math.nan, 4]])], "v", rows=["r", "s"], columns=["c", "d"], center=0),
        Table("T", "", ["who", "n", "p"], [["a", 3, 0.12345], ["b", None, 1.0]], digits=2),
    )
    assert isinstance(heat, exhibits.Heat)
    assert isinstance(table, exhibits.Table)
    ((name, values),) = heat.matrices
    assert name == "m"
    np.testing.assert_array_equal(values, [[1, 2.5], [np.nan, 4]])
    assert (heat.center, heat.low, heat.digits, heat.rows) == (0, None, None, ("r", "s"))
    assert table.rows == (("a", "3", "0.12"), ("b", "\N{EN DASH}", "1.00"))
    assert table.numeric == (False, True, True)


def test_pictures_keep_every_byte(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (3, 5, 3), dtype=np.uint8)
    overlay = rng.random((2, 4), dtype=np.float32)
    image = torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1).expand(3, 2, 2)
    cells: list[list[Picture | None]] = [
        [Picture(pixels, overlay, "note"), None],
        [Picture(None, overlay), Picture.of(image)],
    ]
    (read,) = read_again(tmp_path, Pictures("P", "", cells, columns=["a", "b"], scale=Scale.SEQUENTIAL, high=2.0))
    assert isinstance(read, exhibits.Pictures)
    (first, nothing), (bare, solid) = read.cells
    assert nothing is None
    assert first is not None
    assert bare is not None
    assert solid is not None
    assert first.note == "note"
    np.testing.assert_array_equal(first.pixels, pixels)
    np.testing.assert_array_equal(first.overlay, overlay)
    assert bare.pixels is None
    np.testing.assert_array_equal(solid.pixels, np.broadcast_to([0, 128, 255], (2, 2, 3)))
    assert (read.diverging, read.low, read.high) == (False, 0.0, 2.0)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Line("a", [0, 1], [1]), "Line 'a' wants 2 y, got 1"),
        (lambda: Line("a", [0, 1], [1, 2], low=[1]), "wants 2 low, got 1"),
        (lambda: Heat("", "", [Matrix("m", [[1, 2], [3]])], "v"), "Matrix 'm' wants 2 row, got 1"),
        (lambda: Heat("", "", [Matrix("m", [[1]])], "v", rows=["a", "b"]), "Matrix 'm' wants 2 rows, got 1"),
        (lambda: Bars("", "", ["g"], [Bar("b", [1, 2])], "y"), "Bar 'b' wants 1 values, got 2"),
        (lambda: Table("T", "", ["a"], [[1, 2]]), "Table 'T' wants 1 row, got 2"),
        (lambda: Pictures("", "", [[None]], columns=["a", "b"]), "Pictures wants 2 columns, got 1"),
        (lambda: Picture(np.zeros((3, 4, 4), np.float32)), r"got float32 of \[3, 4, 4\]. Picture.of takes"),
        (lambda: Picture(None), "neither pixels nor a map"),
        (lambda: Picture(None, np.zeros(4, np.float32)), r"is a map \[h, w\], got \[4\]"),
    ],
)
def test_what_cannot_be_shown_is_refused_where_it_is_made(make: Callable[[], object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        make()
