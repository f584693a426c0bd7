"""Exhibits of a study as figures, for the page and as files beside the run."""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from vitadel.report.exhibits import Bars, Exhibit, Floats, Heat, Line, Lines, Picture, Pictures, Table, extent
from vitadel.report.figures.base import INK, MARKERS, PALETTE, Drawing, save, styled, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

Drawn = Lines | Heat | Pictures | Bars
_Dtype = TypeVar("_Dtype", bound=np.generic)

_DASHED: tuple[float, tuple[float, float]] = (0, (5, 3))
_DOTTED: tuple[float, tuple[float, float]] = (0, (1.5, 2))
_PAGE = 11.6  # inches that the page has for a figure
_MOST_MARKS = 30
_ROOM = 50  # letters that stand side by side below a panel
_MOST_TICKS = 26
_FEW_TICKS = 8
_SIDES = (0.7, 0.95)  # the least and the greatest side of a picture in a grid
_LETTER = 0.052  # inches that a letter of a note takes
_GAP = 0.06
_SHADE = 0.22  # how dark a black pixel is under a diverging map
_COVER = 0.85  # how much of a picture the strongest value of a sequential map hides
_DIVERGING, _SEQUENTIAL, _HOT = "RdBu_r", "viridis", "inferno"


def exhibit_drawing(exhibit: Drawn, name: str) -> Drawing:
    """A figure for the page; `name` tells it from all others there."""
    with _figure(exhibit, name) as figure:
        return Drawing(exhibit.title, svg(figure), f"{exhibit.title}. {exhibit.caption}", figure.get_figwidth())


def write_exhibits(exhibits: Sequence[Exhibit], folder: Path) -> list[Path]:
    """Every exhibit but tables as `NN-slug.png` and `.pdf`."""
    written = []
    for number, exhibit in enumerate(exhibits, 1):
        if not isinstance(exhibit, Table):
            with _figure(exhibit, f"file-{number}") as figure:
                written += save(figure, folder / f"{number:02d}-{slug(exhibit.title)}")
    return written


@contextmanager
def _figure(exhibit: Drawn, name: str) -> "Iterator[Figure]":
    with styled(name, (4.6, 3.1)) as figure:
        if isinstance(exhibit, Lines):
            _draw_lines(figure, exhibit)
        elif isinstance(exhibit, Bars):
            _draw_bars(figure, exhibit)
        elif isinstance(exhibit, Heat):
            _draw_heat(figure, exhibit)
        else:
            _draw_pictures(figure, exhibit)
        yield figure


def slug(title: str) -> str:
    """A title as a part of a file's name."""
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))[:48].strip("-") or "exhibit"


def _draw_lines(figure: "Figure", exhibit: Lines) -> None:
    axes = figure.add_subplot()
    for place, line in enumerate(exhibit.lines):
        _draw_line(axes, line, place if line.color is None else line.color)
    if exhibit.log_x:
        _log_axis(axes, "x", [line.x for line in exhibit.lines])
    elif all(np.all(line.x[np.isfinite(line.x)] % 1 == 0) for line in exhibit.lines):
        axes.locator_params(axis="x", integer=True)
    if exhibit.log_y:
        _log_axis(axes, "y", [])
    axes.set_xlabel(exhibit.x_label)
    axes.margins(x=0.03)
    _finish(figure, axes, exhibit, len(exhibit.lines))


def _log_axis(axes: "Axes", side: Literal["x", "y"], at: Sequence[Floats]) -> None:
    """Powers of ten in plain figures, or the values themselves where they are few."""
    from matplotlib.ticker import NullLocator

    axes.set(**{f"{side}scale": "log"})
    axis = axes.xaxis if side == "x" else axes.yaxis
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    if at and len(few := np.unique(np.concatenate(at))) <= _FEW_TICKS:
        axis.set_ticks(list(few))


def _draw_line(axes: "Axes", line: Line, number: int) -> None:
    place = number % len(PALETTE)
    color, style = PALETTE[place], _DASHED if line.dashed else "-"
    marker = MARKERS[place] if len(line.x) <= _MOST_MARKS else ""
    if len(line.low) and len(line.high):
        axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.16, linewidth=0)
    (drawn,) = axes.plot(line.x, line.y, color=color, linestyle=style, label=line.name, marker=marker, markersize=4)
    drawn.set_markerfacecolor("none" if line.dashed else color)


def _draw_bars(figure: "Figure", exhibit: Bars) -> None:
    series, groups = len(exhibit.bars), len(exhibit.groups)
    figure.set_figwidth(min(_PAGE, max(4.6, 0.16 * series * groups + 1.2)))
    axes = figure.add_subplot()
    at, width = np.arange(groups), 0.8 / max(1, series)
    for place, bar in enumerate(exhibit.bars):
        color = PALETTE[place % len(PALETTE)]
        center = at + (place - (series - 1) / 2) * width
        axes.bar(center, bar.values, 0.92 * width, color=color, alpha=0.85, label=bar.name, linewidth=0)
        if len(bar.low) and len(bar.high):
            reach = np.clip(np.stack([bar.values - bar.low, bar.high - bar.values]), 0, None)
            axes.errorbar(center, bar.values, reach, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
    long = max((len(group) for group in exhibit.groups), default=0) * groups > 12 * figure.get_figwidth()
    axes.set_xticks(at, exhibit.groups, rotation=40 if long else 0, ha="right" if long else "center")
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", length=0)
    _finish(figure, axes, exhibit, series)


def _finish(figure: "Figure", axes: "Axes", exhibit: Lines | Bars, series: int) -> None:
    axes.set_ylabel(exhibit.y_label)
    for name, at in exhibit.references:
        axes.axhline(at, color=INK, linewidth=0.9, linestyle=_DOTTED, zorder=1)
        axes.annotate(name, (1.01, at), xycoords=("axes fraction", "data"), ha="left", va="center", fontsize=7.5)
    if exhibit.y_range is not None:
        axes.set_ylim(*exhibit.y_range)
    if series > 1:
        longest = max(len(str(text)) for text in axes.get_legend_handles_labels()[1])
        columns = max(1, min(series, int(figure.get_figwidth() * 17 / (longest + 8))))
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=8, handlelength=2.6)
        figure.set_figheight(figure.get_figheight() + 0.19 * math.ceil(series / columns))


def _draw_heat(figure: "Figure", exhibit: Heat) -> None:
    count, (rows, columns) = len(exhibit.matrices), _largest([matrix for _, matrix in exhibit.matrices])
    cell = 0.46 if exhibit.digits is not None else 0.25
    across, down = _within(cell * columns, 1.6, 4.6), _within(cell * rows, 1.0, 4.6)
    if exhibit.digits is None and columns == rows:
        across = down = max(across, down)
    beside = max(1, min(count, int((_PAGE - 1.2) / (across + 0.5))))
    lines = math.ceil(count / beside)
    labels = 0.075 * max((len(name) for name in exhibit.rows), default=3) + 0.35
    names = 0.05 * max((len(name) for name in exhibit.columns), default=0) + 0.3
    figure.set_size_inches(beside * (across + 0.3) + labels + 0.9, lines * (down + 0.3) + names + 0.2)
    panels = figure.subplots(lines, beside, squeeze=False, sharex=False, sharey=False).ravel()
    norm, colors = _heat_scale(exhibit), _DIVERGING if exhibit.center is not None else _SEQUENTIAL
    for number, (axes, (name, values)) in enumerate(zip(panels, exhibit.matrices, strict=False)):
        shown = axes.imshow(values, cmap=colors, norm=norm, interpolation="none", aspect="auto")
        axes.set_title(name, loc="left", fontsize=8.5)
        _ticks(axes, exhibit, values, first=number % beside == 0, last=number + beside >= count)
        if exhibit.digits is not None:
            _print_values(axes, values, shown.to_rgba(values), exhibit.digits)
    for axes in panels[count:]:
        axes.set_axis_off()
    bar = figure.colorbar(shown, ax=list(panels), fraction=0.05, pad=0.02, aspect=22)
    _plain_bar(bar.ax, exhibit.value_label)
    figure.supxlabel(exhibit.column_label, fontsize=8.5)
    figure.supylabel(exhibit.row_label, fontsize=8.5)


def _heat_scale(exhibit: Heat) -> "Normalize":
    from matplotlib.colors import CenteredNorm, Normalize

    least, greatest = extent([values for _, values in exhibit.matrices])
    low = least if exhibit.low is None else exhibit.low
    high = greatest if exhibit.high is None else exhibit.high
    if exhibit.center is None:
        return Normalize(low, high if high > low else low + 1e-12)
    reach = max(abs(high - exhibit.center), abs(exhibit.center - low))
    return CenteredNorm(exhibit.center, reach or 1e-12)


def _ticks(axes: "Axes", exhibit: Heat, values: Floats, *, first: bool, last: bool) -> None:
    """Names where there is room for them; row names stand at the left alone, column names at the bottom."""
    rows, columns = values.shape
    sides = ((axes.set_yticks, exhibit.rows, rows, first), (axes.set_xticks, exhibit.columns, columns, last))
    for place, names, count, shown in sides:
        every = math.ceil(count / _MOST_TICKS)
        at = list(range(0, count, every))
        place(at, [names[i] if names else str(i) for i in at] if shown else [])
    shown_names = [label.get_text() for label in axes.get_xticklabels()]
    if max(map(len, shown_names), default=0) > 4 or sum(map(len, shown_names)) > _ROOM:
        for label in axes.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")
    axes.tick_params(length=0, labelsize=7.5)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _print_values(axes: "Axes", values: Floats, shades: NDArray[np.float64], digits: int) -> None:
    for (row, column), value in np.ndenumerate(values):
        if math.isfinite(value):
            dark = shades[row, column, :3] @ (0.299, 0.587, 0.114) < 0.5
            color = "white" if dark else "black"
            axes.text(column, row, f"{value:.{digits}f}", ha="center", va="center", fontsize=7, color=color)


def _draw_pictures(figure: "Figure", exhibit: Pictures) -> None:
    """A grid laid out in inches: pictures of one size, names at the left and on top, one scale at the right."""
    from matplotlib.colors import Normalize

    rows, columns = len(exhibit.cells), len(exhibit.cells[0])
    cells = [cell for row in exhibit.cells for cell in row if cell is not None]
    left = 0.072 * max((len(name) for name in exhibit.rows), default=0) + 0.12
    right, top = (0.72 if _mapped(cells) else 0.06), (0.24 if exhibit.columns else 0.06)
    longest = max((len(cell.note) for cell in cells), default=0)
    side = _within((_PAGE - left - right) / columns - _GAP, _SIDES[0], max(_SIDES[1], _LETTER * longest))
    tall, note = side * _tallness(cells), 0.17 if any(cell.note for cell in cells) else 0.0
    wide, high = left + columns * (side + _GAP) + right, top + rows * (tall + note + _GAP) + 0.06
    figure.set_layout_engine("none")
    figure.set_size_inches(wide, high)
    norm, colors = Normalize(exhibit.low, exhibit.high), _DIVERGING if exhibit.diverging else _HOT
    for row, column in np.ndindex(rows, columns):
        x, y = left + column * (side + _GAP), high - top - row * (tall + note + _GAP) - tall
        axes = figure.add_axes((x / wide, y / high, side / wide, tall / high))
        _bare(axes)
        cell = exhibit.cells[row][column]
        if cell is not None:
            painted = _painted(cell, norm, colors, shaded=exhibit.diverging)
            axes.imshow(painted, interpolation="none", aspect="auto")
            axes.set_xlabel(cell.note, fontsize=7, labelpad=2)
        if row == 0 and exhibit.columns:
            axes.set_title(exhibit.columns[column], fontsize=8, pad=3)
        if column == 0 and exhibit.rows:
            axes.set_ylabel(exhibit.rows[row], fontsize=8, rotation=0, ha="right", va="center", labelpad=4)
    if _mapped(cells):
        long = min(high - top - note - 0.12, 2.6)
        box = ((wide - right + 0.04) / wide, (high - top - long) / high, 0.11 / wide, long / high)
        _scale(figure, box, norm, colors, exhibit.scale_label)


def _scale(
    figure: "Figure", box: tuple[float, float, float, float], norm: "Normalize", colors: str, label: str
) -> None:
    from matplotlib.cm import ScalarMappable

    axes = figure.add_axes(box)
    figure.colorbar(ScalarMappable(norm, colors), cax=axes)
    _plain_bar(axes, label)


def _mapped(cells: Sequence[Picture]) -> bool:
    return any(cell.overlay is not None for cell in cells)


def _painted(cell: Picture, norm: "Normalize", colors: str, *, shaded: bool) -> NDArray[np.uint8]:
    """The picture with its map over it, every patch of the map a plain block.

    Under a diverging map the picture is only a shade, which leaves the hues as they are on the scale. A sequential map
    covers the gray picture the more the stronger it is.
    """
    from matplotlib import colormaps

    if cell.overlay is None:
        assert cell.pixels is not None
        return cell.pixels
    height, width = np.maximum(cell.overlay.shape, (1, 1) if cell.pixels is None else cell.pixels.shape[:2])
    share = np.clip(norm(_stretched(cell.overlay, height, width)), 0, 1)
    paint = colormaps[colors](share)[:, :, :3]
    if cell.pixels is None:
        return _bytes(paint)
    gray = (_stretched(cell.pixels, height, width) @ np.array([0.299, 0.587, 0.114]) / 255)[:, :, None]
    cover = _COVER * np.asarray(share)[:, :, None]
    return _bytes(paint * (1 - _SHADE * (1 - gray)) if shaded else cover * paint + (1 - cover) * gray)


def _stretched(values: NDArray[_Dtype], height: int, width: int) -> NDArray[_Dtype]:
    """Every value as a block; sizes that do not divide give blocks that differ by one."""
    rows = np.arange(height) * values.shape[0] // height
    columns = np.arange(width) * values.shape[1] // width
    return values[rows][:, columns]


def _bytes(shares: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.floor(255 * np.clip(shares, 0, 1) + 0.5).astype(np.uint8)


def _bare(axes: "Axes") -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _plain_bar(axes: "Axes", label: str) -> None:
    axes.set_ylabel(label, fontsize=8)
    axes.tick_params(labelsize=7.5, length=2)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _tallness(cells: Sequence[Picture]) -> float:
    """Height over width of the pictures, which all have the shape of the first."""
    for cell in cells:
        shape = (cell.overlay if cell.pixels is None else cell.pixels).shape  # type: ignore[union-attr]
        return float(shape[0] / shape[1])
    return 1.0


def _largest(matrices: Sequence[Floats]) -> tuple[int, int]:
    return max(len(one) for one in matrices), max(one.shape[1] for one in matrices)


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
