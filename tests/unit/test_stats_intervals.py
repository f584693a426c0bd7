"""The intervals of shares, against scipy's."""

import pytest
from scipy.stats import binomtest, norm, sem

from vitadel.core.errors import UsageError
from vitadel.core.stats import accuracy, expected_accuracy


@pytest.mark.parametrize(("correct", "n"), [(0, 1), (1, 1), (1, 2), (3, 10), (0, 40), (40, 40), (812, 1000)])
def test_shares_have_wilsons_interval(correct: int, n: int) -> None:
    found, known = accuracy(correct, n), binomtest(correct, n).proportion_ci(method="wilson")
    assert (found.correct, found.n, found.accuracy) == (correct, n, correct / n)
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=1e-12)
    assert (found.low == 0) == (correct == 0)
    assert (found.high == 1) == (correct == n)


def test_no_images_have_no_accuracy() -> None:
    with pytest.raises(UsageError, match="no images were evaluated"):
        accuracy(0, 0)


@pytest.mark.parametrize("shares", [[0.2, 0.5, 0.9, 0.4], [0.0, 1.0, 1.0], [0.7, 0.7], [0.3]])
def test_the_accuracy_of_a_random_model_has_the_interval_of_a_mean(shares: list[float]) -> None:
    found, mean = expected_accuracy(shares), sum(shares) / len(shares)
    error = sem(shares) if len(set(shares)) > 1 else 0.0
    assert (found.correct, found.n) == (round(sum(shares)), len(shares))
    assert found.accuracy == pytest.approx(mean)
    low, high = mean + error * norm.ppf([0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((max(0, low), min(1, high)))
