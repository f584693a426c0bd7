"""Figures as inline SVG: ink and line colors are CSS variables of the page, names stay in the page's own legend."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitadel.core.files import write_whole
from vitadel.report.records import Curve, Record, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colors, which people with any color vision can tell apart; their yellow is lost on white
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a7a7a")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_GLYPHS = ("●", "■", "▲", "◆", "▼", "✚", "✖")
_STROKES = {"solid": "-", "dashed": "--", "dotted": ":", "dash-dotted": "-."}
INK = "#010203"  # a color nobody chooses, so that it can be found again and handed to the page
_POINTS = 300
_PANELS = 6
_WIDE_SWEEP = 20
_STYLE: dict[str, object] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK),
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.7,
    "lines.markersize": 5.0,
    "axes.formatter.limits": (-3, 5),
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with its title and the words that stand in for it; `width` is what it was drawn for, in inches."""

    title: str
    svg: str
    alt: str
    width: float = 0.0


def glyph(number: int) -> str:
    """The sign that stands for the model of this number in legends and tables; its lines carry the same."""
    return _GLYPHS[number % len(_GLYPHS)]


def color(number: int) -> str:
    """The CSS color of the model of this number, which the page may lighten in the dark."""
    place = number % len(PALETTE)
    return f"var(--line-{place}, {PALETTE[place]})"


def curve_drawings(curves: Sequence[Curve], numbers: Mapping[str, int]) -> list[Drawing]:
    """Accuracy against eps with interval bands, one drawing per norm, one line per run and suite."""
    swept = [curve for curve in curves if curve.swept]
    return [_curve_drawing(norm, swept, numbers) for norm in dict.fromkeys(curve.norm for curve in swept)]


def strokes(curves: Sequence[Curve], numbers: Mapping[str, int]) -> dict[str, str]:
    """By label how its curves are drawn, which tells those of one color apart."""
    shared: dict[int, list[str]] = {}
    for label in dict.fromkeys(curve.label for curve in curves if curve.swept):
        shared.setdefault(numbers[label] % len(PALETTE), []).append(label)
    looks = list(_STROKES)
    return {label: looks[place % len(looks)] for labels in shared.values() for place, label in enumerate(labels)}


def training_drawings(records: Sequence[Record], numbers: Mapping[str, int]) -> list[Drawing]:
    """Loss, hold-out accuracy, learning rate and what else was logged, each with one line per run."""
    named: dict[str, list[tuple[int, Series]]] = {"loss": [], "hold-out accuracy": [], "learning rate": []}
    for record in records:
        for series in record.training:
            named.setdefault(_panel(series), []).append((numbers[record.label], series))
    panels = [(title, lines) for title, lines in named.items() if lines]
    return [_training_drawing(title, lines) for title, lines in panels[:_PANELS]]


def _panel(series: Series) -> str:
    if series.event == "holdout":
        return "hold-out accuracy" if series.name in ("clean", "robust") else f"hold-out {series.name}"
    return {"lr": "learning rate"}.get(series.name, series.name.replace("_", " "))


def _curve_drawing(norm: str, curves: Sequence[Curve], numbers: Mapping[str, int]) -> Drawing:
    scale = 255 if norm == "linf" else 1
    mine, looks = [curve for curve in curves if curve.norm == norm], strokes(curves, numbers)
    with _axes(f"curve-{norm}", (5.6, 3.0)) as (axes, finish):
        for curve in mine:
            _draw_curve(axes, curve, numbers[curve.label], scale, _STROKES[looks[curve.label]])
        _sweep_axis(axes, sorted({scale * eps for curve in mine for eps, _ in curve.points}))
        axes.set_ylim(-2, 102)
        axes.set_ylabel("accuracy, %")
        axes.set_xlabel("eps, in 1/255" if norm == "linf" else f"eps ({norm})")
    told = "; ".join(f"{c.label}: {', '.join(a.percent for _, a in c.points)}" for c in mine)
    return Drawing(f"Accuracy under {norm} attack", finish[0], f"Accuracy in percent as eps grows. {told}.")


def _draw_curve(axes: "Axes", curve: Curve, number: int, scale: float, look: str) -> None:
    eps = [scale * e for e, _ in curve.points]
    value, low, high = (
        [100 * getattr(accuracy, name) for _, accuracy in curve.points] for name in ("value", "low", "high")
    )
    place = number % len(PALETTE)
    axes.fill_between(eps, low, high, color=PALETTE[place], alpha=0.16, linewidth=0)
    axes.plot(eps, value, color=PALETTE[place], marker=MARKERS[place], linestyle=look)


def _sweep_axis(axes: "Axes", eps: Sequence[float]) -> None:
    """Room for every eps: a sweep over more than a decade is stretched at its small end."""
    if eps[-1] / eps[1] > _WIDE_SWEEP:
        axes.set_xscale("symlog", base=2, linthresh=eps[1], linscale=1)
        axes.set_xticks(eps, [f"{e:.3g}" for e in eps])
        axes.minorticks_off()
    axes.margins(x=0.03)


def _training_drawing(title: str, lines: Sequence[tuple[int, Series]]) -> Drawing:
    # twins often share a schedule, so all but the first are dashed there and the one below shows through
    percent = title == "hold-out accuracy"
    with _axes(f"training-{title}", (3.9, 2.5)) as (axes, finish):
        for line, (number, series) in enumerate(lines):
            steps, values = _thinned(series)
            place = number % len(PALETTE)
            marker = MARKERS[place] if len(steps) <= 12 else ""
            dashed = series.name == "robust" if percent else title == "learning rate" and line > 0
            shown = 100 * values if percent else values
            axes.plot(
                steps,
                shown,
                color=PALETTE[place],
                marker=marker,
                linestyle=(0, (6, 5)) if dashed else "-",
                linewidth=1.4,
            )
        axes.set_xlabel("step")
        axes.locator_params(axis="x", nbins=5)
        if percent:
            axes.set_ylim(-2, 102)
            axes.set_ylabel("%")
    last = "; ".join(f"{series.name} ends at {series.values[-1]:.4g}" for _, series in lines)
    return Drawing(title, finish[0], f"{title} over the steps of training: {last}.")


def _thinned(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """At most a few hundred points, each the mean of its neighbors: more cannot be seen and would weigh the page."""
    steps, values = np.asarray(series.steps), np.asarray(series.values)
    if len(steps) <= _POINTS:
        return steps, values
    groups = np.array_split(np.arange(len(steps)), _POINTS)
    return np.array([steps[g].mean() for g in groups]), np.array([values[g].mean() for g in groups])


@contextmanager
def _axes(name: str, inches: tuple[float, float]) -> Iterator[tuple["Axes", list[str]]]:
    """Axes to draw on in the house style; on leaving, the list holds the SVG."""
    with styled(name, inches) as figure:
        drawn: list[str] = []
        yield figure.add_subplot(), drawn
        drawn.append(svg(figure))


@contextmanager
def styled(name: str, inches: tuple[float, float]) -> Iterator["Figure"]:
    """An empty figure; what is drawn inside comes in the house style."""
    import matplotlib.style
    from matplotlib.figure import Figure

    # the salt names the figure, so that no two drawings of one page share an id
    with matplotlib.style.context({**_STYLE, "svg.hashsalt": name}, after_reset=True):
        yield Figure(figsize=inches, layout="constrained")


def svg(figure: "Figure") -> str:
    """The figure as a bare element: no date, no namespace, no fixed size, colors left to the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| (width|height)="[^"]*pt"| id="[\w.]+_\d+[^"]*"', "", text)
    text = text.replace("xlink:href", "href").replace("<svg", '<svg aria-hidden="true"', 1).replace(INK, "currentColor")
    for place, shade in enumerate(PALETTE):
        text = text.replace(shade, f"var(--line-{place}, {shade})")
    return text


def save(figure: "Figure", path: Path) -> list[Path]:
    """The figure as PNG and PDF, named like `path`."""
    paths = [path.with_suffix(suffix) for suffix in (".png", ".pdf")]
    for one in paths:
        # a date would make the same study give other bytes
        metadata: dict[str, None] = {"CreationDate": None} if one.suffix == ".pdf" else {"Software": None}

        # drawn in memory: matplotlib answers a full disk with errors of its own
        drawn = io.BytesIO()
        figure.savefig(drawn, format=one.suffix[1:], dpi=200, facecolor="white", metadata=metadata)

        def write(beside: Path, drawn: io.BytesIO = drawn) -> None:
            beside.write_bytes(drawn.getvalue())

        write_whole(one, write)
    return paths
