"""Metrics that compare models, against closed forms and other libraries."""

import math

import numpy as np
import pytest
from scipy import stats

from vitadel.core.errors import UsageError
from vitadel.evaluate.metrics import (
    ALEXNET,
    ALEXNET_CLEAN,
    effective_robustness,
    fit_trend,
    logit,
    mcnemar,
    mean_corruption_error,
    probit,
    relative_corruption_error,
)


def test_alexnet_has_an_mce_of_one() -> None:
    assert mean_corruption_error(ALEXNET) == pytest.approx(1)
    assert relative_corruption_error(ALEXNET, ALEXNET_CLEAN) == pytest.approx(1)
    assert mean_corruption_error({name: base / 2 for name, base in ALEXNET.items()}) == pytest.approx(0.5)


def test_mce_goes_by_name_and_not_by_place() -> None:
    errors = {name: 0.1 * place for place, name in enumerate(ALEXNET)}
    turned = dict(reversed(errors.items()))
    by_hand = sum(0.1 * place / base for place, base in enumerate(ALEXNET.values())) / 15
    assert mean_corruption_error(errors) == pytest.approx(mean_corruption_error(turned)) == pytest.approx(by_hand)
    assert mean_corruption_error({**errors, "spatter": 1.0}) == pytest.approx(by_hand)
    del errors["fog"]
    with pytest.raises(UsageError, match="15 corruptions, and fog are missing"):
        mean_corruption_error(errors)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(0, 0), (1, 0), (0, 6), (7, 7), (3, 12), (40, 60), (480, 520), (499, 501)]
)
def test_mcnemar_is_a_binomial_test(ours: int, theirs: int) -> None:
    first = [True] * ours + [False] * theirs + [True] * 30 + [False] * 5
    second = [False] * ours + [True] * theirs + [True] * 30 + [False] * 5
    found = mcnemar(first, second)
    assert (found.first_only, found.second_only) == (ours, theirs)
    expected = stats.binomtest(ours, ours + theirs, 0.5).pvalue if ours + theirs else 1.0
    assert found.p == pytest.approx(expected, rel=1e-9)


def test_mcnemar_of_many_images_is_the_exact_test() -> None:
    for ours, theirs in ((1100, 1250), (900, 1600), (3000, 1500)):
        first, second = [1.0] * ours + [0.0] * theirs, [0.0] * ours + [1.0] * theirs
        exact = stats.binomtest(ours, ours + theirs, 0.5).pvalue
        assert mcnemar(first, second).p == pytest.approx(exact, rel=1e-9)


def test_mcnemar_refuses_what_it_cannot_count() -> None:
    with pytest.raises(UsageError, match="got 2 and 1 verdicts"):
        mcnemar([True, False], [True])
    with pytest.raises(UsageError, match="0 or 1, got 0.5"):
        mcnemar([0.5], [1.0])


@pytest.mark.parametrize("axis", [logit, probit])
def test_a_trend_is_the_least_squares_line_on_its_axis(axis) -> None:  # type: ignore[no-untyped-def]
    clean, shifted = [0.6, 0.7, 0.75, 0.8], [0.3, 0.42, 0.44, 0.6]
    trend = fit_trend(clean, shifted, axis)
    slope, intercept = np.polyfit([axis(one) for one in clean], [axis(one) for one in shifted], 1)
    assert [trend.slope, trend.intercept] == pytest.approx([slope, intercept])
    assert axis(trend.expected(0.72)) == pytest.approx(slope * axis(0.72) + intercept)


def test_effective_robustness_is_zero_on_the_line_and_the_gap_beside_it() -> None:
    clean = [0.5, 0.6, 0.8]
    on_line = [1 / (1 + math.exp(-(1.5 * logit(one) - 0.4))) for one in clean]
    trend = fit_trend(clean, on_line)
    assert [trend.slope, trend.intercept, trend.points] == pytest.approx([1.5, -0.4, 3])
    assert effective_robustness(trend, 0.6, on_line[1]) == pytest.approx(0)
    assert effective_robustness(trend, 0.6, on_line[1] + 0.07) == pytest.approx(0.07)


@pytest.mark.parametrize(
    ("clean", "shifted", "message"),
    [
        ([0.5], [0.4], "two or more models"),
        ([0.5, 0.5], [0.4, 0.3], "of different clean accuracy"),
        ([0.5, 0.6], [0.0, 0.3], "an accuracy of 0 has no place on a logit axis"),
        ([0.5, 1.0], [0.2, 0.3], "an accuracy of 1 has no place"),
    ],
)
def test_a_trend_through_too_little_is_refused(clean: list[float], shifted: list[float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit_trend(clean, shifted)
    assert probit(0.5) == 0
