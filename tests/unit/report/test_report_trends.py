"""Lines through models, against numpy's fit of the same points."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitadel.report import write_report
from vitadel.report.comparison.figures import size_drawings, trend_drawings, with_strokes
from vitadel.report.comparison.models import compare_models
from vitadel.report.comparison.trends import SizeTrend, Trend, size_trends, trends
from vitadel.report.reader import read_runs
from vitadel.report.text import parameters_text
from vitadel.runs.schema import Measure

CLEAN = (10, 20, 30, 36)
SHIFTED = (4, 12, 18, 40)


def models(
    make: Any, sizes: tuple[int | None, ...], specs: tuple[str, ...] = ("vit",) * 4, **more: object
) -> list[Path]:
    """Four models on 40 images, each with so many correct before and after."""
    runs = []
    for place, (size, spec) in enumerate(zip(sizes, specs, strict=False)):
        run = make.claim(f"run-{place}", f"model-{place}", size, spec)
        right = [1.0] * SHIFTED[place] + [0.0] * (40 - SHIFTED[place])
        make.perturb(run, "corruptions", right, clean=[1] * CLEAN[place] + [0] * (40 - CLEAN[place]), **more)
        runs.append(run.folder)
    return runs


def both(runs: list[Path]) -> tuple[list[Trend], list[SizeTrend]]:
    table = compare_models(read_runs(runs))
    assert table is not None
    return trends(table), size_trends(table)


def logit(p: np.ndarray) -> np.ndarray:
    return np.log(p / (1 - p))


def test_the_line_is_fitted_through_logits_and_models_are_measured_from_it(make: Any) -> None:
    ((trend,), _) = both(models(make, (None,) * 4))
    # all 40 correct after the shift count as half an image less
    x, y = logit(np.array(CLEAN) / 40), logit(np.clip(np.array(SHIFTED) / 40, 0.5 / 40, 1 - 0.5 / 40))
    slope, intercept = np.polyfit(x, y, 1)
    assert trend.line is not None
    np.testing.assert_allclose((trend.line.slope, trend.line.intercept), (slope, intercept))
    assert trend.formulas == [
        f"logit(Corruptions) = {slope:.3g} logit(clean) \N{MINUS SIGN} {-intercept:.3g}, 4 models"
    ]
    known = np.array([4, 12, 18, 39.5]) / 40 - 1 / (1 + np.exp(-(slope * x + intercept)))
    result = {row.label: trend.residual(clean, score) for row, clean, score in trend.points}
    assert [result[f"model-{i}"] for i in range(4)] == pytest.approx(known)


def test_two_models_have_points_and_no_line(make: Any) -> None:
    runs = models(make, (1_000_000, 2_000_000))
    ((trend,), result) = both(runs)
    assert trend.line is None
    assert trend.formulas == []
    assert [trend.residual(clean, score) for _, clean, score in trend.points] == [None, None]
    assert result == []
    assert both(runs[:1]) == ([], [])


def test_measures_that_are_not_shares_are_fitted_without_logits(make: Any) -> None:
    runs, values = [], (90.0, 85.0, 60.0)
    for place, value in enumerate(values):
        run = make.claim(f"run-{place}", f"model-{place}", 10**6 * (place + 1))
        measures = [Measure("mCE", value, kind="mCE", higher_is_better=False, main=True)]
        make.perturb(
            run, "corruptions", [0.0] * 40, clean=[1] * CLEAN[place] + [0] * (40 - CLEAN[place]), measures=measures
        )
        runs.append(run.folder)
    ((trend,), sizes) = both(runs)
    x = logit(np.array(CLEAN[:3]) / 40)
    slope, intercept = np.polyfit(x, values, 1)
    assert trend.line is not None
    assert trend.line.slope == pytest.approx(slope)
    result = {row.label: trend.residual(clean, score) for row, clean, score in trend.points}
    expected = slope * x + intercept - values
    assert [result[f"model-{i}"] for i in range(3)] == pytest.approx(expected)
    assert trend.formulas[0].startswith("Corruptions = ")
    assert [scaling.column.title for scaling in sizes] == ["Clean", "Corruptions"]
    assert {at.error for at in sizes[1].points} == set(values)


def test_error_against_size_is_a_power_law_per_family(make: Any) -> None:
    sizes = (1_000_000, 5_000_000, 20_000_000, 90_000_000)
    _, (clean, shifted) = both(models(make, sizes, ("timm:vit_tiny", "timm:vit_small", "timm:vit_base", "resnet50")))
    error = 1 - np.array(CLEAN[:3]) / 40
    exponent, factor = np.polyfit(np.log(np.array(sizes[:3]) / 1e6), np.log(error), 1)
    ((family, fit),) = clean.fits
    assert (family, fit.points) == ("vit", 3)
    np.testing.assert_allclose((fit.exponent, fit.factor), (exponent, np.exp(factor)))
    law = f"{np.exp(factor):.3g} (parameters / 10\N{SUPERSCRIPT SIX})^\N{MINUS SIGN}{-exponent:.3g}"
    assert clean.formulas == [f"vit: error = {law}, 3 models"]
    # at least half an image of 40 is misclassified
    assert sorted(at.error for at in shifted.points)[0] == pytest.approx(0.5 / 40)


def test_without_a_family_of_three_sizes_all_models_make_one_law(make: Any) -> None:
    sizes = (1_000_000, 5_000_000, 20_000_000, 90_000_000)
    _, (clean, _) = both(models(make, sizes, ("vit", "resnet18", "vit", "wide_resnet28_10")))
    assert [(family, fit.points) for family, fit in clean.fits] == [("", 4)]


def test_biases_and_unknown_sizes_are_left_out(make: Any) -> None:
    measures = [Measure("shape bias", 0.2, 0.1, 0.3, 9, "bias", main=True)]
    _, sizes = both(models(make, (1_000_000, 5_000_000, 20_000_000, None), measures=measures))
    assert [scaling.column.title for scaling in sizes] == ["Clean"]
    assert len(sizes[0].points) == 3


def test_drawings_have_descriptions_and_are_reproducible(make: Any) -> None:
    against, sizes = both(models(make, (1_000_000, 5_000_000, 20_000_000, 90_000_000)))
    numbers = {f"model-{i}": i for i in range(4)}
    (drawn,), by_size = trend_drawings(against, numbers), size_drawings(sizes, numbers)
    assert "model-0: 25.0 clean, 10.0, " in drawn.alt
    assert drawn.alt.endswith(f"beyond the line. {against[0].formulas[0]}.")
    assert "model-2: 20M, error 0.25" in by_size[0].alt
    assert sizes[0].formulas[0] in by_size[0].alt
    again = [*trend_drawings(against, numbers), *size_drawings(sizes, numbers)]
    assert [d.svg for d in again] == [drawn.svg, *(d.svg for d in by_size)]
    assert len({d.svg for d in again}) == 3


def test_several_fits_of_one_figure_are_labeled() -> None:
    assert with_strokes(["a"]) == ["a"]
    assert with_strokes(list("abcde")) == ["a (solid)", "b (dashed)", "c (dotted)", "d (dash-dotted)", "e (solid)"]


def test_more_models_than_colors_are_numbered_by_rank(make: Any) -> None:
    runs = []
    for place in range(8):
        run = make.claim(f"run-{place}", f"model-{place}")
        right = [1.0] * (4 * place + 3) + [0.0] * (37 - 4 * place)
        make.perturb(run, "corruptions", right, clean=[1] * (4 * place + 5) + [0] * (35 - 4 * place))
        runs.append(run.folder)
    numbers = {f"model-{i}": i for i in range(8)}
    ((few,), _), ((many,), _) = both(runs[:7]), both(runs)
    texts = [re.findall(r"7px[^>]*>(\d)</text>", trend_drawings([one], numbers)[0].svg) for one in (few, many)]
    assert texts[0] == []
    assert sorted(texts[1]) == list("12345678")
    assert "Numbers are ranks" in write_report(runs, make.root / "page.html").read_text()


def test_sizes_are_formatted_with_units() -> None:
    assert [parameters_text(n) for n in (86_567_656, 5_717_416, 53_130, 5_400)] == ["86.6M", "5.72M", "0.0531M", "5.4k"]
