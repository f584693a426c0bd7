import math

import numpy as np
import pytest
from scipy.stats import binomtest

from vitadel.report.paired import How, compare, mcnemar


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (5, 0), (8, 2), (2, 8), (7, 7), (30, 51), (1100, 900)])
def test_mcnemar_is_the_exact_binomial_test(first: int, second: int) -> None:
    known = binomtest(first, first + second).pvalue if first + second else 1.0
    assert mcnemar(first, second) == pytest.approx(known, rel=1e-9)


def test_beyond_two_thousand_images_the_normal_curve_is_as_good() -> None:
    for first, second in ((1050, 960), (1300, 1200), (2500, 2500)):
        assert mcnemar(first, second) == pytest.approx(binomtest(first, first + second).pvalue, rel=0.02)
    # on both sides of the change from one to the other
    assert mcnemar(1050, 950) == pytest.approx(mcnemar(1050, 951), rel=0.1)


def test_verdicts_are_paired_by_image_and_not_by_place() -> None:
    first = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0, "only-here": 1.0}
    second = {"e": 0.0, "d": 1.0, "c": 0.0, "b": 0.0, "a": 1.0}
    found = compare(first, second)
    assert found is not None
    assert (found.n, found.only_first, found.only_second, found.how) == (4, 2, 1, How.EXACT)
    assert found.p == 1.0
    assert compare({"a": 1.0}, {"b": 1.0}) is None
    assert compare({"a": math.nan}, {"a": 1.0}) is None


def test_many_images_say_that_p_is_approximate() -> None:
    first, second = {str(i): 1.0 for i in range(2001)}, {str(i): 0.0 for i in range(2001)}
    found = compare(first, second)
    assert found is not None
    assert found.how is How.NORMAL
    assert found.p < 1e-100


def test_shares_are_compared_by_their_differences() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.random(50), rng.random(50)
    by_id = [{str(i): float(v) for i, v in enumerate(values)} for values in (first, second)]
    found = compare(*by_id)
    away = first - second
    assert found is not None
    assert found.how is How.SHARES
    assert found.p == pytest.approx(math.erfc(abs(away.sum()) / math.sqrt(2 * (away**2).sum())))
    assert compare(by_id[0], by_id[0]).p == 1.0  # type: ignore[union-attr]


def test_equal_models_seldom_seem_to_differ() -> None:
    # two-sided p of an exact test is below 0.05 at most that often, and not for nothing
    rng = np.random.default_rng(1)
    p = [mcnemar(int(k), 60 - int(k)) for k in rng.binomial(60, 0.5, 4000)]
    assert 0.02 < np.mean(np.array(p) < 0.05) < 0.05
