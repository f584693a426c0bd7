"""What figures show, item by item: sizes, data, colors, labels and scales are those on record.

After a change that is meant, delete `drawings.json` and run this file twice: the first run records anew and fails.
"""

import html
import io
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle, StepPatch
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator

from vitadel.core.files import write_json
from vitadel.report import write_figures, write_report
from vitadel.report.comparison.tables import write_tables
from vitadel.report.exhibits import Bar, Bars, Heat, Line, Lines, Picture, Pictures
from vitadel.report.figures.exhibits import exhibit_drawing
from vitadel.runs import Run

RECORD = Path(__file__).with_name("drawings.json")
NONE = np.array([])


def rounded(values: object) -> Any:
    """Four digits, which every processor agrees on."""
    array = np.ma.filled(np.ma.asarray(values, dtype=np.float64), np.nan)
    return json.loads(json.dumps([None if math.isnan(one) else float(f"{one:.4g}") for one in array.ravel().tolist()]))


def described(figure: Figure) -> dict[str, Any]:
    placed = figure.get_layout_engine() is None  # else positions depend on how wide a font is
    legends = [[text.get_text() for text in legend.get_texts()] for legend in figure.legends]
    titles = [figure.get_supxlabel(), figure.get_supylabel()]
    axes = [{**of_axes(one), "at": rounded(one.get_position().bounds) if placed else None} for one in figure.axes]
    columns = [legend._ncols for legend in figure.legends]  # type: ignore[attr-defined]
    return {"inches": rounded(figure.get_size_inches()), "legends": legends, "columns": columns} | {
        "titles": titles,
        "axes": axes,
    }


def of_axes(axes: Axes) -> dict[str, Any]:
    if not axes.axison:
        return {}
    sides = [rounded([*axes.get_xlim(), *axes.get_ylim()]), axes.get_xscale(), axes.get_yscale()]
    names = [axes.get_title(loc="left"), axes.get_title(), axes.get_xlabel(), axes.get_ylabel()]
    return {
        "sides": [*sides, *names],
        "ticks": [of_ticks(axes.xaxis), of_ticks(axes.yaxis)],
        "lines": [
            [
                *(rounded(one.get_xdata()), rounded(one.get_ydata())),
                *(to_hex(one.get_color()), str(one.get_linestyle()), str(one.get_marker())),
                to_hex(one.get_markerfacecolor(), keep_alpha=True),
                *rounded([one.get_linewidth(), one.get_markersize(), one.get_alpha() or 1]),
            ]
            for one in axes.get_lines()
        ],
        "patches": [of_patch(one) for one in axes.patches],
        "bands": [
            [
                *(type(one).__name__, rounded(one.get_datalim(axes.transData).extents)),
                *(rounded(one.get_facecolor()), rounded(getattr(one, "get_sizes", lambda: ())())),
            ]
            for one in axes.collections
        ],
        "images": [of_image(one) for one in axes.images],
        "texts": [of_text(one) for one in axes.texts],
    }


def of_ticks(axis: Axis) -> list[Any]:
    """Where they are fixed: others depend on the room there is."""
    if not isinstance(axis.get_major_locator(), FixedLocator):
        return []
    return [rounded(axis.get_ticklocs()), [[one.get_text(), one.get_rotation()] for one in axis.get_ticklabels()]]


def of_patch(patch: object) -> list[Any]:
    if isinstance(patch, StepPatch):
        values, edges, _ = patch.get_data()
        return [rounded(values), rounded(edges), patch.get_fill()]
    assert isinstance(patch, Rectangle)
    return [*rounded(patch.get_bbox().extents), to_hex(patch.get_facecolor(), keep_alpha=True), patch.get_label()]


def of_image(image: AxesImage) -> list[Any]:
    shown = image.get_array()
    assert shown is not None
    return [list(shown.shape), rounded(image.to_rgba(shown).mean((0, 1)))]


def of_text(text: Text) -> list[Any]:
    return [
        text.get_text(),
        *rounded(text.get_position()),
        text.get_fontsize(),
        text.get_horizontalalignment(),
        to_hex(text.get_color()),
    ]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every figure that would be written, by the name that its ids come from; painting them would take long."""
    found: list[dict[str, Any]] = []

    def described_only(self: Figure, file: Path | io.StringIO | io.BytesIO, **more: object) -> None:
        found.append({"name": mpl.rcParams["svg.hashsalt"], "format": more["format"], **described(self)})
        if isinstance(file, Path):
            file.touch()
        elif isinstance(file, io.StringIO):
            file.write("<svg></svg>")

    monkeypatch.setattr(Figure, "savefig", described_only)
    return found


def told(path: Path) -> list[str]:
    """The words of a page, element by element, but those of drawings and of where and when runs were made."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"<(svg|style|script)\b.*?</\1>|<section id=\"provenance\">.*?</section>", "", text, flags=re.DOTALL)
    words = [" ".join(html.unescape(one).split()) for one in re.split(r"<[^>]*>", text)]
    return [one.replace(str(path.parent), "FOLDER") for one in words if one]


def shorter(text: str) -> str:
    """Numbers with all their digits cut to six."""
    return re.sub(r"\d+\.\d{6,}(e-\d+)?", lambda number: f"{float(number[0]):.6g}", text)


def check(name: str, found: Sequence[object]) -> None:
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if name not in recorded:
        told = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in {**recorded, name: found}.items()]
        RECORD.write_text("{\n" + ",\n".join(told) + "\n}\n")
        pytest.fail("the drawings were not on record and now are: look at the difference")
    assert json.loads(json.dumps(found)) == recorded[name]


# ------------------------------------------------------------------ exhibits


def line(number: int, *, band: bool = False, count: int = 5, **more: Any) -> Line:
    x = np.arange(1.0, count + 1)
    y = np.where(x == 2, np.nan, x * (number + 1) / 10)
    values = {
        "dashed": number == 1,
        "color": None,
        "low": y - 0.05 if band else NONE,
        "high": y + 0.1 if band else NONE,
    }
    return Line(f"line {number}", x, y, **{**values, **more})


def lines(*shown: Line, **more: Any) -> Lines:
    values: dict[str, Any] = {"log_x": False, "log_y": False, "y_range": None, "references": ()}
    return Lines("Lines", "Of lines.", shown, "epoch", "share", **{**values, **more})


def heat(rows: int, columns: int, *, count: int = 1, names: bool = False, **more: Any) -> Heat:
    matrices = [np.arange(rows * columns, dtype=np.float64).reshape(rows, columns) / 10 - at for at in range(count)]
    labels = {
        f"{one}s": tuple(f"{one} {at}" for at in range(n)) if names else ()
        for one, n in (("row", rows), ("column", columns))
    }
    values: dict[str, Any] = {"low": None, "high": None, "center": None, "digits": None, **labels}
    named = tuple((f"matrix {at}", matrix) for at, matrix in enumerate(matrices))
    return Heat("Heat", "Of heat.", named, "CKA", "this", "that", **{**values, **more})


def pictures(down: int, across: int, *, mapped: bool = False, note: str = "", **more: Any) -> Pictures:
    pixels, overlay = np.full((4, 6, 3), 90, np.uint8), np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)
    cells = [[Picture(pixels, overlay if mapped else None, note) for _ in range(across)] for _ in range(down)]
    cells[-1][-1] = None  # type: ignore[call-overload]
    values: dict[str, Any] = {
        "rows": (),
        "columns": (),
        "diverging": True,
        "scale_label": "share",
        "low": 0.0,
        "high": 1.0,
    }
    return Pictures("Pictures", "Of pictures.", tuple(map(tuple, cells)), **{**values, **more})


def bars(series: int, groups: int, *, ends: bool = False, **more: Any) -> Bars:
    values = np.linspace(0.2, 0.8, groups)
    low, high = (values - 0.1, values + 0.15) if ends else (NONE, NONE)
    shown = tuple(Bar(f"bar {at}", values / (at + 1), low / (at + 1), high / (at + 1)) for at in range(series))
    names = tuple(f"a group of {at}" for at in range(groups))
    return Bars("Bars", "Of bars.", names, shown, "share", **{"y_range": None, "references": (), **more})


EXHIBITS: dict[str, Lines | Heat | Pictures | Bars] = {
    "lines": lines(line(0, band=True), line(1), line(2, color=5)),
    "one line on logarithms": lines(line(0, count=40), log_x=True, log_y=True, references=(("chance", 0.1),)),
    "few places on logarithms": lines(line(0), line(9), log_x=True, y_range=(-1.0, 2.0)),
    "bars": bars(3, 4, ends=True, references=(("chance", 0.1),)),
    "many bars": bars(2, 30, y_range=(0.0, 1.0)),
    "heat": heat(3, 4, names=True, digits=2, center=0.5),
    "square heat": heat(30, 30, count=5),
    "heat in bounds": heat(1, 60, low=-1.0, high=2.0, names=True),
    "heat of one value": heat(1, 1, count=2, center=0.0),
    "pictures": pictures(2, 3, note="a cat, taken for a dog"),
    "maps": pictures(3, 2, mapped=True, rows=("first", "second", "a third"), columns=("as it is", "attacked")),
    "many maps": pictures(1, 12, mapped=True, diverging=False, low=-0.5, note="seen"),
}


@pytest.mark.parametrize("name", EXHIBITS)
def test_exhibits(name: str, drawn: list[dict[str, Any]]) -> None:
    drawing = exhibit_drawing(EXHIBITS[name], "exhibit")
    assert drawing.width == pytest.approx(drawn[0]["inches"][0], rel=1e-3)
    check(name, drawn)


# --------------------------------------------------------------------- pages


def masking(interval: Callable[[int, int], dict[str, float]], attentions: int, norm: str) -> dict[str, object]:
    """A study of masking as it writes its result."""

    def share(count: int) -> dict[str, float]:
        return interval(count, 40)

    def gaps(place: int) -> dict[str, object]:
        counts = [0] * 42
        counts[0], counts[place], counts[place + 5] = 4, 60, 16
        one = {"rows": 80, "counts": counts, "beyond": [8, 6, 4, 2], "median": 1.5, "max": 7.25}
        return {"all": one, "heads": [one]}

    eps = 8 / 255 if norm == "linf" else 0.5
    return {
        **{"study": "masking", "threat": {"norm": norm, "eps": eps, "text": f"{norm}:{eps:.3g}"}},
        **{"settings": {"is": "Masking", "curve_steps": 20}, "n": 40, "classes": 10, "clean": share(36)},
        **{"verdict": {"answer": "masked", "because": "it was made up", "evidence": []}, "seconds": 12.0},
        **{"factors": {"attentions": [0.5, 0.01], "tried": 24}, "gradients": {}, "attacks": []},
        "lines": [{"name": str(gap), "gap": gap} for gap in (9.7, 16.6, 87.3, 103.3)],
        "edges": [10 ** (k / 4 - 2) for k in range(41)],
        "gaps": {
            "plain": [{"name": f"blocks.{i}.attn", **gaps(30)} for i in range(attentions)],
            "scaled": [{"name": f"blocks.{i}.attn", **gaps(10)} for i in range(attentions)],
        },
        "eps": [{"eps": e * eps, "text": f"{norm}:{e}", "right": share(30 - 3 * e)} for e in (1, 2, 8)],
        "iterations": [{"steps": s, "pgd": share(40 - s), "aas": share(38 - s)} for s in (10, 20)],
        "blocks": [
            {"blocks": k, "original": share(30), "rescaled": share(30 - k), "rescaled_clean": share(35)}
            for k in range(attentions + 1)
        ],
    }


def test_studies_of_masking(tmp_path: Path, known_interval: Any, drawn: list[dict[str, Any]]) -> None:
    runs = []
    for name, attentions, norm in (("one", 2, "linf"), ("two", 5, "linf"), ("three", 1, "l2")):
        parts = {"study": {"is": "Masking"}, "model": {"name": name, "sha256": name}, "seed": 0}
        run = Run.claim(tmp_path / name, "analyze", parts, device="cpu")
        write_json(run.folder / "study" / "result.json", masking(known_interval, attentions, norm))
        runs.append(run.folder)
    page = write_report(runs, tmp_path / "page.html")
    write_figures(runs[1])
    check("masking", [one for one in drawn if one["format"] != "pdf"])
    check("masking in words", told(page))


def test_curves_and_trainings(make: Any, two_runs: list[Path], tmp_path: Path, drawn: list[dict[str, Any]]) -> None:
    wide = make.evaluate("wide-eval", "wide", {1: 30, 32: 9})
    runs = [*two_runs, wide, make.train("first", "plain"), make.train("second", "twin")]
    run = Run.open(runs[-1])
    for step in range(9, 900):
        run.log("step", step=step, epoch=0, loss=1.0 / step, lr=0.1 + step, grad_norm=math.sin(step))
    page = write_report(runs, tmp_path / "page.html")
    check("curves", drawn)
    check("curves in words", told(page))


@pytest.mark.parametrize("count", [2, 4, 9])
def test_models_as_points(make: Any, tmp_path: Path, count: int, drawn: list[dict[str, Any]]) -> None:
    runs = []
    for place in range(count):
        size = None if place == 2 else 10**6 * 4**place
        run = make.claim(f"run-{place}", f"model-{place}", size, ("vit", "xcit")[place % 2])
        right, clean = 4 * place + 2, 36 - 3 * place
        make.survey(run, "corruptions", [1.0] * right + [0.0] * (40 - right), clean=[1] * clean + [0] * (40 - clean))
        runs.append(run.folder)
    page = write_report(runs, tmp_path / "page.html", baseline="model-1")
    tables = [
        path
        for path in write_tables(runs, tmp_path / "tables", baseline="model-1")
        if path.suffix not in (".png", ".pdf")
    ]
    check(f"{count} models", [one for one in drawn if one["format"] != "pdf"])
    check(f"{count} models in words", [*told(page), *(shorter(path.read_text()) for path in tables)])
