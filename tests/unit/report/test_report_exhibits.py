"""Exhibits on the page and as files."""

import html
import re
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitadel import runs
from vitadel.core.errors import UsageError
from vitadel.core.files import read_json, write_json
from vitadel.report import write_figures, write_report
from vitadel.report.figures import style
from vitadel.report.figures.exhibits import paint, with_common_range
from vitadel.runs.exhibits import (
    Bar,
    Bars,
    Heatmap,
    Histogram,
    Histograms,
    Line,
    Lines,
    Matrix,
    Picture,
    Pictures,
    Table,
)

MARKUP = "<script>alert(1)</script>"
LINE = Line(MARKUP, [0, 1], [0.25, 0.5])
LINES = Lines(
    "By block: 1/2",
    "How the lines were made.",
    [LINE, replace(LINE, name="other", y=[1.0, None])],
    "block",
    "share",
    references=[("chance", 0.1)],
)
HEAT = Heatmap("Heat", "Of heat.", [Matrix("m", [[0, 1], [2, None]])], "CKA", center=1.0, digits=1)
CELL = Picture(np.full((4, 4), 255, np.uint8), np.eye(2, dtype=np.float32), "seen")
PICTURES = Pictures("Maps", "Of maps.", [[CELL, None]], rows=["r"], scale_label="share")
BARS = Bars("Bars", "Of bars.", ["g", "h"], [Bar("b", [1, None], [0.5, 0], [2, 0])], "y")
TABLE = Table("Numbers", "Of numbers.", ["who", "share"], [[MARKUP, 0.5], ["b", 0.25]])
HISTOGRAMS = Histograms(
    "Gaps",
    "Of gaps.",
    [Histogram("block 0", [[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]])],
    ["plain", "rescaled"],
    [0.1, 1.0, 10.0, 100.0],
    "gap",
    "share",
    log_x=True,
    references=[("fp16", 9.7), ("fp32", 87.3)],
)
EVERYTHING = (LINES, HEAT, PICTURES, BARS, TABLE, HISTOGRAMS)


def words(text: str) -> str:
    bare = re.sub(r"<svg.*?</svg>|<style.*?</style>", " ", text, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", bare)).split())


def test_one_run_shows_every_exhibit_with_its_caption(make: Any) -> None:
    run = make.study("run", "pointer", *EVERYTHING)
    page = write_report([run], make.root / "page.html")
    text, shown = page.read_text(), words(page.read_text())
    assert '<a href="#study-made-up">About made-up</a>' in text
    assert "About made-up \u25cf pointer Measured in pointer. By block: 1/2" in shown
    for title, caption in (("Heat", "Of heat."), ("Maps", "Of maps."), ("Bars", "Of bars."), ("Gaps", "Of gaps.")):
        assert f"{title} {caption}" in shown
    assert f"Numbers who share {MARKUP} 0.500 b 0.250 Of numbers." in shown
    assert MARKUP not in text
    assert text.count("<svg") == 5
    assert "studied (seed 0)" in shown
    assert "mathdefault" not in text
    assert not re.findall(r'(?:href|src)="(?!#|data:)', text)
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert write_report([run], page).read_text() == text


def test_runs_of_one_study_share_a_section(make: Any) -> None:
    runs = [
        make.study("one", "model", *EVERYTHING),
        make.study("two", "twin", replace(LINES, caption="Another way."), TABLE),
        make.study("three", "model", HEAT, study="other"),
    ]
    text = write_report(runs, make.root / "page.html").read_text()
    shown = words(text)
    assert shown.count("About made-up") == 2  # the link and the heading
    assert shown.index("About made-up \u25cf model") < shown.index("About other \u25cf model Measured in model.")
    # one model with two studies has one name; the two runs of one study are under one title
    assert "model (one)" not in shown
    assert (
        "By block: 1/2 \u25cf model \u25a0 twin \u25cf model How the lines were made. \u25a0 twin Another way." in shown
    )
    assert shown.count("Numbers \u25cf model who share") == 1
    assert "0.250 \u25a0 twin who share" in shown
    assert shown.count("Of numbers.") == 1
    # lines of both, and heat, maps, bars and histograms of the first, and the other study's heat
    assert text.count("<svg") == 7


def test_a_caption_of_some_runs_names_all_of_them(make: Any) -> None:
    captions = {"first": "One way.", "second": "Another way.", "third": "Another way."}
    runs = [make.study(name, name, replace(TABLE, caption=caption)) for name, caption in captions.items()]
    shown = words(write_report(runs, make.root / "page.html").read_text())
    assert "\u25cf first One way. \u25a0 second , \u25b2 third Another way." in shown


def test_the_same_exhibit_of_several_runs_has_one_range() -> None:
    lower = replace(LINES, lines=[Line("a", [0, 1], [-1, 0], [-2, 0], [0, 0])])
    for one in with_common_range([LINES, lower]):
        assert isinstance(one, Lines)
        assert one.y_range == pytest.approx((-2 - 0.15, 1 + 0.15))  # from the band's end, with a twentieth of margin
    for one in with_common_range([HEAT, replace(HEAT, low=-1.0)]):
        assert isinstance(one, Heatmap)
        assert (one.low, one.high) == (-1, 2)
    for one in with_common_range([replace(PICTURES, low=0.4, high=0.6), replace(PICTURES, low=0.3, high=0.7)]):
        assert isinstance(one, Pictures)
        assert (one.low, one.high) == (0.3, 0.7)
    for one in with_common_range([BARS, replace(BARS, bars=[replace(BARS.bars[0], high=[4, 0])])]):
        assert isinstance(one, Bars)
        assert one.y_range == pytest.approx((0, 4.2))
    assert with_common_range([LINES]) == [LINES]
    assert with_common_range([TABLE, TABLE]) == [TABLE, TABLE]


def test_figures_are_written_as_files(make: Any) -> None:
    run = make.study("run", "pointer", TABLE, *EVERYTHING)
    written = write_figures(run)
    names = ["02-by-block-1-2", "03-heat", "04-maps", "05-bars", "07-gaps"]
    assert [path.name for path in written] == [f"{name}{end}" for name in names for end in (".png", ".pdf")]
    bytes_ = [path.read_bytes() for path in written]
    assert all(b.startswith((b"\x89PNG", b"%PDF")) for b in bytes_)
    assert [path.read_bytes() for path in write_figures(run)] == bytes_


@pytest.fixture
def file_limit() -> Iterator[Callable[[int], None]]:
    """Sets how many bytes a file may have, as a full disk would; lifted afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write is then an error
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("suffix", [".png", ".pdf"])
def test_a_full_disk_is_reported(
    suffix: str, make: Any, monkeypatch: pytest.MonkeyPatch, file_limit: Callable[[int], None]
) -> None:
    def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
        if path.suffix == suffix:
            file_limit(100)
        runs.write_atomically(path, write)

    monkeypatch.setattr(style, "write_atomically", write_atomically)
    run = make.study("run", "pointer", LINES)
    with pytest.raises(UsageError, match=f"cannot write .*{suffix}: File too large"):
        write_figures(run)


def test_colors_of_signed_maps() -> None:
    from matplotlib.colors import Normalize

    overlay = np.array([[0.0, 0.5, 1.0, 2.0]], np.float32)
    pixels = np.full((2, 4, 3), 255, np.uint8)
    pixels[1] = 0
    cell = Picture(pixels, overlay)
    painted = paint(cell, Normalize(0, 1), "RdBu_r", shaded=True).astype(int)
    blue, white, red, beyond = painted[0]
    assert blue[2] > blue[0] + 50
    assert red[0] > red[2] + 50
    assert white.min() >= 245
    assert (beyond == red).all()
    # black under the map is darker by one factor, so no hue changes
    np.testing.assert_allclose(painted[1], 0.78 * painted[0], atol=1)
    alone = paint(Picture(None, overlay), Normalize(0, 1), "RdBu_r", shaded=True)
    np.testing.assert_array_equal(alone[0], painted[0])


def test_a_sequential_map_is_opaque_where_it_is_strong() -> None:
    from matplotlib.colors import Normalize

    cell = Picture(np.full((1, 2, 3), 100, np.uint8), np.array([[0.0, 1.0]], np.float32))
    weak, strong = paint(cell, Normalize(0, 1), "inferno", shaded=False)[0].astype(int)
    assert weak.tolist() == [100, 100, 100]
    assert strong[0] > 200


def test_patches_are_drawn_as_blocks() -> None:
    from matplotlib.colors import Normalize

    overlay = np.array([[0.0, 0.25], [0.75, 1.0]], np.float32)
    small = paint(Picture(None, overlay), Normalize(0, 1), "gray", shaded=True)
    black = paint(Picture(np.full((4, 6), 255, np.uint8), overlay), Normalize(0, 1), "gray", shaded=True)
    np.testing.assert_array_equal(black, np.kron(small, np.ones((2, 3, 1), np.uint8)))


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_numbers_that_no_axis_can_show_are_one_line_of_error(make: Any) -> None:
    run = make.study("run", "vit", Lines("Far", "A line.", [Line("a", [0, 1], [-1e308, 1e308])], "x", "y"))
    with pytest.raises(
        UsageError, match=r"the figure '.*' cannot be drawn \(\w+Error: .*\)\. Check the numbers"
    ) as error:
        write_report([run], run.parent / "report.html")
    assert "\n" not in str(error.value)


def damaged(run: Path, number: int, **fields: object) -> None:
    """Change fields of one exhibit of the result."""
    path = run / "study" / "result.json"
    result: dict[str, Any] = read_json(path)
    result["exhibits"][number] |= fields
    write_json(path, result)


@pytest.mark.parametrize(
    ("number", "fields", "message"),
    [
        (
            0,
            {"kind": "pie"},
            r"unknown kind of exhibit 'pie'\. .*Known: bars, heat, histograms, lines, pictures, table",
        ),
        (0, {"version": 2}, r"exhibits\[0\] has version 2, and this Vitadel reads up to 1\. Update it"),
        (0, {"x_label": 3}, r"x_label should be text, got '?3.* Run the study again"),
        (0, {"lines": [{"name": "a", "x": [0, 1], "y": [1]}]}, "needs 2 y, got 1"),
        (0, {"lines": [{"name": "a", "x": [0, 1], "y": [1, "x"]}]}, r"y\[1\] should be a number, got 'x'"),
        (1, {"rows": ["a"]}, "needs 1 rows, got 2"),
        (1, {"matrices": []}, "has no matrices"),
        (2, {"scale": "loud"}, "scale should be one of diverging, sequential, got 'loud'"),
        (2, {"columns": ["a"]}, "needs 1 columns, got 2"),
        (2, {"cells": []}, "has no rows"),
        (2, {"cells": [[{"pixels": {"dtype": "uint8", "shape": [9], "base64": "AA=="}}]]}, "is not an array of"),
        (2, {"cells": [[{"pixels": None, "overlay": None, "note": ""}]]}, "neither pixels nor a map"),
        (3, {"groups": ["g"]}, "needs 1 values, got 2"),
        (4, {"columns": ["one"]}, "Table 'Numbers' needs 1 row, got 2"),
        (4, {"version": None}, "has version None"),
        (5, {"edges": [1]}, "needs 0 shares, got 3"),
    ],
)
def test_damaged_results_are_refused(make: Any, number: int, fields: dict[str, Any], message: str) -> None:
    run = make.study("run", "pointer", *EVERYTHING)
    damaged(run, number, **fields)
    for read in (lambda: write_figures(run), lambda: write_report([run], make.root / "page.html")):
        with pytest.raises(UsageError, match=message) as raised:
            read()
        assert "result.json" in str(raised.value)


def test_a_study_without_exhibits_is_refused_with_advice(make: Any) -> None:
    old, new = make.study("old", "pointer"), make.study("new", "pointer", TABLE)
    write_json(old / "study" / "result.json", {"study": "masking", "verdict": {"answer": "masked"}})
    shown = words(write_report([old, new], make.root / "page.html").read_text())
    assert "result.json is of an earlier version, whose results had no exhibits. Run the study again" in shown
    assert "Of numbers." in shown
    assert write_figures(old) == []


def test_a_study_of_an_earlier_version_is_reported(make: Any) -> None:
    run = make.study("run", "pointer", TABLE)
    manifest = read_json(run / "manifest.json")
    write_json(run / "manifest.json", {**manifest, "kind": "analyse"})
    assert "Of numbers." in words(write_report([run], make.root / "page.html").read_text())
    assert runs.Run.open(run).manifest.kind == "analyze"


def test_an_unfinished_study_is_refused(make: Any) -> None:
    run = make.study("run", "pointer", TABLE)
    (run / "study" / "result.json").unlink()
    assert write_figures(run) == []
    with pytest.raises(UsageError, match="nothing to report"):
        write_report([run], make.root / "page.html")
