"""Statistics against closed forms, published values, exact fractions, scipy and numpy."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binomtest, norm, sem, ttest_1samp

from vitadel.core.errors import UsageError
from vitadel.core.stats import (
    ALEXNET_CLEAN_ERROR,
    ALEXNET_ERRORS,
    SMALLEST_P,
    accuracy,
    accuracy_of,
    clip_share,
    crossed_interval,
    expected_accuracy,
    fit_line,
    fit_power_law,
    independent_difference,
    inverse_logit,
    logit,
    mcnemar,
    mean_corruption_error,
    paired_difference,
    paired_test,
    relative_mean_corruption_error,
)

# ------------------------------------------------------------- accuracies


@pytest.mark.parametrize(
    ("correct", "n"), [(0, 1), (1, 1), (1, 2), (3, 10), (0, 40), (40, 40), (812, 1000), (999, 1000)]
)
def test_wilson_interval_matches_scipy(correct: int, n: int) -> None:
    result, known = accuracy(correct, n), binomtest(correct, n).proportion_ci(method="wilson")
    assert (result.correct, result.n, result.accuracy) == (correct, n, correct / n)
    assert (result.low, result.high) == pytest.approx((known.low, known.high), abs=1e-12)
    assert (result.low == 0) == (correct == 0)
    assert (result.high == 1) == (correct == n)


@pytest.mark.parametrize(("correct", "n"), [(1, 10), (5, 10), (263, 1000), (999, 1000)])
def test_wilson_bounds_solve_the_score_equation(correct: int, n: int) -> None:
    result, z = accuracy(correct, n), norm.ppf(0.975)
    for end in (result.low, result.high):
        assert abs(result.accuracy - end) == pytest.approx(z * math.sqrt(end * (1 - end) / n), rel=1e-9)


def test_wilson_interval_has_published_values() -> None:
    # Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29
    known = {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }
    for (correct, n), (low, high) in known.items():
        result = accuracy(correct, n)
        assert (round(result.low, 4), round(result.high, 4)) == (low, high)


def test_zero_images_have_no_accuracy() -> None:
    with pytest.raises(UsageError, match="no images were evaluated"):
        accuracy(0, 0)


@pytest.mark.parametrize("shares", [[0.2, 0.5, 0.9, 0.4], [0.0, 1.0, 1.0], [0.7, 0.7], [0.3]])
def test_the_accuracy_of_a_randomized_model_has_the_interval_of_a_mean(shares: list[float]) -> None:
    result, mean = expected_accuracy(shares), sum(shares) / len(shares)
    error = sem(shares) if len(set(shares)) > 1 else 0.0
    assert (result.correct, result.n) == (round(sum(shares)), len(shares))
    assert result.accuracy == pytest.approx(mean)
    low, high = mean + error * norm.ppf([0.025, 0.975])
    assert (result.low, result.high) == pytest.approx((max(0, low), min(1, high)))


def test_scores_of_0_and_1_have_wilson_interval_and_shares_that_of_a_mean() -> None:
    assert accuracy_of([1.0, 0.0, 1.0]) == accuracy(2, 3)
    assert accuracy_of([1.0, 0.5, 1.0]) == expected_accuracy([1.0, 0.5, 1.0])


# ----------------------------------------------------------- paired tests


def tail(first: int, second: int) -> Fraction:
    """The probability that of first + second tosses `first` or more are heads."""
    both, term, total = first + second, 1, 0
    for count in range(second + 1):
        total += term
        term = term * (both - count) // (count + 1)
    return Fraction(total, 2**both)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (0, 7), (7, 0), (12, 3), (40, 60), (900, 800)])
def test_one_sided_mcnemar_is_a_binomial_test(first: int, second: int) -> None:
    both = first + second
    known = binomtest(first, both, alternative="greater").pvalue if both else 1.0
    assert mcnemar(first, second, "greater") == pytest.approx(known, rel=1e-9)


@pytest.mark.parametrize(
    ("first", "second"), [(0, 0), (1, 0), (8, 2), (2, 8), (7, 7), (1100, 900), (700, 1700), (1500, 900), (5000, 4000)]
)
def test_two_sided_mcnemar_is_exact_however_many_images_differ(first: int, second: int) -> None:
    exact = min(Fraction(1), 2 * tail(max(first, second), min(first, second)))
    assert mcnemar(first, second) == pytest.approx(float(exact), rel=1e-11)
    known = binomtest(first, first + second).pvalue if first + second else 1.0
    assert mcnemar(first, second) == pytest.approx(known, rel=1e-9)
    assert mcnemar(first, second) == mcnemar(second, first)


def test_p_values_are_never_zero() -> None:
    assert mcnemar(1000, 0) == pytest.approx(2.0**-999)
    assert mcnemar(3000, 100, "greater") == SMALLEST_P > 0
    assert mcnemar(3000, 100) > 0


def test_equal_models_are_seldom_significant() -> None:
    # two-sided p of an exact test is below 0.05 at most that often, and not for nothing
    rng = np.random.default_rng(1)
    p = [mcnemar(int(k), 60 - int(k)) for k in rng.binomial(60, 0.5, 4000)]
    assert 0.02 < np.mean(np.array(p) < 0.05) < 0.05


def test_scores_are_paired_by_image_id_and_not_by_order() -> None:
    first = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0, "only-here": 1.0}
    second = {"e": 0.0, "d": 1.0, "c": 0.0, "b": 0.0, "a": 1.0}
    result = paired_test(first, second)
    assert result is not None
    assert (result.n, result.first_better, result.second_better, result.exact) == (4, 2, 1, True)
    assert result.p == 1.0
    assert result.name == "McNemar, exact"
    assert paired_test({"a": 1.0}, {"b": 1.0}) is None
    assert paired_test({"a": math.nan}, {"a": 1.0}) is None


@pytest.mark.parametrize(("first", "second"), [(3, 1), (1600, 900), (1200, 1250)])
def test_scores_of_0_and_1_are_compared_by_mcnemar(first: int, second: int) -> None:
    scores = [1.0] * first + [0.0] * second, [0.0] * first + [1.0] * second
    result = paired_test(*({str(index): score for index, score in enumerate(one)} for one in scores))
    assert result is not None
    assert result.exact
    assert result.p == pytest.approx(float(2 * tail(max(first, second), min(first, second))))


def test_shares_are_compared_by_their_differences() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.random(50), rng.random(50)
    by_id = [{str(i): float(v) for i, v in enumerate(values)} for values in (first, second)]
    result, same = paired_test(*by_id), paired_test(by_id[0], by_id[0])
    away = first - second
    assert result is not None
    assert same is not None
    assert not result.exact
    assert result.p == pytest.approx(math.erfc(abs(away.sum()) / math.sqrt(2 * (away**2).sum())))
    assert same.p == 1.0


def test_p_values_of_distant_shares_are_above_zero() -> None:
    first = {str(index): 0.9 for index in range(3000)}
    result = paired_test(first, dict.fromkeys(first, 0.1))
    assert result is not None
    assert math.erfc(math.sqrt(3000 / 2)) == 0
    assert result.p == SMALLEST_P


# ------------------------------------------------------ corruption errors


def test_errors_of_alexnet_are_the_published_ones() -> None:
    """Hendrycks & Dietterich 2019, in tenths of a percent; the order is that of their tables."""
    published = [886, 894, 923, 820, 826, 786, 798, 867, 827, 819, 565, 853, 646, 718, 606]
    assert [int(1000 * error + 0.5) for error in ALEXNET_ERRORS.values()] == pytest.approx(published, abs=1)


def test_alexnet_has_an_mce_of_one() -> None:
    assert mean_corruption_error(ALEXNET_ERRORS) == pytest.approx(1)
    assert relative_mean_corruption_error(ALEXNET_ERRORS, ALEXNET_CLEAN_ERROR) == pytest.approx(1)
    assert mean_corruption_error({name: base / 2 for name, base in ALEXNET_ERRORS.items()}) == pytest.approx(0.5)


def test_mce_is_by_name_and_not_by_order() -> None:
    errors = {name: 0.1 * number for number, name in enumerate(ALEXNET_ERRORS)}
    by_hand = sum(0.1 * number / base for number, base in enumerate(ALEXNET_ERRORS.values())) / 15
    reverse = mean_corruption_error(dict(reversed(errors.items())))
    assert mean_corruption_error(errors) == pytest.approx(reverse) == pytest.approx(by_hand)
    assert mean_corruption_error({**errors, "spatter": 1.0}) == pytest.approx(by_hand)
    del errors["fog"]
    for error in (mean_corruption_error, lambda errors: relative_mean_corruption_error(errors, 0.2)):
        with pytest.raises(UsageError, match="15 corruptions, and fog are missing"):
            error(errors)


def test_mce_of_single_images_averages_to_that_of_the_model() -> None:
    rng = np.random.default_rng(0)
    errors, clean = {name: rng.random(6) for name in ALEXNET_ERRORS}, rng.random(6)
    means = {name: float(values.mean()) for name, values in errors.items()}
    assert mean_corruption_error(errors).mean() == pytest.approx(mean_corruption_error(means))
    relative = relative_mean_corruption_error(errors, clean)
    assert relative.mean() == pytest.approx(relative_mean_corruption_error(means, float(clean.mean())))


# --------------------------------------------------- fits through models


def test_a_linear_fit_matches_numpy() -> None:
    rng = np.random.default_rng(0)
    for n in (3, 5, 40):
        x, y = rng.normal(100, 3, n), rng.normal(size=n)
        line = fit_line(x.tolist(), y.tolist())
        assert line is not None
        np.testing.assert_allclose((line.slope, line.intercept), np.polyfit(x, y, 1), rtol=1e-6)
        assert line.points == n
        assert line.at(7.0) == pytest.approx(7 * line.slope + line.intercept)


@pytest.mark.parametrize("x", [(), (1.0, 2.0), (2.0, 2.0, 2.0)])
def test_too_few_points_give_no_fit(x: tuple[float, ...]) -> None:
    assert fit_line(x, x) is None


def test_a_power_law_is_recovered_and_matches_numpy() -> None:
    sizes = [1.0, 4.0, 20.0, 80.0]
    law = fit_power_law(sizes, [0.5 * size**-0.25 for size in sizes])
    assert law is not None
    np.testing.assert_allclose((law.factor, law.exponent), (0.5, -0.25))
    assert law.points == 4
    assert law.at(16) == pytest.approx(0.25)
    errors = [0.4, 0.31, 0.33, 0.2]
    result = fit_power_law(sizes, errors)
    assert result is not None
    exponent, factor = np.polyfit(np.log(sizes), np.log(errors), 1)
    np.testing.assert_allclose((result.exponent, result.factor), (exponent, np.exp(factor)), rtol=1e-9)


def test_three_models_of_two_sizes_make_no_power_law() -> None:
    assert fit_power_law([1.0, 1.0, 2.0], [0.3, 0.2, 0.1]) is None


def test_logits_are_inverted_and_finite() -> None:
    assert logit(0.5) == 0
    assert logit(0.75) == pytest.approx(np.log(3))
    for share in (0.001, 0.3, 0.999):
        assert inverse_logit(logit(share)) == pytest.approx(share)
    assert [clip_share(share, 100) for share in (0.0, 0.004, 0.3, 1.0)] == [0.005, 0.005, 0.3, 0.995]


# ------------------------------------------------- differences of accuracies


def test_independent_difference_is_newcombes_example() -> None:
    # Newcombe 1998, Statistics in Medicine 17:873, table II, method 10: 56/70 against 48/80
    difference = independent_difference(accuracy(56, 70), accuracy(48, 80))
    assert difference.value == pytest.approx(0.2)
    assert (round(difference.low, 4), round(difference.high, 4)) == (0.0524, 0.3339)
    assert difference.p is None


def test_paired_difference_without_a_difference_has_a_width() -> None:
    # p1 = p2 = 1/100, so the half-width is z sqrt(2/100/100)
    difference = paired_difference(0, 0, 98)
    half_width = norm.ppf(0.975) * math.sqrt(2) / 100
    assert (difference.value, difference.p) == (0, 1)
    assert (difference.low, difference.high) == pytest.approx((-half_width, half_width))


def test_paired_difference_is_antisymmetric_and_has_mcnemars_p() -> None:
    one, other = paired_difference(9, 1, 50), paired_difference(1, 9, 50)
    assert (one.value, one.low, one.high) == pytest.approx((-other.value, -other.high, -other.low))
    assert one.value == pytest.approx(0.16)
    assert one.p == other.p == pytest.approx(binomtest(9, 10).pvalue)


def test_paired_difference_refuses_more_differences_than_images() -> None:
    with pytest.raises(UsageError, match="differ on 5 of 4 images"):
        paired_difference(3, 2, 4)


def test_crossed_interval_of_one_training_is_students() -> None:
    scores = np.random.default_rng(0).normal(1, 2, 30)
    expected = ttest_1samp(scores, 0).confidence_interval(0.95)
    assert crossed_interval(scores[None]) == pytest.approx((scores.mean(), expected.low, expected.high))


def test_crossed_interval_of_images_that_do_not_differ_is_that_of_trainings() -> None:
    scores = np.repeat([[1.0], [2.0], [3.0]], 50, axis=1)
    half_width = 4.302652729911275 / math.sqrt(3)  # t with 2 degrees of freedom, standard deviation 1
    assert crossed_interval(scores) == pytest.approx((2, 2 - half_width, 2 + half_width))


def test_crossed_interval_holds_both_variances() -> None:
    # x_si = s + i: the variances of the means are exactly those of s and of i
    seeds, images = np.array([0.0, 2.0]), np.array([0.0, 3.0, 6.0, 9.0])
    v_s, v_n = 2 / 2, 15 / 4
    freedom = (v_s + v_n) ** 2 / (v_s**2 / 1 + v_n**2 / 3)
    from scipy.stats import t

    mean, low, high = crossed_interval(seeds[:, None] + images)
    assert mean == 5.5
    assert high - low == pytest.approx(2 * t.ppf(0.975, freedom) * math.sqrt(v_s + v_n))


def test_crossed_interval_of_equal_scores_is_a_point() -> None:
    assert crossed_interval(np.ones((3, 4))) == (1, 1, 1)
