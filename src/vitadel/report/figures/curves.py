"""Figures of runs: accuracy against eps, and training curves."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vitadel.report.figures.style import MARKERS, PALETTE, Drawing, styled, svg
from vitadel.report.reader import Curve, RunRecord, Series
from vitadel.report.text import unit_factor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STROKES = {"solid": "-", "dashed": "--", "dotted": ":", "dash-dotted": "-."}
# points of a drawn series, and panels of the training section
_POINTS, _PANELS = 300, 6
# the largest eps over the smallest from which the axis is logarithmic
_WIDE = 20


def curve_drawings(curves: Sequence[Curve], numbers: Mapping[str, int]) -> list[Drawing]:
    """Accuracy against eps with interval bands, one drawing per norm, one line per run and suite."""
    drawn = [curve for curve in curves if curve.has_several_radii]
    return [_curve_drawing(norm, drawn, numbers) for norm in dict.fromkeys(curve.norm for curve in drawn)]


def strokes(curves: Sequence[Curve], numbers: Mapping[str, int]) -> dict[str, str]:
    """The line style of each label, which distinguishes curves of one color."""
    shared: dict[int, list[str]] = {}
    for label in dict.fromkeys(curve.label for curve in curves if curve.has_several_radii):
        shared.setdefault(numbers[label] % len(PALETTE), []).append(label)
    names = list(_STROKES)
    return {label: names[i % len(names)] for labels in shared.values() for i, label in enumerate(labels)}


def training_drawings(records: Sequence[RunRecord], numbers: Mapping[str, int]) -> list[Drawing]:
    """Loss, hold-out accuracy, learning rate and other logged numbers, each with one line per run."""
    panels: dict[str, list[tuple[int, Series]]] = {"loss": [], "hold-out accuracy": [], "learning rate": []}
    for record in records:
        for series in record.training:
            panels.setdefault(_panel(series), []).append((numbers[record.label], series))
    drawn = [(title, lines) for title, lines in panels.items() if lines]
    return [_training_drawing(title, lines) for title, lines in drawn[:_PANELS]]


def _panel(series: Series) -> str:
    if series.event == "holdout":
        return "hold-out accuracy" if series.name in ("clean", "robust") else f"hold-out {series.name}"
    return {"lr": "learning rate"}.get(series.name, series.name.replace("_", " "))


def _curve_drawing(norm: str, curves: Sequence[Curve], numbers: Mapping[str, int]) -> Drawing:
    mine, styles = [curve for curve in curves if curve.norm == norm], strokes(curves, numbers)
    unit = mine[0].unit
    scale = unit_factor(unit)
    with styled(f"curve-{norm}", (5.6, 3.0)) as figure:
        axes = figure.add_subplot()
        for curve in mine:
            _draw_curve(axes, curve, numbers[curve.label] % len(PALETTE), scale, _STROKES[styles[curve.label]])
        _eps_axis(axes, sorted({scale * eps for curve in mine for eps, _ in curve.points}))
        axes.set_ylim(-2, 102)
        axes.set_ylabel("accuracy, %")
        axes.set_xlabel(f"eps, in {unit}" if unit else f"eps ({norm})")
        drawn = svg(figure)
    values = "; ".join(f"{c.label}: {', '.join(a.percent for _, a in c.points)}" for c in mine)
    return Drawing(f"Accuracy under {norm} attack", drawn, f"Accuracy in percent as eps grows. {values}.")


def _draw_curve(axes: "Axes", curve: Curve, number: int, scale: float, stroke: str) -> None:
    eps = [scale * e for e, _ in curve.points]
    mean, low, high = ([100 * getattr(a, name) for _, a in curve.points] for name in ("accuracy", "low", "high"))
    axes.fill_between(eps, low, high, color=PALETTE[number], alpha=0.16, linewidth=0)
    axes.plot(eps, mean, color=PALETTE[number], marker=MARKERS[number], linestyle=stroke)


def _eps_axis(axes: "Axes", eps: Sequence[float]) -> None:
    """Space for every eps: a wide range is stretched at its small end."""
    if eps[-1] / eps[1] > _WIDE:
        axes.set_xscale("symlog", base=2, linthresh=eps[1], linscale=1)
        axes.set_xticks(eps, [f"{e:.3g}" for e in eps])
        axes.minorticks_off()
    axes.margins(x=0.03)


def _training_drawing(title: str, lines: Sequence[tuple[int, Series]]) -> Drawing:
    percent = title == "hold-out accuracy"
    with styled(f"training-{title}", (3.9, 2.5)) as figure:
        axes = figure.add_subplot()
        for i, (number, series) in enumerate(lines):
            steps, values = _thinned(series)
            # similar runs often share a schedule, so all but the first are dashed there and the one below shows through
            dashed = series.name == "robust" if percent else title == "learning rate" and i > 0
            axes.plot(
                steps,
                100 * values if percent else values,
                color=PALETTE[number % len(PALETTE)],
                marker=MARKERS[number % len(PALETTE)] if len(steps) <= 12 else "",
                linestyle=(0, (6, 5)) if dashed else "-",
                linewidth=1.4,
            )
        axes.set_xlabel("step")
        axes.locator_params(axis="x", nbins=5)
        if percent:
            axes.set_ylim(-2, 102)
            axes.set_ylabel("%")
        drawn = svg(figure)
    last = "; ".join(f"{series.name} ends at {series.values[-1]:.4g}" for _, series in lines)
    return Drawing(title, drawn, f"{title} over the steps of training: {last}.")


def _thinned(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """At most a few hundred points, each the mean of its neighbors: more cannot be seen and would weigh the page."""
    steps, values = np.asarray(series.steps), np.asarray(series.values)
    if len(steps) <= _POINTS:
        return steps, values
    groups = np.array_split(np.arange(len(steps)), _POINTS)
    return np.array([steps[g].mean() for g in groups]), np.array([values[g].mean() for g in groups])
