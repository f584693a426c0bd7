"""Figures of a study of gradient masking, for the page and as files beside the run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitadel.report.figures.base import INK, MARKERS, PALETTE, Drawing, save, styled, svg
from vitadel.report.masking import Gaps, Masking, Points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MERGED = 4  # bins of the study in a bin of the drawing
_DASHED: tuple[float, tuple[float, float]] = (0, (5, 3))
_DOTTED: tuple[float, tuple[float, float]] = (0, (1.5, 2))


def gap_drawing(study: Masking, number: int, columns: int) -> Drawing:
    """Histograms of gaps, one small panel per attention."""
    with _gap_figure(study, number, columns) as figure:
        drawn = svg(figure)
    worst = max(study.plain, key=lambda one: one.beyond[-1])
    told = f"{len(study.plain)} attentions; most rows beyond float32 in {worst.name}: {worst.beyond[-1]:.1%}"
    return Drawing("Gap between the two largest scores of a row", drawn, f"Histograms of gaps per attention. {told}.")


def curve_drawings(studies: Sequence[tuple[int, Masking]]) -> list[Drawing]:
    """Accuracy against eps, iterations and rescaled attentions, one drawing per norm, with one color per model."""
    norms: dict[str, list[tuple[int, Masking]]] = {}
    for number, study in studies:
        norms.setdefault(study.norm, []).append((number, study))
    drawn = []
    for kind, (title, draw) in _CURVES.items():
        for norm, same in norms.items():
            with styled(f"masking-{kind}-{norm}", (3.9, 2.7)) as figure:
                draw(figure.add_subplot(), same)
                named = title if len(norms) == 1 else f"{title} ({norm})"
                drawn.append(Drawing(named, svg(figure), _alt(kind, same)))
    return drawn


def write_masking(study: Masking, folder: Path) -> list[Path]:
    """The figures of a study as PNG and PDF."""
    written = []
    with _gap_figure(study, 0, 4 if len(study.plain) > 4 else len(study.plain), legend=True) as figure:
        written += save(figure, folder / "gaps")
    for kind, (_, draw) in _CURVES.items():
        with styled(f"file-{kind}", (4.6, 3.1)) as figure:
            axes = figure.add_subplot()
            draw(axes, [(0, study)])
            if len(axes.get_lines()) > 1:
                axes.legend(frameon=False, fontsize=7.5, handlelength=3.5)
            written += save(figure, folder / kind)
    return written


@contextmanager
def _gap_figure(study: Masking, number: int, columns: int, *, legend: bool = False) -> "Iterator[Figure]":
    """One panel per attention, all with one horizontal scale: filled as the model is, outlined under AAS."""
    rows = -(-len(study.plain) // columns)
    low, high = _gap_range(study)
    decades = _decades(low, high)
    with styled(f"gaps-{number}-{columns}", (2.05 * columns + 0.5, 1.35 * rows + 0.45 + 0.2 * legend)) as figure:
        panels = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
        for axes, plain, scaled in zip(panels, study.plain, study.scaled, strict=False):
            _gap_panel(axes, study, plain, scaled, PALETTE[number % len(PALETTE)])
            axes.set_xlim(low, high)
            axes.set_xticks(decades, [_power(decade) for decade in decades])
        for axes in panels[len(study.plain) :]:
            axes.set_axis_off()
        for axes in panels[max(0, len(study.plain) - columns) : len(study.plain)]:
            axes.tick_params(labelbottom=True)
        figure.supxlabel("gap (logarithmic)", fontsize=8)
        figure.supylabel("share of rows per bin, %", fontsize=8)
        if legend:
            handles = panels[0].patches[:2]
            names = ["the model as it is", "under AAS"]
            figure.legend(handles, names, loc="outside upper center", ncols=2, frameon=False, fontsize=8)
        yield figure


def _gap_panel(axes: "Axes", study: Masking, plain: Gaps, scaled: Gaps, color: str) -> None:
    edges, before = _coarse(study, plain)
    _, under = _coarse(study, scaled)
    axes.stairs(100 * before, edges, fill=True, color=color, alpha=0.55, linewidth=0)
    axes.stairs(100 * under, edges, color=INK, linewidth=0.9)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.tick_params(labelsize=7, length=2)
    axes.locator_params(axis="y", nbins=3)
    for place, (_, gap) in enumerate(study.lines):
        axes.axvline(gap, color=PALETTE[1], linewidth=0.8, linestyle="-" if place % 2 else _DOTTED)
    # each beside its lines, on the side where the other is not
    for name, gap, side in (("fp16 ", study.lines[1][1], "right"), (" fp32", study.lines[2][1], "left")):
        axes.annotate(name, (gap, 1.01), xycoords=("data", "axes fraction"), ha=side, va="bottom", fontsize=6.5)
    axes.set_title(plain.name.removesuffix(".attn"), loc="left", fontsize=8, pad=10)
    axes.margins(y=0.05)
    axes.set_ylim(bottom=0)


def _coarse(study: Masking, gaps: Gaps) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Five bins per decade, which the eye can tell apart; what lies below the scale stands in the first."""
    edges = np.asarray(study.edges)
    inside = gaps.counts[1:-1].copy()
    inside[0] += gaps.counts[0]
    inside[-1] += gaps.counts[-1]
    return edges[::_MERGED], inside.reshape(-1, _MERGED).sum(1)


def _gap_range(study: Masking) -> tuple[float, float]:
    """From the least to the greatest gap that is there, with all lines in sight."""
    total = np.sum([_coarse(study, one)[1] for one in (*study.plain, *study.scaled)], axis=0)
    edges, used = np.asarray(study.edges)[::_MERGED], np.flatnonzero(total > 1e-4 * max(1e-12, float(total.max())))
    low, high = (edges[used[0]], edges[used[-1] + 1]) if len(used) else (1.0, 1.0)
    return float(min(low, 1.0)), float(max(high, 2 * study.lines[-1][1]))


def _decades(low: float, high: float) -> list[float]:
    """At most six powers of ten between the ends."""
    first, last = int(np.ceil(np.log10(low) - 1e-9)), int(np.floor(np.log10(high) + 1e-9))
    step = max(1, -(-(last - first + 1) // 6))
    return [10.0**power for power in range(first, last + 1) if power % step == 0]


def _power(value: float) -> str:
    return f"{value:g}" if 1e-2 <= value <= 1e3 else f"1e{round(np.log10(value))}"


def _draw_line(
    axes: "Axes", points: Points, number: int, label: str, style: object = "-", scale: float = 1.0, *, band: bool = True
) -> None:
    at = [scale * x for x, _ in points]
    value, low, high = ([100 * getattr(a, name) for _, a in points] for name in ("value", "low", "high"))
    place = number % len(PALETTE)
    if band:
        axes.fill_between(at, low, high, color=PALETTE[place], alpha=0.14, linewidth=0)
    face = PALETTE[place] if style == "-" else "none"
    (line,) = axes.plot(at, value, color=PALETTE[place], linestyle=style, label=label)
    line.set(marker=MARKERS[place], markersize=4, markerfacecolor=face)


def _draw_eps(axes: "Axes", studies: Sequence[tuple[int, Masking]]) -> None:
    """Studies of one norm, which has one scale."""
    gray = studies[0][1].norm == "linf"
    scale = 255.0 if gray else 1.0
    for number, study in studies:
        _draw_line(axes, study.eps, number, "PGD", scale=scale)
    _finish(axes, "eps, in 1/255" if gray else f"eps ({studies[0][1].norm})")


def _draw_iterations(axes: "Axes", studies: Sequence[tuple[int, Masking]]) -> None:
    for number, study in studies:
        _draw_line(axes, study.pgd, number, "PGD")
        _draw_line(axes, study.aas, number, "AAS: the better of plain and rescaled", _DASHED)
    axes.set_xscale("log")
    axes.minorticks_off()
    steps = sorted({int(at) for _, study in studies for at, _ in study.pgd})
    axes.set_xticks(steps, [str(one) for one in steps], fontsize=7.5)
    _finish(axes, "steps")


def _draw_blocks(axes: "Axes", studies: Sequence[tuple[int, Masking]]) -> None:
    for number, study in studies:
        _draw_line(axes, study.original, number, "judged by the model itself")
        _draw_line(axes, study.rescaled, number, "paper protocol: judged by the rescaled model", _DASHED)
        _draw_line(axes, study.rescaled_clean, number, "rescaled model, no attack", _DOTTED, band=False)
    counts = sorted({int(at) for _, study in studies for at, _ in study.original})
    axes.set_xticks(counts, [str(one) for one in counts])
    _finish(axes, "attentions rescaled, first to last")


def _finish(axes: "Axes", label: str) -> None:
    axes.set_ylim(-2, 102)
    axes.set_ylabel("accuracy, %")
    axes.set_xlabel(label)
    axes.margins(x=0.04)


_CURVES: "dict[str, tuple[str, Callable[[Axes, Sequence[tuple[int, Masking]]], None]]]" = {
    "eps": ("Accuracy and radius", _draw_eps),
    "iterations": ("Accuracy and steps", _draw_iterations),
    "blocks": ("Accuracy and rescaled attentions", _draw_blocks),
}


def _alt(kind: str, studies: Sequence[tuple[int, Masking]]) -> str:
    chosen: dict[str, Callable[[Masking], Points]] = {
        "eps": lambda study: study.eps,
        "iterations": lambda study: study.pgd,
        "blocks": lambda study: study.original,
    }
    told = "; ".join(", ".join(a.percent for _, a in chosen[kind](study)) for _, study in studies)
    return f"Accuracy in percent, run by run: {told}."
