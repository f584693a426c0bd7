"""Wilson's interval against its defining equation and published values."""

import math

import pytest
from scipy.stats import norm

from vitadel.core.errors import UsageError
from vitadel.evaluate import accuracy


@pytest.mark.parametrize(("correct", "n"), [(0, 10), (1, 10), (5, 10), (10, 10), (263, 1000), (999, 1000)])
def test_both_ends_solve_the_score_equation(correct: int, n: int) -> None:
    found = accuracy(correct, n)
    z = norm.ppf(0.975)
    for end in (found.low, found.high):
        if 0 < end < 1:
            assert abs(found.accuracy - end) == pytest.approx(z * math.sqrt(end * (1 - end) / n), rel=1e-9)
    assert found.low <= found.accuracy <= found.high


def test_known_values() -> None:
    # Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29
    known = {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }
    for (correct, n), (low, high) in known.items():
        found = accuracy(correct, n)
        assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def test_no_images_is_no_accuracy() -> None:
    with pytest.raises(UsageError, match="no images were evaluated"):
        accuracy(0, 0)
