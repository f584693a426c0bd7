"""McNemar's test against scipy's binomial test and against exact fractions, in both places that report it."""

import math
from fractions import Fraction

import pytest
from scipy.stats import binomtest

from vitadel.core.stats import SMALLEST, chance_of, mcnemar_p
from vitadel.evaluate.metrics import mcnemar
from vitadel.report.comparison.paired import How, compare


def tail(first: int, second: int) -> Fraction:
    """The probability that of first + second tosses `first` or more are heads."""
    both, term, total = first + second, 1, 0
    for count in range(second + 1):
        total += term
        term = term * (both - count) // (count + 1)
    return Fraction(total, 2**both)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (0, 7), (7, 0), (12, 3), (40, 60), (900, 800)])
def test_chance_is_that_of_a_coin(first: int, second: int) -> None:
    both = first + second
    known = binomtest(first, both, alternative="greater").pvalue if both else 1.0
    assert chance_of(first, second) == pytest.approx(known, rel=1e-9)


@pytest.mark.parametrize(
    ("first", "second"), [(0, 0), (1, 0), (8, 2), (2, 8), (7, 7), (1100, 900), (700, 1700), (1500, 900), (5000, 4000)]
)
def test_two_sided_p_is_exact_however_many_images_differ(first: int, second: int) -> None:
    exact = min(Fraction(1), 2 * tail(max(first, second), min(first, second)))
    assert mcnemar_p(first, second) == pytest.approx(float(exact), rel=1e-11)
    known = binomtest(first, first + second).pvalue if first + second else 1.0
    assert mcnemar_p(first, second) == pytest.approx(known, rel=1e-9)
    assert mcnemar_p(first, second) == mcnemar_p(second, first)


def test_p_is_never_zero() -> None:
    assert mcnemar_p(1000, 0) == pytest.approx(2.0**-999)
    assert chance_of(3000, 100) == SMALLEST > 0
    assert mcnemar_p(3000, 100) > 0


@pytest.mark.parametrize(("first", "second"), [(3, 1), (1600, 900), (1200, 1250)])
def test_evaluation_and_report_give_the_same_p(first: int, second: int) -> None:
    ours, theirs = [1.0] * first + [0.0] * second, [0.0] * first + [1.0] * second
    by_id = [{str(place): verdict for place, verdict in enumerate(verdicts)} for verdicts in (ours, theirs)]
    found = compare(*by_id)
    assert found is not None
    assert found.how is How.EXACT
    assert found.p == mcnemar(ours, theirs).p == pytest.approx(float(2 * tail(max(first, second), min(first, second))))
    assert (found.only_first, found.only_second) == (first, second)


def test_shares_far_apart_keep_a_p_above_zero() -> None:
    first = {str(place): 0.9 for place in range(3000)}
    found = compare(first, dict.fromkeys(first, 0.1))
    assert found is not None
    assert found.how is How.SHARES
    assert math.erfc(math.sqrt(3000 / 2)) == 0
    assert found.p == SMALLEST
