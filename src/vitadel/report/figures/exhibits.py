"""Exhibits of studies and suites as figures, for the page and as files in the run folder."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from vitadel.core.errors import UsageError
from vitadel.core.numeric import LUMA
from vitadel.report.figures.style import DASHED, DOTTED, INK, MARKERS, PALETTE, Drawing, save_figure, styled, svg
from vitadel.report.reader import read_study_of
from vitadel.runs.exhibits import (
    Bars,
    Exhibit,
    Heatmap,
    Histogram,
    Histograms,
    Line,
    Lines,
    Picture,
    Pictures,
    Scale,
    Table,
)
from vitadel.runs.schema import read_suite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]  # nan where there is a gap
_Dtype = TypeVar("_Dtype", bound=np.generic)

_PAGE_INCHES = 11.6  # maximum width of a figure in inches
_MOST_MARKERS = 30
_LETTERS_PER_PANEL = 50  # that fit in a line below a panel
_MOST_TICKS, _FEW_TICKS = 26, 8
_SIDES = (0.7, 0.95)  # minimum and maximum side of a picture in a grid, in inches
_LETTER_INCHES = 0.052  # width of a letter of a note in inches
_GAP = 0.06
_SHADE_ALPHA = 0.22  # how dark a black pixel is under a diverging map
_COVER_ALPHA = 0.85  # how much of a picture the strongest value of a sequential map hides
_GRAY = np.array(LUMA)
_DIVERGING, _SEQUENTIAL, _HOT = "RdBu_r", "viridis", "inferno"
# panels of histograms in a row, and the share of the highest bin from which a bin is visible
_PANELS_PER_ROW, _VISIBLE = 4, 1e-4


def exhibit_drawing(exhibit: Exhibit, name: str) -> Drawing:
    """A figure of an exhibit that is not a table, for the page; `name` must be unique on it."""
    with _figure(exhibit, name) as figure:
        return Drawing(exhibit.title, svg(figure), f"{exhibit.title}. {exhibit.caption}", figure.get_figwidth())


def write_figures(folder: Path) -> list[Path]:
    """Draw the exhibits of a run as PNG and PDF: those of its study in `figures`, of each suite in a subfolder.

    Args:
        folder: The run folder.

    Returns:
        The files; none if no finished result has exhibits.
    """
    study = read_study_of(folder)
    written = _write_exhibits(study.exhibits, folder / "figures") if study else []
    for path in sorted(folder.glob("eval/*/summary.json")):
        written += _write_exhibits(read_suite(path).exhibits, folder / "figures" / path.parent.name)
    return written


def write_exhibit(exhibit: Exhibit, path: Path) -> Path:
    """Draw one exhibit that is not a table as a PNG file.

    Args:
        exhibit: The exhibit.
        path: The file, with the suffix .png.

    Returns:
        The file.
    """
    if path.suffix != ".png":
        raise UsageError(
            f"pictures are drawn into a .png file, got {str(path)!r}. Write {str(path.with_suffix('.png'))!r}."
        )
    with _figure(exhibit, "file") as figure:
        return save_figure(figure, path, (".png",))[0]


def _write_exhibits(exhibits: Sequence[Exhibit], folder: Path) -> list[Path]:
    """Every exhibit but tables as `NN-figure_name.png` and `.pdf`."""
    written = []
    for number, exhibit in enumerate(exhibits, 1):
        if not isinstance(exhibit, Table):
            with _figure(exhibit, f"file-{number}") as figure:
                written += save_figure(figure, folder / f"{number:02d}-{figure_name(exhibit.title)}")
    return written


@contextmanager
def _figure(exhibit: Exhibit, name: str) -> "Iterator[Figure]":
    draw: dict[type, Callable[[Figure, Any], None]] = {
        Lines: _draw_lines,
        Bars: _draw_bars,
        Heatmap: _draw_heat,
        Histograms: _draw_histograms,
        Pictures: _draw_pictures,
    }
    with styled(name, (4.6, 3.1)) as figure:
        draw[type(exhibit)](figure, exhibit)
        yield figure


def with_common_range(exhibits: Sequence[Exhibit]) -> list[Exhibit]:
    """The same exhibit of several runs with one range for all."""
    ranges = [_range(one) for one in exhibits]
    known = [one for one in ranges if one is not None]
    if len(known) < max(2, len(ranges)):
        return list(exhibits)
    low, high = min(one[0] for one in known), max(one[1] for one in known)
    return [_with_range(one, low, high) for one in exhibits]


def _range(exhibit: Exhibit) -> tuple[float, float] | None:
    """The range set for an exhibit, otherwise that of its values; None if it has no range."""
    if isinstance(exhibit, Pictures):
        return exhibit.low, exhibit.high
    if isinstance(exhibit, Heatmap):
        low, high = _extent([matrix.values for matrix in exhibit.matrices])
        return (low if exhibit.low is None else exhibit.low), (high if exhibit.high is None else exhibit.high)
    if isinstance(exhibit, Lines):
        drawn: list[object] = [part for line in exhibit.lines for part in (line.y, line.low, line.high)]
    elif isinstance(exhibit, Bars):
        drawn = [part for bar in exhibit.bars for part in (bar.values, bar.low, bar.high)]
    else:
        return None
    return exhibit.y_range or _extent([*drawn, [value for _, value in exhibit.references]])


def _with_range(exhibit: Exhibit, low: float, high: float) -> Exhibit:
    if isinstance(exhibit, Heatmap | Pictures):
        return replace(exhibit, low=low, high=high)
    if isinstance(exhibit, Table | Histograms) or exhibit.y_range == (low, high):
        return exhibit
    if isinstance(exhibit, Bars):
        margin = 0.05 * (high - low)
        return replace(exhibit, y_range=(min(0.0, low - margin * (low < 0)), high + margin))
    if exhibit.log_y and low > 0:
        factor = (high / low) ** 0.05
        return replace(exhibit, y_range=(low / factor, high * factor))
    margin = 0.05 * (high - low) or 0.05 * (abs(high) or 1.0)
    return replace(exhibit, y_range=(low - margin, high + margin))


def _floats(values: Any) -> Floats:
    """Numbers with nan where there is None."""
    return np.asarray(values, np.float64)


def _extent(parts: Sequence[object]) -> tuple[float, float]:
    """The minimum and maximum of the finite values; (0, 1) if there are none."""
    flat = np.concatenate([_floats(part).ravel() for part in parts] or [np.empty(0)])
    finite = flat[np.isfinite(flat)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)


def figure_name(title: str) -> str:
    """The title of an exhibit as it appears in the name of its file."""
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))[:48].strip("-") or "exhibit"


def _draw_lines(figure: "Figure", exhibit: Lines) -> None:
    axes = figure.add_subplot()
    for i, line in enumerate(exhibit.lines):
        _draw_line(axes, line, i if line.color is None else line.color)
    x = np.concatenate([_floats(line.x) for line in exhibit.lines] or [np.empty(0)])
    if exhibit.log_x:
        _log_axis(axes, "x", x)
    elif np.all(x[np.isfinite(x)] % 1 == 0):
        axes.locator_params(axis="x", integer=True)
    if exhibit.log_y:
        _log_axis(axes, "y", np.empty(0))
    axes.set_xlabel(exhibit.x_label)
    axes.margins(x=0.03)
    _finish(figure, axes, exhibit, len(exhibit.lines))


def _log_axis(axes: "Axes", side: Literal["x", "y"], values: Floats) -> None:
    """A logarithmic axis with plain decimal labels, at the values themselves if there are few."""
    from matplotlib.ticker import NullLocator

    axes.set(**{f"{side}scale": "log"})
    axis = axes.xaxis if side == "x" else axes.yaxis
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    if len(values) and len(few := np.unique(values)) <= _FEW_TICKS:
        axis.set_ticks(list(few))


def _draw_line(axes: "Axes", line: Line, number: int) -> None:
    number %= len(PALETTE)
    x, color, style = _floats(line.x), PALETTE[number], DASHED if line.dashed else "-"
    marker = MARKERS[number] if len(x) <= _MOST_MARKERS else ""
    if len(line.low) and len(line.high):
        axes.fill_between(x, _floats(line.low), _floats(line.high), color=color, alpha=0.16, linewidth=0)
    (drawn,) = axes.plot(x, _floats(line.y), color=color, linestyle=style, label=line.name, marker=marker, markersize=4)
    drawn.set_markerfacecolor("none" if line.dashed else color)


def _draw_bars(figure: "Figure", exhibit: Bars) -> None:
    series, groups = len(exhibit.bars), len(exhibit.groups)
    figure.set_figwidth(min(_PAGE_INCHES, max(4.6, 0.16 * series * groups + 1.2)))
    axes = figure.add_subplot()
    places, width = np.arange(groups), 0.8 / max(1, series)
    for i, bar in enumerate(exhibit.bars):
        values, color = _floats(bar.values), PALETTE[i % len(PALETTE)]
        center = places + (i - (series - 1) / 2) * width
        axes.bar(center, values, 0.92 * width, color=color, alpha=0.85, label=bar.name, linewidth=0)
        if len(bar.low) and len(bar.high):
            reach = np.clip(np.stack([values - _floats(bar.low), _floats(bar.high) - values]), 0, None)
            axes.errorbar(center, values, reach, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
    long = max((len(group) for group in exhibit.groups), default=0) * groups > 12 * figure.get_figwidth()
    axes.set_xticks(places, exhibit.groups, rotation=40 if long else 0, ha="right" if long else "center")
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", length=0)
    _finish(figure, axes, exhibit, series)


def _finish(figure: "Figure", axes: "Axes", exhibit: Lines | Bars, series: int) -> None:
    axes.set_ylabel(exhibit.y_label)
    for name, value in exhibit.references:
        axes.axhline(value, color=INK, linewidth=0.9, linestyle=DOTTED, zorder=1)
        axes.annotate(name, (1.01, value), xycoords=("axes fraction", "data"), ha="left", va="center", fontsize=7.5)
    if exhibit.y_range is not None:
        axes.set_ylim(*exhibit.y_range)
    if series > 1:
        longest = max(len(str(text)) for text in axes.get_legend_handles_labels()[1])
        columns = max(1, min(series, int(figure.get_figwidth() * 17 / (longest + 8))))
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=8, handlelength=2.6)
        figure.set_figheight(figure.get_figheight() + 0.19 * math.ceil(series / columns))


def _draw_heat(figure: "Figure", exhibit: Heatmap) -> None:
    matrices = [_floats(matrix.values) for matrix in exhibit.matrices]
    count, rows, columns = len(matrices), max(map(len, matrices)), max(one.shape[1] for one in matrices)
    cell = 0.46 if exhibit.digits is not None else 0.25
    across, down = _within(cell * columns, 1.6, 4.6), _within(cell * rows, 1.0, 4.6)
    if exhibit.digits is None and columns == rows:
        across = down = max(across, down)
    per_row = max(1, min(count, int((_PAGE_INCHES - 1.2) / (across + 0.5))))
    lines = math.ceil(count / per_row)
    labels = 0.075 * max((len(name) for name in exhibit.rows), default=3) + 0.35
    names = 0.05 * max((len(name) for name in exhibit.columns), default=0) + 0.3
    figure.set_size_inches(per_row * (across + 0.3) + labels + 0.9, lines * (down + 0.3) + names + 0.2)
    panels = figure.subplots(lines, per_row, squeeze=False, sharex=False, sharey=False).ravel()
    norm, colors = _heat_scale(exhibit), _DIVERGING if exhibit.center is not None else _SEQUENTIAL
    for number, (axes, values) in enumerate(zip(panels, matrices, strict=False)):
        shown = axes.imshow(values, cmap=colors, norm=norm, interpolation="none", aspect="auto")
        axes.set_title(exhibit.matrices[number].name, loc="left", fontsize=8.5)
        _ticks(axes, exhibit, values, first=number % per_row == 0, last=number + per_row >= count)
        if exhibit.digits is not None:
            _print_values(axes, values, shown.to_rgba(values), exhibit.digits)
    for axes in panels[count:]:
        axes.set_axis_off()
    bar = figure.colorbar(shown, ax=list(panels), fraction=0.05, pad=0.02, aspect=22)
    _plain_bar(bar.ax, exhibit.value_label)
    figure.supxlabel(exhibit.column_label, fontsize=8.5)
    figure.supylabel(exhibit.row_label, fontsize=8.5)


def _heat_scale(exhibit: Heatmap) -> "Normalize":
    from matplotlib.colors import CenteredNorm, Normalize

    low, high = _range(exhibit) or (0.0, 1.0)
    if exhibit.center is None:
        return Normalize(low, high if high > low else low + 1e-12)
    reach = max(abs(high - exhibit.center), abs(exhibit.center - low))
    return CenteredNorm(exhibit.center, reach or 1e-12)


def _ticks(axes: "Axes", exhibit: Heatmap, values: Floats, *, first: bool, last: bool) -> None:
    """Tick labels, as far as there is space; row names only at the left, column names only at the bottom."""
    rows, columns = values.shape
    sides = ((axes.set_yticks, exhibit.rows, rows, first), (axes.set_xticks, exhibit.columns, columns, last))
    for set_ticks, names, count, shown in sides:
        ticks = list(range(0, count, math.ceil(count / _MOST_TICKS)))
        set_ticks(ticks, [names[i] if names else str(i) for i in ticks] if shown else [])
    shown_names = [label.get_text() for label in axes.get_xticklabels()]
    if max(map(len, shown_names), default=0) > 4 or sum(map(len, shown_names)) > _LETTERS_PER_PANEL:
        for label in axes.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")
    axes.tick_params(length=0, labelsize=7.5)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _print_values(axes: "Axes", values: Floats, shades: NDArray[np.float64], digits: int) -> None:
    for (row, column), value in np.ndenumerate(values):
        if math.isfinite(value):
            dark = shades[row, column, :3] @ _GRAY < 0.5
            color = "white" if dark else "black"
            axes.text(column, row, f"{value:.{digits}f}", ha="center", va="center", fontsize=7, color=color)


def _draw_pictures(figure: "Figure", exhibit: Pictures) -> None:
    """A grid of pictures of the same size, with names at the left and at the top and one scale at the right."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    rows, columns = len(exhibit.cells), len(exhibit.cells[0])
    cells = [cell for row in exhibit.cells for cell in row if cell is not None]
    left = 0.072 * max((len(name) for name in exhibit.rows), default=0) + 0.12
    right, top = (0.72 if _mapped(cells) else 0.06), (0.24 if exhibit.columns else 0.06)
    longest = max((len(cell.note) for cell in cells), default=0)
    side = _within((_PAGE_INCHES - left - right) / columns - _GAP, _SIDES[0], max(_SIDES[1], _LETTER_INCHES * longest))
    tall, note = side * _tallness(cells), 0.17 if any(cell.note for cell in cells) else 0.0
    wide, high = left + columns * (side + _GAP) + right, top + rows * (tall + note + _GAP) + 0.06
    figure.set_layout_engine("none")
    figure.set_size_inches(wide, high)
    diverging = exhibit.scale is Scale.DIVERGING
    norm, colors = Normalize(exhibit.low, exhibit.high), _DIVERGING if diverging else _HOT
    for row, column in np.ndindex(rows, columns):
        x, y = left + column * (side + _GAP), high - top - row * (tall + note + _GAP) - tall
        axes = figure.add_axes((x / wide, y / high, side / wide, tall / high))
        _bare(axes)
        cell = exhibit.cells[row][column]
        if cell is not None:
            painted = paint(cell, norm, colors, shaded=diverging)
            axes.imshow(painted, interpolation="none", aspect="auto")
            axes.set_xlabel(cell.note, fontsize=7, labelpad=2)
        if row == 0 and exhibit.columns:
            axes.set_title(exhibit.columns[column], fontsize=8, pad=3)
        if column == 0 and exhibit.rows:
            axes.set_ylabel(exhibit.rows[row], fontsize=8, rotation=0, ha="right", va="center", labelpad=4)
    if _mapped(cells):
        long = min(high - top - note - 0.12, 2.6)
        axes = figure.add_axes(((wide - right + 0.04) / wide, (high - top - long) / high, 0.11 / wide, long / high))
        figure.colorbar(ScalarMappable(norm, colors), cax=axes)
        _plain_bar(axes, exhibit.scale_label)


def _mapped(cells: Sequence[Picture]) -> bool:
    return any(cell.overlay is not None for cell in cells)


def paint(cell: Picture, norm: "Normalize", colors: str, *, shaded: bool) -> NDArray[np.uint8]:
    """The picture with its map as an overlay, every cell of the map as a block of one color.

    Args:
        cell: The picture.
        norm: Maps values to [0, 1].
        colors: The name of a color map.
        shaded: Whether the picture only darkens the map, which preserves the hues of the scale; otherwise the opacity
            of the map over the gray picture increases with its value.

    Returns:
        Bytes [H, W, 3].
    """
    from matplotlib import colormaps

    pixels = cell.pixels
    if pixels is not None and pixels.ndim == 2:
        pixels = np.repeat(pixels[:, :, None], 3, 2)
    if cell.overlay is None:
        assert pixels is not None
        return pixels
    height, width = cell.overlay.shape if pixels is None else np.maximum(cell.overlay.shape, pixels.shape[:2])
    share = np.clip(norm(_stretched(cell.overlay, height, width)), 0, 1)
    color = colormaps[colors](share)[:, :, :3]
    if pixels is None:
        return _bytes(color)
    gray = (_stretched(pixels, height, width) @ _GRAY / 255)[:, :, None]
    cover = _COVER_ALPHA * np.asarray(share)[:, :, None]
    return _bytes(color * (1 - _SHADE_ALPHA * (1 - gray)) if shaded else cover * color + (1 - cover) * gray)


def _stretched(values: NDArray[_Dtype], height: int, width: int) -> NDArray[_Dtype]:
    """Nearest-neighbor upsampling; blocks differ by one pixel if the size is not a multiple."""
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
    """Height divided by width of the first picture; all have the same shape."""
    for cell in cells:
        shape = (cell.overlay if cell.pixels is None else cell.pixels).shape  # type: ignore[union-attr]
        return float(shape[0] / shape[1])
    return 1.0


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _draw_histograms(figure: "Figure", exhibit: Histograms) -> None:
    """One panel per histogram, all with the same horizontal axis, without empty bins at its ends."""
    count, edges = len(exhibit.panels), _floats(exhibit.edges)
    across = min(_PANELS_PER_ROW, count)
    figure.set_size_inches(2.05 * across + 0.5, 1.35 * -(-count // across) + 0.65)
    panels = figure.subplots(-(-count // across), across, sharex=True, squeeze=False).ravel()
    low, high = _visible(exhibit, edges)
    for number, (axes, panel) in enumerate(zip(panels, exhibit.panels, strict=False)):
        _draw_histogram(axes, exhibit, panel, edges)
        if exhibit.log_x:
            axes.set_xscale("log")
            axes.minorticks_off()
            decades = _decades(low, high)
            axes.set_xticks(decades, [f"{x:g}" if 1e-2 <= x <= 1e3 else f"1e{round(np.log10(x))}" for x in decades])
        axes.set_xlim(low, high)
        axes.tick_params(labelsize=7, length=2, labelbottom=number + across >= count)
    for axes in panels[count:]:
        axes.set_axis_off()
    figure.supxlabel(exhibit.x_label, fontsize=8)
    figure.supylabel(exhibit.y_label, fontsize=8)
    if len(exhibit.series) > 1:
        figure.legend(panels[0].patches, exhibit.series, loc="outside upper center", ncols=4, frameon=False, fontsize=8)


def _draw_histogram(axes: "Axes", exhibit: Histograms, panel: Histogram, edges: Floats) -> None:
    names = list(dict.fromkeys(name for name, _ in exhibit.references))
    for i, shares in enumerate(panel.shares):
        values = np.nan_to_num(_floats(shares))
        if i == 0:
            axes.stairs(values, edges, fill=True, color=PALETTE[0], alpha=0.55, linewidth=0)
        else:
            axes.stairs(values, edges, color=INK, linewidth=0.9, linestyle=("-", "--", ":")[(i - 1) % 3])
    for name, x in exhibit.references:
        first = names.index(name)
        axes.axvline(
            x, color=PALETTE[1 + first % (len(PALETTE) - 1)], linewidth=0.8, linestyle=("-", DOTTED)[first % 2]
        )
    for i, name in enumerate(names):  # each next to its last line, on the side where no other is
        x = max(x for label, x in exhibit.references if label == name)
        side: Literal["left", "right"] = "left" if i == len(names) - 1 else "right"
        axes.annotate(f" {name} ", (x, 1.01), xycoords=("data", "axes fraction"), ha=side, va="bottom", fontsize=6.5)
    axes.set_title(panel.name, loc="left", fontsize=8, pad=10 if names else 4)
    axes.locator_params(axis="y", nbins=3)
    axes.margins(y=0.05)
    axes.set_ylim(bottom=0)


def _visible(exhibit: Histograms, edges: Floats) -> tuple[float, float]:
    """The range from the first to the last visible bin that includes all references."""
    total = np.nansum([_floats(shares) for panel in exhibit.panels for shares in panel.shares], axis=0)
    used = np.flatnonzero(total > _VISIBLE * max(1e-12, float(total.max())))
    ends = [edges[used[0]], edges[used[-1] + 1]] if len(used) else [edges[0], edges[-1]]
    values = [x for _, x in exhibit.references]
    wider = [2 * x if exhibit.log_x else x for x in values]
    return float(min([*ends, *values])), float(max([*ends, *wider]))


def _decades(low: float, high: float) -> list[float]:
    """At most six powers of ten between the ends."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = max(1, -(-(last - first + 1) // 6))
    return [10.0**power for power in range(first, last + 1) if power % step == 0]
