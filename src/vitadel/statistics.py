"""McNemar's test (1947), exact: of the images on which two models or attacks differ, how uneven is the split?

If neither is better, each such image is a toss of a coin, so the larger count has a binomial distribution. Its tail is
a regularized incomplete beta function, which scipy evaluates to 12 digits and more, however many images differ.
"""

import sys

# no float lies between this and 0 with full precision; a probability is never 0
SMALLEST = sys.float_info.min


def chance_of(first_only: int, second_only: int) -> float:
    r"""The one-sided p: how likely `first_only` or more of the images that tell the two apart are the first's.

    .. math:: P = 2^{-m} \sum_{k \ge a} \binom{m}{k} = I_{1/2}(a, b + 1), \qquad m = a + b

    Args:
        first_only: images that only the first gets right (or that only the first attack breaks), a.
        second_only: images of the second alone, b.

    Returns:
        The probability, at least `SMALLEST`.
    """
    from scipy.special import betainc  # takes a while to import, and few commands need it

    if not first_only:
        return 1.0
    return max(SMALLEST, float(betainc(first_only, second_only + 1, 0.5)))


def mcnemar_p(first_only: int, second_only: int) -> float:
    r"""The two-sided p: how likely a split at least this uneven is, either way.

    .. math:: P = \min\Big(1,\; 2^{1-m} \sum_{k \le \min(a, b)} \binom{m}{k}\Big), \qquad m = a + b
    """
    return min(1.0, 2 * chance_of(max(first_only, second_only), min(first_only, second_only)))
