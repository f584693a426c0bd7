"""Exhibits on the page and as files, from results written by hand: the JSON is the contract."""

import base64
import html
import re
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitadel import runs
from vitadel.core.errors import UsageError
from vitadel.core.files import write_json
from vitadel.report import Findings, exhibits, read_study, write_figures, write_report
from vitadel.report.figures import base
from vitadel.report.figures.exhibits import _painted, _stretched
from vitadel.runs import Run

HOSTILE = "<script>alert(1)</script>"


def packed(values: np.ndarray) -> dict[str, object]:
    text = base64.b64encode(values.tobytes()).decode()
    return {"dtype": str(values.dtype), "shape": list(values.shape), "base64": text}


def lines(**more: object) -> dict[str, Any]:
    line = {"name": HOSTILE, "x": [0, 1], "y": [0.25, 0.5], "low": [], "high": [], "dashed": False, "color": None}
    return {
        **{"kind": "lines", "version": 1, "title": "By block: 1/2", "caption": "How the lines were made."},
        **{"lines": [line, {**line, "name": "other", "y": [1, None]}], "x_label": "block", "y_label": "share"},
        **{"log_x": False, "log_y": False, "y_range": None, "references": [["chance", 0.1]], **more},
    }


def heat(**more: object) -> dict[str, Any]:
    return {
        **{"kind": "heat", "version": 1, "title": "Heat", "caption": "Of heat.", "value_label": "CKA"},
        **{"matrices": [{"name": "m", "values": [[0, 1], [2, None]]}], "rows": [], "columns": [], "row_label": ""},
        **{"column_label": "", "low": None, "high": None, "center": 1.0, "digits": 1, **more},
    }


def pictures(**more: object) -> dict[str, Any]:
    cell = {"pixels": packed(np.full((4, 4), 255, np.uint8)), "overlay": packed(np.eye(2, dtype=np.float32))}
    return {
        **{"kind": "pictures", "version": 1, "title": "Maps", "caption": "Of maps.", "rows": ["r"], "columns": []},
        **{"cells": [[{**cell, "note": "seen"}, None]], "scale": "diverging", "scale_label": "share"},
        **{"low": 0.0, "high": 1.0, **more},
    }


def bars(**more: object) -> dict[str, Any]:
    bar = {"name": "b", "values": [1, None], "low": [0.5, 0], "high": [2, 0]}
    return {
        **{"kind": "bars", "version": 1, "title": "Bars", "caption": "Of bars.", "groups": ["g", "h"], "bars": [bar]},
        **{"y_label": "y", "y_range": None, "references": [], **more},
    }


def table(**more: object) -> dict[str, Any]:
    return {
        **{"kind": "table", "version": 1, "title": "Numbers", "caption": "Of numbers.", "columns": ["who", "share"]},
        **{"rows": [[HOSTILE, 0.5], ["b", 0.25]], "digits": 3, **more},
    }


EVERYTHING = (lines(), heat(), pictures(), bars(), table())


def study(folder: Path, name: str, *shown: dict[str, Any], of: str = "made-up") -> Path:
    parts = {"study": {"is": "MadeUp"}, "model": {"name": name, "sha256": "ab" * 32}, "seed": 0}
    run = Run.claim(folder, "analyze", parts, device="cpu")
    told = {"study": of, "title": f"About {of}", "summary": f"Found in {name}.", "exhibits": list(shown)}
    write_json(folder / "study" / "result.json", told)
    return run.folder


def words(text: str) -> str:
    bare = re.sub(r"<svg.*?</svg>|<style.*?</style>", " ", text, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", bare)).split())


def test_one_run_shows_every_exhibit_with_its_caption(tmp_path: Path) -> None:
    page = write_report([study(tmp_path / "run", "pointer", *EVERYTHING)], tmp_path / "page.html")
    text, told = page.read_text(), words(page.read_text())
    assert '<a href="#study-made-up">About made-up</a>' in text
    assert "About made-up \u25cf pointer Found in pointer. By block: 1/2" in told
    for title, caption in (("Heat", "Of heat."), ("Maps", "Of maps."), ("Bars", "Of bars.")):
        assert f"{title} {caption}" in told
    assert f"Numbers who share {HOSTILE} 0.500 b 0.250 Of numbers." in told
    assert HOSTILE not in text
    assert text.count("<svg") == 4
    assert "studied (seed 0)" in told
    assert "mathdefault" not in text
    assert not re.findall(r'(?:href|src)="(?!#|data:)', text)
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert write_report([tmp_path / "run"], page).read_text() == text


def test_runs_of_one_study_stand_together_and_other_studies_apart(tmp_path: Path) -> None:
    runs = [
        study(tmp_path / "one", "model", *EVERYTHING),
        study(tmp_path / "two", "twin", lines(caption="Another way."), table()),
        study(tmp_path / "three", "model", heat(), of="other"),
    ]
    text = write_report(runs, tmp_path / "page.html").read_text()
    told = words(text)
    assert told.count("About made-up") == 2  # the link and the heading
    assert told.index("About made-up \u25cf model") < told.index("About other \u25cf model Found in model.")
    # one model with two studies has one name; the two runs of one study stand under one title
    assert "model (one)" not in told
    assert (
        "By block: 1/2 \u25cf model \u25a0 twin \u25cf model How the lines were made. \u25a0 twin Another way." in told
    )
    assert told.count("Numbers \u25cf model who share") == 1
    assert "0.250 \u25a0 twin who share" in told
    assert told.count("Of numbers.") == 1
    # lines of both, and heat, maps and bars of the first, and the other study's heat
    assert text.count("<svg") == 6


def test_a_caption_of_some_runs_names_all_of_them(tmp_path: Path) -> None:
    captions = {"first": "One way.", "second": "Another way.", "third": "Another way."}
    runs = [study(tmp_path / name, name, table(caption=caption)) for name, caption in captions.items()]
    told = words(write_report(runs, tmp_path / "page.html").read_text())
    assert "\u25cf first One way. \u25a0 second , \u25b2 third Another way." in told


def test_the_same_exhibit_of_several_runs_has_one_range() -> None:
    def read(*shown: dict[str, Any]) -> list[exhibits.Exhibit]:
        told = {"study": "s", "title": "t", "summary": "", "exhibits": list(shown)}
        return exhibits.alike(exhibits.findings(told).exhibits)

    lower = lines(lines=[{**lines()["lines"][0], "y": [-1, 0], "low": [-2, 0], "high": [0, 0]}])
    for one in read(lines(), lower):
        assert isinstance(one, exhibits.Lines)
        assert one.y_range == pytest.approx((-2 - 0.15, 1 + 0.15))  # from the band's end, with a twentieth of room
    for one in read(heat(), heat(low=-1.0)):
        assert isinstance(one, exhibits.Heat)
        assert (one.low, one.high) == (-1, 2)
    for one in read(pictures(low=0.4, high=0.6), pictures(low=0.3, high=0.7)):
        assert isinstance(one, exhibits.Pictures)
        assert (one.low, one.high) == (0.3, 0.7)
    for one in read(bars(), bars(bars=[{**bars()["bars"][0], "high": [4, 0]}])):
        assert isinstance(one, exhibits.Bars)
        assert one.y_range == pytest.approx((0, 4.2))
    (alone,) = read(lines())
    assert isinstance(alone, exhibits.Lines)
    assert alone.y_range is None


def test_figures_as_files(tmp_path: Path) -> None:
    run = study(tmp_path / "run", "pointer", table(), *EVERYTHING)
    written = write_figures(run)
    names = ["02-by-block-1-2", "03-heat", "04-maps", "05-bars"]
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
def test_a_figure_that_the_disk_has_no_room_for(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_limit: Callable[[int], None]
) -> None:
    def write_whole(path: Path, write: Callable[[Path], None]) -> None:
        if path.suffix == suffix:
            file_limit(100)
        runs.write_whole(path, write)

    monkeypatch.setattr(base, "write_whole", write_whole)
    run = study(tmp_path / "run", "pointer", lines())
    with pytest.raises(UsageError, match=f"cannot write .*{suffix}: File too large"):
        write_figures(run)


def test_a_map_is_blue_white_and_red_over_white_and_a_shade_over_black() -> None:
    from matplotlib.colors import Normalize

    overlay = np.array([[0.0, 0.5, 1.0, 2.0]], np.float32)
    pixels = np.full((2, 4, 3), 255, np.uint8)
    pixels[1] = 0
    cell = exhibits.Picture(pixels, overlay, "")
    painted = _painted(cell, Normalize(0, 1), "RdBu_r", shaded=True).astype(int)
    blue, white, red, beyond = painted[0]
    assert blue[2] > blue[0] + 50
    assert red[0] > red[2] + 50
    assert white.min() >= 245
    assert (beyond == red).all()
    # black under the map is darker by one factor, so no hue changes
    np.testing.assert_allclose(painted[1], 0.78 * painted[0], atol=1)
    alone = _painted(exhibits.Picture(None, overlay, ""), Normalize(0, 1), "RdBu_r", shaded=True)
    np.testing.assert_array_equal(alone[0], painted[0])


def test_a_sequential_map_covers_where_it_is_strong() -> None:
    from matplotlib.colors import Normalize

    cell = exhibits.Picture(np.full((1, 2, 3), 100, np.uint8), np.array([[0.0, 1.0]], np.float32), "")
    weak, strong = _painted(cell, Normalize(0, 1), "inferno", shaded=False)[0].astype(int)
    assert weak.tolist() == [100, 100, 100]
    assert strong[0] > 200


def test_patches_become_blocks() -> None:
    stretched = _stretched(np.array([[1, 2], [3, 4]]), 4, 6)
    np.testing.assert_array_equal(stretched, np.kron([[1, 2], [3, 4]], np.ones((2, 3), int)))


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (lines(kind="pie"), r"unknown kind of exhibit 'pie'\. .*Known: bars, heat, lines, pictures, table"),
        (lines(version=2), r"an exhibit has version 2, and this Vitadel reads up to 1\. Update it"),
        (lines(x_label=3), r"text was expected, got 3.* Delete it and run the study again"),
        (lines(lines=[{**lines()["lines"][0], "y": [1]}]), "2 numbers were expected, got 1"),
        (lines(lines=[{**lines()["lines"][0], "y": [1, "x"]}]), "a number was expected, got 'x'"),
        (heat(rows=["a"]), "a matrix of 1 rows was expected, got 2"),
        (pictures(scale="loud"), "unknown scale 'loud'"),
        (pictures(columns=["a"]), "do not fit its labels"),
        (pictures(cells=[[{"pixels": {"dtype": "uint8", "shape": [9], "base64": "AA=="}}]]), "not as the study wrote"),
        (pictures(cells=[[{"pixels": None, "overlay": None, "note": ""}]]), "neither pixels nor a map"),
        (bars(groups=["g"]), "1 numbers were expected, got 2"),
        (table(columns=["one"]), "every row of the table 'Numbers' should have 1 cells"),
        ({"kind": "table"}, r"KeyError\('version'\)"),
    ],
)
def test_damaged_results_are_refused(tmp_path: Path, broken: dict[str, Any], told: str) -> None:
    run = study(tmp_path / "run", "pointer", broken)
    with pytest.raises(UsageError, match=told) as raised:
        read_study(run)
    assert "result.json" in str(raised.value)


def test_a_study_that_nobody_knows_and_that_shows_nothing_is_not_reported(tmp_path: Path) -> None:
    run = study(tmp_path / "run", "pointer")
    found = read_study(run)
    assert isinstance(found, Findings)
    write_json(run / "study" / "result.json", {"study": "later"})
    assert read_study(run) is None
    with pytest.raises(UsageError, match="nothing to report"):
        write_report([run], tmp_path / "page.html")
