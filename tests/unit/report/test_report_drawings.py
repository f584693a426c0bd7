"""What figures show, item by item: sizes, data, colors, labels and scales are those on record.

After an intended change, delete `drawings.json` and run this file twice: the first run records anew and fails.
"""

import html
import io
import json
import math
import re
from collections.abc import Sequence
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
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from vitadel.report import write_report, write_tables
from vitadel.report.figures.exhibits import exhibit_drawing
from vitadel.runs import Run
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
)

RECORD = Path(__file__).with_name("drawings.json")


def rounded(values: object) -> Any:
    """Four digits, which every processor agrees on."""
    array = np.ma.filled(np.ma.asarray(values, dtype=np.float64), np.nan)
    return json.loads(json.dumps([None if math.isnan(one) else float(f"{one:.4g}") for one in array.ravel().tolist()]))


def described(figure: Figure) -> dict[str, Any]:
    placed = figure.get_layout_engine() is None  # else positions depend on how wide a font is
    legends = [[text.get_text() for text in legend.get_texts()] for legend in figure.legends]
    titles = [figure.get_supxlabel(), figure.get_supylabel()]
    fonts = [text.get_fontsize() for text in figure.texts]
    axes = [{**of_axes(one), "at": rounded(one.get_position().bounds) if placed else None} for one in figure.axes]
    columns = [legend._ncols for legend in figure.legends]  # type: ignore[attr-defined]
    frames = [
        [legend.get_frame_on(), legend.handlelength, *(text.get_fontsize() for text in legend.get_texts())]
        for legend in figure.legends
    ]
    return {"inches": rounded(figure.get_size_inches()), "legends": legends, "columns": columns, "frames": frames} | {
        "titles": titles,
        "fonts": fonts,
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
        "axis": [of_axis(axes.xaxis), of_axis(axes.yaxis)],
        "names": [
            [one.get_fontsize(), one.get_rotation(), one.get_horizontalalignment(), one.get_verticalalignment()]
            for one in (axes.xaxis.label, axes.yaxis.label, *axes.texts)
        ],
        "title": [axes._left_title.get_fontsize(), axes.title.get_fontsize()],  # type: ignore[attr-defined]
        "spines": [name for name, spine in axes.spines.items() if spine.get_visible()],
        "lines": [
            [
                *(rounded(one.get_xdata()), rounded(one.get_ydata())),
                *(to_hex(one.get_color()), str(one.get_linestyle()), str(one.get_marker())),
                to_hex(one.get_markerfacecolor(), keep_alpha=True),
                *rounded([one.get_linewidth(), one.get_markersize(), one.get_alpha() or 1, one.get_zorder()]),
            ]
            for one in axes.get_lines()
        ],
        "patches": [of_patch(one) for one in axes.patches],
        "bands": [
            [
                *(type(one).__name__, rounded(one.get_datalim(axes.transData).extents)),
                *(rounded(one.get_facecolor()), rounded(getattr(one, "get_sizes", lambda: ())())),
                *(
                    rounded(one.get_edgecolor()),
                    rounded(getattr(one, "get_linewidths", lambda: ())()),
                    one.get_zorder(),
                ),
            ]
            for one in axes.collections
        ],
        "images": [of_image(one) for one in axes.images],
        "texts": [of_text(one) for one in axes.texts],
    }


def of_ticks(axis: Axis) -> list[Any]:
    """Where they are fixed: others depend on the available space."""
    if not isinstance(axis.get_major_locator(), FixedLocator):
        return []
    return [rounded(axis.get_ticklocs()), [[one.get_text(), one.get_rotation()] for one in axis.get_ticklabels()]]


def of_axis(axis: Axis) -> dict[str, Any]:
    """How ticks are chosen, written and drawn."""
    locator, formatter = axis.get_major_locator(), axis.get_major_formatter()
    samples = [formatter(one, 0) for one in (0.002, 0.5, 1, 3000)] if isinstance(formatter, FuncFormatter) else []
    return {
        "locator": type(locator).__name__,
        "minor": type(axis.get_minor_locator()).__name__,
        "choice": rounded(locator.tick_values(0.0, 2.5)) if isinstance(locator, MaxNLocator) else [],
        "written": samples,
        "drawn": {key: value for key, value in axis.get_tick_params().items() if isinstance(value, bool | int | float)},
        "pad": axis.labelpad,
    }


def of_patch(patch: object) -> list[Any]:
    if isinstance(patch, StepPatch):
        values, edges, _ = patch.get_data()
        face, edge = (to_hex(color, keep_alpha=True) for color in (patch.get_facecolor(), patch.get_edgecolor()))
        style = [str(patch.get_linestyle()), patch.get_linewidth(), patch.get_alpha()]
        return [rounded(values), rounded(edges), patch.get_fill(), face, edge, *style]
    assert isinstance(patch, Rectangle)
    return [*rounded(patch.get_bbox().extents), to_hex(patch.get_facecolor(), keep_alpha=True), patch.get_label()]


def of_image(image: AxesImage) -> list[Any]:
    shown = image.get_array()
    assert shown is not None
    return [list(shown.shape), rounded(image.to_rgba(shown).mean((0, 1))), image.get_interpolation()]


def of_text(text: Text) -> list[Any]:
    return [
        text.get_text(),
        *rounded(text.get_position()),
        text.get_fontsize(),
        text.get_horizontalalignment(),
        text.get_verticalalignment(),
        text.get_rotation(),
        to_hex(text.get_color()),
    ]


def style() -> dict[str, Any]:
    """The settings of matplotlib that figures change, but those that name fonts and files."""
    changed = {key: value for key, value in mpl.rcParams.items() if value != mpl.rcParamsDefault[key]}
    return {key: value for key, value in changed.items() if isinstance(value, bool | int | float | list)}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every figure that would be written, by the name that its ids come from; painting them would take long."""
    result: list[dict[str, Any]] = []

    def described_only(self: Figure, file: Path | io.StringIO | io.BytesIO, **more: object) -> None:
        names = {"name": mpl.rcParams["svg.hashsalt"], "format": more["format"]}
        result.append({**names, **described(self), "style": style()})
        if isinstance(file, Path):
            file.touch()
        elif isinstance(file, io.StringIO):
            file.write("<svg></svg>")

    monkeypatch.setattr(Figure, "savefig", described_only)
    return result


def without_style(drawn: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """It is the same in all figures."""
    assert all(one["style"] == drawn[0]["style"] for one in drawn)
    return [{key: value for key, value in one.items() if key != "style"} for one in drawn]


def page_words(path: Path) -> list[str]:
    """The words of a page, element by element, but those of drawings and of where and when runs were made."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"<(svg|style|script)\b.*?</\1>|<section id=\"provenance\">.*?</section>", "", text, flags=re.DOTALL)
    words = [" ".join(html.unescape(one).split()) for one in re.split(r"<[^>]*>", text)]
    return [one.replace(str(path.parent), "FOLDER") for one in words if one]


def shorter(text: str) -> str:
    """Numbers with all their digits cut to six."""
    return re.sub(r"\d+\.\d{6,}(e-\d+)?", lambda number: f"{float(number[0]):.6g}", text)


def check(name: str, result: Sequence[object]) -> None:
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if name not in recorded:
        records = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in {**recorded, name: result}.items()]
        RECORD.write_text("{\n" + ",\n".join(records) + "\n}\n")
        pytest.fail("the drawings were not on record and now are: look at the difference")
    assert json.loads(json.dumps(result)) == recorded[name]


# ------------------------------------------------------------------ exhibits


def line(number: int, *, band: bool = False, count: int = 5, **more: Any) -> Line:
    x = list(range(1, count + 1))
    y = [None if one == 2 else one * (number + 1) / 10 for one in x]
    low, high = ([None if one is None else one + away for one in y] if band else () for away in (-0.05, 0.1))
    return Line(f"line {number}", **{"x": x, "y": y, "dashed": number == 1, "low": low, "high": high, **more})


def lines(*shown: Line, **more: Any) -> Lines:
    return Lines("Lines", "Of lines.", shown, "epoch", "share", **more)


def heat(rows: int, columns: int, *, count: int = 1, names: bool = False, **more: Any) -> Heatmap:
    values = np.arange(rows * columns, dtype=np.float64).reshape(rows, columns) / 10
    matrices = [Matrix(f"matrix {i}", (values - i).tolist()) for i in range(count)]
    if names:
        more |= {"rows": [f"row {i}" for i in range(rows)], "columns": [f"column {i}" for i in range(columns)]}
    return Heatmap("Heat", "Of heat.", matrices, "CKA", "this", "that", **more)


def pictures(down: int, across: int, *, mapped: bool = False, note: str = "", **more: Any) -> Pictures:
    pixels, overlay = np.full((4, 6, 3), 90, np.uint8), np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)
    picture = Picture(pixels, overlay if mapped else None, note)
    cells: list[list[Picture | None]] = [[picture] * across for _ in range(down)]
    cells[-1][-1] = None
    return Pictures("Pictures", "Of pictures.", cells, **{"scale_label": "share", **more})


def bars(series: int, groups: int, *, ends: bool = False, **more: Any) -> Bars:
    values = np.linspace(0.2, 0.8, groups)
    shown = []
    for i in range(1, series + 1):
        low, high = (((values + away) / i).tolist() if ends else () for away in (-0.1, 0.15))
        shown.append(Bar(f"bar {i - 1}", (values / i).tolist(), low, high))
    return Bars("Bars", "Of bars.", [f"a group of {i}" for i in range(groups)], shown, "share", **more)


def histograms(panels: int, *series: str, **more: Any) -> Histograms:
    shares = [[0.0, 0.1, 0.3, 0.6, 0.0], *[[0.2, 0.8, 0.0, 0.0, 0.0]] * (len(series) - 1)]
    shown = [Histogram(f"blocks.{i}", shares) for i in range(panels)]
    edges = [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
    return Histograms("Histograms", "Of gaps.", shown, series, edges, "gap", "share", **more)


EXHIBITS: dict[str, Exhibit] = {
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
    "many maps": pictures(1, 12, mapped=True, scale=Scale.SEQUENTIAL, low=-0.5, note="seen"),
    "histograms": histograms(
        5, "plain", "rescaled", log_x=True, references=(("fp16", 9.7), ("fp16", 16.6), ("fp32", 87.3))
    ),
    "one histogram": histograms(1, "plain"),
    "histograms of many series": histograms(2, "plain", *"abcde"),
    "lines between places": lines(line(0, x=[0.5, 1.0, 1.5, 2.0, 2.5])),
    "long names of bars": bars(9, 3, ends=True),
    "values on dark and light": heat(2, 6, digits=1, low=0.0, high=1.1),
}


@pytest.mark.parametrize("name", EXHIBITS)
def test_drawings_of_exhibits(name: str, drawn: list[dict[str, Any]]) -> None:
    drawing = exhibit_drawing(EXHIBITS[name], "exhibit")
    assert drawing.width == pytest.approx(drawn[0]["inches"][0], rel=1e-3)
    check("style", [drawn[0]["style"]])
    check(name, without_style(drawn))


# --------------------------------------------------------------------- pages


def test_drawings_of_curves_and_training(
    make: Any, two_runs: list[Path], tmp_path: Path, drawn: list[dict[str, Any]]
) -> None:
    wide = make.evaluate("wide-eval", "wide", {1: 30, 32: 9})
    runs = [*two_runs, wide, make.train("first", "plain"), make.train("second", "twin")]
    run = Run.open(runs[-1])
    for step in range(9, 900):
        run.log("step", step=step, epoch=0, loss=1.0 / step, lr=0.1 + step, grad_norm=math.sin(step))
    page = write_report(runs, tmp_path / "page.html")
    check("curves", without_style(drawn))
    check("curves in words", page_words(page))


@pytest.mark.parametrize("count", [2, 4, 9])
def test_drawings_of_models_as_points(make: Any, tmp_path: Path, count: int, drawn: list[dict[str, Any]]) -> None:
    runs = []
    for place in range(count):
        size = None if place == 2 else 10**6 * 4**place
        run = make.claim(f"run-{place}", f"model-{place}", size, ("vit", "xcit")[place % 2])
        right, clean = 4 * place + 2, 36 - 3 * place
        make.perturb(run, "corruptions", [1.0] * right + [0.0] * (40 - right), clean=[1] * clean + [0] * (40 - clean))
        runs.append(run.folder)
    page = write_report(runs, tmp_path / "page.html", baseline="model-1")
    tables = [
        path
        for path in write_tables(runs, tmp_path / "tables", baseline="model-1")
        if path.suffix not in (".png", ".pdf")
    ]
    check(f"{count} models", [one for one in without_style(drawn) if one["format"] != "pdf"])
    check(f"{count} models in words", [*page_words(page), *(shorter(path.read_text()) for path in tables)])
