import math

import numpy as np
import pytest

from vitadel.core.stats import mcnemar_p
from vitadel.report.comparison.paired import How, compare


def test_verdicts_are_paired_by_image_and_not_by_place() -> None:
    first = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0, "only-here": 1.0}
    second = {"e": 0.0, "d": 1.0, "c": 0.0, "b": 0.0, "a": 1.0}
    found = compare(first, second)
    assert found is not None
    assert (found.n, found.only_first, found.only_second, found.how) == (4, 2, 1, How.EXACT)
    assert found.p == 1.0
    assert compare({"a": 1.0}, {"b": 1.0}) is None
    assert compare({"a": math.nan}, {"a": 1.0}) is None


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
    p = [mcnemar_p(int(k), 60 - int(k)) for k in rng.binomial(60, 0.5, 4000)]
    assert 0.02 < np.mean(np.array(p) < 0.05) < 0.05
