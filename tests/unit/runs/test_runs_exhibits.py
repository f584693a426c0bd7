"""Exhibits: reading returns what was written, and invalid ones are refused."""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitadel.core.errors import UsageError
from vitadel.core.files import write_json
from vitadel.runs.exhibits import (
    Bar,
    Bars,
    Exhibit,
    Heatmap,
    Histogram,
    Histograms,
    Line,
    Lines,
    Matrix,
    Picture,
    Pictures,
    Scale,
    Table,
)
from vitadel.runs.schema import StudyRecord, read_study


def read_again(folder: Path, *exhibits: Exhibit) -> Sequence[Exhibit]:
    record = StudyRecord("made-up", "Title", "Summary.", exhibits, {"n": 3})
    write_json(folder / "result.json", record.to_json())
    result = read_study(folder / "result.json")
    assert (result.study, result.title, result.summary, result.numbers) == ("made-up", "Title", "Summary.", {"n": 3})
    return result.exhibits


def test_lines_bars_and_histograms_keep_their_numbers_and_gaps(tmp_path: Path) -> None:
    third = 1 / 3
    line = Line("a", (0, 1, 2), (third, None, None), (0.0, 0.1, 0.2), (1.0, None, 2.0), dashed=True, color=4)
    shown = (
        Lines("L", "how", (line,), "x", "y", log_x=True, y_range=(0.0, 1.0), references=(("chance", 0.1),)),
        Bars("B", "why", ("g", "h"), (Bar("b", (third, None)),), "z"),
        Histograms("H", "of", (Histogram("p", ((0.5, None),)),), ("s",), (0.0, 1.0, 2.0), "x", "y", log_x=True),
    )
    assert read_again(tmp_path, *shown) == shown


def test_nonfinite_values_are_read_as_gaps(tmp_path: Path) -> None:
    (read,) = read_again(tmp_path, Lines("L", "", [Line("a", [0, 1], [math.nan, -math.inf])], "x", "y"))
    assert isinstance(read, Lines)
    assert read.lines[0].y == (None, None)


def test_heat_maps_and_tables(tmp_path: Path) -> None:
    heat = Heatmap("H", "", (Matrix("m", ((1, 2.5), (None, 4))),), "v", rows=("r", "s"), columns=("c", "d"), center=0.0)
    table = Table("T", "", ("who", "n", "p"), (("a", 3, 0.12345), ("b", None, 1.0)), digits=2)
    assert read_again(tmp_path, heat, table) == (heat, table)
    assert table.text_rows == [["a", "3", "0.12"], ["b", "\N{EN DASH}", "1.00"]]
    assert table.numeric == [False, True, True]
    assert Table("T", "", ["a"], []).numeric == [False]


def test_images_keep_every_byte(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (3, 5, 3), dtype=np.uint8)
    overlay = rng.random((2, 4), dtype=np.float32)
    image = np.broadcast_to(np.array([0.0, 0.5, 1.0]).reshape(3, 1, 1), (3, 2, 2))
    cells: list[list[Picture | None]] = [
        [Picture(pixels, overlay, "note"), None],
        [Picture(None, overlay), Picture.of(image)],
    ]
    (read,) = read_again(tmp_path, Pictures("P", "", cells, columns=["a", "b"], scale=Scale.SEQUENTIAL, high=2.0))
    assert isinstance(read, Pictures)
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
    assert (read.scale, read.low, read.high) == (Scale.SEQUENTIAL, 0.0, 2.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Line("a", [0, 1], [1]), "Line 'a' needs 2 y, got 1"),
        (lambda: Line("a", [0, 1], [1, 2], low=[1]), "needs 2 low, got 1"),
        (lambda: Heatmap("", "", [Matrix("m", [[1, 2], [3]])], "v"), "Matrix 'm' needs 2 row, got 1"),
        (lambda: Heatmap("", "", [Matrix("m", [[1]])], "v", rows=["a", "b"]), "Matrix 'm' needs 2 rows, got 1"),
        (lambda: Bars("", "", ["g"], [Bar("b", [1, 2])], "y"), "Bar 'b' needs 1 values, got 2"),
        (lambda: Table("T", "", ["a"], [[1, 2]]), "Table 'T' needs 1 row, got 2"),
        (lambda: Pictures("", "", [[None]], columns=["a", "b"]), "Pictures needs 2 columns, got 1"),
        (lambda: Pictures("", "", []), "Pictures has no rows"),
        (lambda: Heatmap("", "", [], "v"), "Heatmap has no matrices"),
        (lambda: Heatmap("", "", [Matrix("m", [])], "v"), "Matrix 'm' has no rows"),
        (lambda: Picture(np.zeros((3, 4, 4), np.float32)), r"got float32 of \[3, 4, 4\]. Write Picture.of"),
        (lambda: Picture(None), "neither pixels nor a map"),
        (lambda: Picture(None, np.zeros(4, np.float32)), r"is a map \[h, w\], got \[4\]"),
    ],
)
def test_invalid_exhibits_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize("version", [2, 0.5, "1", True, None])
def test_exhibits_of_later_versions_are_refused(tmp_path: Path, version: object) -> None:
    bars = Bars("B", "why", ["g"], [Bar("b", [0.5])], "y")
    content: Any = StudyRecord("made-up", "Title", "", [bars]).to_json()
    content["exhibits"][0]["version"] = version
    write_json(tmp_path / "result.json", content)
    with pytest.raises(
        UsageError, match=rf"has version {re.escape(repr(version))}, and this Vitadel reads up to 1\. Update it\."
    ):
        read_study(tmp_path / "result.json")
