"""Models as points: robustness against clean accuracy, error against size; for the page and as files."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitadel.core.stats import PowerLawFit, inverse_logit, logit
from vitadel.report.comparison.models import ModelRow, Score
from vitadel.report.comparison.trends import MILLION, SizePoint, SizeTrend, Trend, on_axis
from vitadel.report.figures.exhibits import figure_name
from vitadel.report.figures.style import DASHED, DOTTED, INK, MARKERS, PALETTE, Drawing, save_figure, styled, svg
from vitadel.report.text import number as number_text
from vitadel.report.text import parameters_text, signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Numbers = Mapping[str, int]

_INCHES = (4.4, 3.5)
_AREAS = (26.0, 240.0)  # the least and the greatest marker, in square points
_UNKNOWN_AREA = 60.0
# the strokes of several fits of one figure
_STROKES = {"solid": (0, ()), "dashed": DASHED, "dotted": DOTTED, "dash-dotted": (0, (5, 2, 1, 2))}
# percentages worth a tick on an axis of logits
_PERCENTS = (0.01, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 99.9, 99.99)
_MOST_TICKS = 8
_WIDE = 3.0  # of an axis of logits: that from 18% to 82%
_MARGIN = 0.08


def trend_drawings(trends: Sequence[Trend], numbers: Numbers) -> list[Drawing]:
    """Drawings for the page, whose legend names the points."""
    return [
        _drawing(f"trend-{i}", _trend_title(one), _trend_alt(one), _draw_trend(one, numbers))
        for i, one in enumerate(trends)
    ]


def size_drawings(trends: Sequence[SizeTrend], numbers: Numbers) -> list[Drawing]:
    """The same of error against size."""
    return [
        _drawing(f"scaling-{i}", _size_title(one), _size_alt(one), _draw_size_trend(one, numbers))
        for i, one in enumerate(trends)
    ]


def with_strokes(formulas: Sequence[str]) -> list[str]:
    """Formulas of one figure with the stroke of their lines, if there are several."""
    strokes = list(_STROKES)
    return [f"{one} ({strokes[i % len(strokes)]})" if len(formulas) > 1 else one for i, one in enumerate(formulas)]


def write_comparison_figures(
    trends: Sequence[Trend], sizes: Sequence[SizeTrend], numbers: Numbers, folder: Path
) -> list[Path]:
    """The same as PNG and PDF, each with its own legend."""
    drawn = [
        (_trend_title(one), _draw_trend(one, numbers), [row for row, _, _ in one.points], one.formulas)
        for one in trends
    ]
    drawn += [
        (_size_title(one), _draw_size_trend(one, numbers), [point.row for point in one.points], one.formulas)
        for one in sizes
    ]
    written = []
    for number, (title, draw, rows, formulas) in enumerate(drawn, 1):
        with _figure(f"file-{number}", draw) as figure:
            _legend(figure, rows, numbers, formulas)
            written += save_figure(figure, folder / f"{number:02d}-{figure_name(title)}")
    return written


def _drawing(name: str, title: str, alt: str, draw: "Callable[[Axes], None]") -> Drawing:
    with _figure(name, draw) as figure:
        return Drawing(title, svg(figure), alt, _INCHES[0])


@contextmanager
def _figure(name: str, draw: "Callable[[Axes], None]") -> "Iterator[Figure]":
    with styled(name, _INCHES) as figure:
        draw(figure.add_subplot())
        yield figure


def _legend(figure: "Figure", rows: Sequence[ModelRow], numbers: Numbers, formulas: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    strokes = list(_STROKES.values())
    handles = [
        Line2D([], [], color=INK, linewidth=1.0, linestyle=strokes[i % len(strokes)], label=formula)
        for i, formula in enumerate(formulas)
    ]
    for row in rows:
        color, marker = _look(row, numbers)
        label = f"{row.rank} {row.label}" if is_numbered(rows) and row.rank is not None else row.label
        handles.append(Line2D([], [], linestyle="none", marker=marker, color=color, label=label))
    figure.set_figheight(figure.get_figheight() + 0.19 * len(handles))
    figure.legend(handles=handles, loc="outside lower left", frameon=False, fontsize=8)


def _trend_title(trend: Trend) -> str:
    return f"{trend.column.title} against clean accuracy" + _about(trend.column.about)


def _size_title(trend: SizeTrend) -> str:
    return f"Error against size: {trend.column.title}" + _about(trend.column.about)


def _about(about: str) -> str:
    return f" ({about})" if about else ""


def _trend_alt(trend: Trend) -> str:
    share, models = trend.column.is_share, []
    for row, clean, score in trend.points:
        beyond = trend.residual(clean, score)
        more = "" if beyond is None else f", {signed(beyond, is_share=share)} beyond the line"
        values = number_text(clean.value, is_share=True), number_text(score.value, is_share=share)
        models.append(f"{row.label}: {values[0]} clean, {values[1]}{more}")
    return f"{_trend_title(trend)}. {'; '.join(models)}. {'; '.join(trend.formulas)}".rstrip(". ") + "."


def _size_alt(trend: SizeTrend) -> str:
    models = "; ".join(f"{p.row.label}: {parameters_text(p.parameters)}, error {p.error:.3g}" for p in trend.points)
    return f"{_size_title(trend)}. {models}. {'; '.join(trend.formulas)}."


def _look(row: ModelRow, numbers: Numbers) -> tuple[str, str]:
    number = numbers[row.labels[0]] % len(PALETTE)
    return PALETTE[number], MARKERS[number]


def _dot(axes: "Axes", point: tuple[float, float], area: float, row: ModelRow, numbers: Numbers) -> None:
    color, marker = _look(row, numbers)
    axes.scatter(*point, s=area, color=color, marker=marker, alpha=0.85, linewidths=0, zorder=3)


def _areas(rows: Sequence[ModelRow]) -> list[float]:
    """Marker areas proportional to the root of the size, so that two orders of magnitude fit into one figure."""
    known = [row.parameters for row in rows if row.parameters is not None]
    if not known or max(known) == min(known):
        return [_UNKNOWN_AREA] * len(rows)
    least, most = math.sqrt(min(known)), math.sqrt(max(known))
    low, high = _AREAS
    return [
        _UNKNOWN_AREA
        if row.parameters is None
        else low + (high - low) * (math.sqrt(row.parameters) - least) / (most - least)
        for row in rows
    ]


def _draw_trend(trend: Trend, numbers: Numbers) -> "Callable[[Axes], None]":
    # two models make no line, and percentages are read more easily than logits
    logits = trend.line is not None
    share = trend.column.is_share

    def x(value: float, score: Score) -> float:
        return on_axis(score, trend.clean, value) if logits else 100 * value

    def y(value: float, score: Score) -> float:
        return on_axis(score, trend.column, value) if logits or not share else 100 * value

    def draw(axes: "Axes") -> None:
        rows = [row for row, _, _ in trend.points]
        for (row, clean, score), area in zip(trend.points, _areas(rows), strict=True):
            color, _ = _look(row, numbers)
            _cross(axes, _ends(clean, x), _ends(score, y), color)
            point = x(clean.value, clean), y(score.value, score)
            _dot(axes, point, area, row, numbers)
            _number(axes, point, rows, row)
        xs, ys = (
            _limits([_ends(clean, x) for _, clean, _ in trend.points]),
            _limits([_ends(score, y) for _, _, score in trend.points]),
        )
        if trend.line is not None:
            axes.plot(xs, [trend.line.at(end) for end in xs], color=INK, linewidth=1.0, zorder=2)
        if share and trend.column.unit == "accuracy":
            axes.plot(xs, xs, color=INK, linewidth=0.9, linestyle=DOTTED, zorder=1)
        axes.set_xlim(*xs)
        axes.set_ylim(*ys)
        if logits:
            _percent_ticks(axes.xaxis, xs)
        if logits and share:
            _percent_ticks(axes.yaxis, ys)
        axes.set_xlabel("clean accuracy, %")
        axes.set_ylabel(f"{trend.column.title}{', %' if share else ''}")

    return draw


def _ends(score: Score, scale: Callable[[float, Score], float]) -> tuple[float, float, float]:
    """The value between the ends of its interval, or alone."""
    value = scale(score.value, score)
    if score.low is None or score.high is None:
        return value, value, value
    return scale(score.low, score), value, scale(score.high, score)


def _cross(axes: "Axes", x: tuple[float, float, float], y: tuple[float, float, float], color: str) -> None:
    axes.plot([x[0], x[2]], [y[1], y[1]], color=color, linewidth=0.9, alpha=0.6, zorder=2)
    axes.plot([x[1], x[1]], [y[0], y[2]], color=color, linewidth=0.9, alpha=0.6, zorder=2)


def is_numbered(rows: Sequence[ModelRow]) -> bool:
    """Whether there are more models than colors, so that ranks must tell points apart."""
    return len(rows) > len(PALETTE)


def _number(axes: "Axes", point: tuple[float, float], rows: Sequence[ModelRow], row: ModelRow) -> None:
    """The rank next to the point, if needed."""
    if is_numbered(rows) and row.rank is not None:
        axes.annotate(str(row.rank), point, xytext=(5, 4), textcoords="offset points", fontsize=7)


def _limits(spans: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    low, high = min(low for low, _, _ in spans), max(high for _, _, high in spans)
    margin = _MARGIN * (high - low) or 0.1 * (abs(high) or 1.0)
    return low - margin, high + margin


def _percent_ticks(axis: "Axis", limits: tuple[float, float]) -> None:
    """Percentages on an axis of logits; the shorter it is, the more evenly they are spaced."""
    low, high = (100 * inverse_logit(end) for end in limits)
    wide = logit(high / 100) - logit(low / 100) > _WIDE
    shown = [percent for percent in (_PERCENTS if wide else _round_numbers(low, high)) if low <= percent <= high]
    shown = [percent for percent in shown[:: math.ceil(len(shown) / _MOST_TICKS) or 1] if 0 < percent < 100]
    axis.set_ticks([logit(percent / 100) for percent in shown], labels=[f"{percent:.4g}" for percent in shown])


def _round_numbers(low: float, high: float) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    return [float(tick) for tick in MaxNLocator(6).tick_values(low, high)]


def _draw_size_trend(trend: SizeTrend, numbers: Numbers) -> "Callable[[Axes], None]":
    smallest, largest = _size_range(trend.points)

    def draw(axes: "Axes") -> None:
        axes.set_xscale("log")
        axes.set_yscale("log")
        rows = [point.row for point in trend.points]
        for point, area in zip(trend.points, _areas(rows), strict=True):
            color, _ = _look(point.row, numbers)
            if point.low is not None and point.high is not None:
                ends = [max(point.low, point.error / 10), point.high]
                axes.plot([point.parameters] * 2, ends, color=color, linewidth=0.9, alpha=0.6)
            _dot(axes, (point.parameters, point.error), area, point.row, numbers)
            _number(axes, (point.parameters, point.error), rows, point.row)
        for i, (family, fit) in enumerate(trend.fits):
            _draw_fit(axes, fit, *_size_range(trend.points, family), list(_STROKES.values())[i % len(_STROKES)])
        axes.set_xlim(smallest / 1.5, largest * 1.5)
        scale = 100 if trend.column.is_share else 1
        _log_ticks(axes.xaxis, smallest / 1.5, largest * 1.5, lambda size: parameters_text(round(size)))
        _log_ticks(axes.yaxis, *axes.get_ylim(), lambda error: f"{scale * error:.3g}")
        axes.set_xlabel("parameters")
        axes.set_ylabel("error, %" if trend.column.is_share else trend.column.title)

    return draw


def _size_range(points: Sequence[SizePoint], family: str = "") -> tuple[int, int]:
    """The smallest and the largest model, of one family or of all."""
    sizes = [point.parameters for point in points if not family or point.row.family == family]
    return min(sizes), max(sizes)


def _draw_fit(axes: "Axes", fit: PowerLawFit, smallest: int, largest: int, style: object) -> None:
    sizes = np.geomspace(smallest / 1.25, largest * 1.25, 24)
    axes.plot(sizes, [fit.at(size / MILLION) for size in sizes], color=INK, linewidth=1.0, linestyle=style, zorder=1)


def _log_ticks(axis: "Axis", low: float, high: float, label: Callable[[float], str]) -> None:
    """Round numbers of powers of ten, or on a short axis round numbers at all."""
    from matplotlib.ticker import NullLocator

    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if high / low > 200 else (1, 3) if high / low > 15 else (1, 2, 5)
    round_ = [step * 10.0**power for power in powers for step in steps] if high / low > 5 else _round_numbers(low, high)
    ticks = [tick for tick in round_ if low <= tick <= high]
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(ticks, labels=[label(tick) for tick in ticks])
