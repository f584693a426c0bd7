"""The sign test behind comparisons of attacks, against scipy's; Wilson's interval is tested where it is used most."""

import pytest
from scipy.stats import binomtest

from vitadel.intervals import chance_of


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (0, 7), (7, 0), (12, 3), (40, 60), (900, 800)])
def test_chance_is_that_of_a_coin(first: int, second: int) -> None:
    both = first + second
    known = binomtest(first, both, alternative="greater").pvalue if both else 1.0
    assert chance_of(first, second) == pytest.approx(known, rel=1e-9)
