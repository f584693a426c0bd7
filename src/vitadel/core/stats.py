"""Statistics of shares and of paired comparisons: Wilson intervals, McNemar's exact test (1947).

McNemar's test asks of the images on which two models or attacks differ how uneven the split is. If neither is better,
each such image is a fair coin toss, so the larger count has a binomial distribution. Its tail is a regularized
incomplete beta function, which scipy evaluates to 12 digits and more, however many images differ.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from vitadel.core.errors import UsageError

# the 97.5% quantile of the normal distribution
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A share of right answers and its 95% interval by Wilson's score, which holds for few images and near 0 and 1."""

    correct: int
    n: int
    accuracy: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    @property
    def percent(self) -> str:
        """The share in percent, with one decimal."""
        return f"{100 * self.accuracy:.1f}"

    @property
    def interval(self) -> str:
        """The ends of the interval in percent."""
        return f"{100 * self.low:.1f}\N{EN DASH}{100 * self.high:.1f}"


def expected_accuracy(shares: Sequence[float]) -> Accuracy:
    """The mean of how often a random model is right per image, with the normal interval of that mean.

    The spread between images holds both that they differ and that each was asked only so often.
    """
    n, mean = len(shares), sum(shares) / len(shares)
    spread = math.sqrt(sum((share - mean) ** 2 for share in shares) / max(1, n - 1))
    reach = _Z * spread / math.sqrt(n)
    return Accuracy(round(sum(shares)), n, mean, max(0.0, mean - reach), min(1.0, mean + reach))


def accuracy(correct: int, n: int) -> Accuracy:
    r"""The share `correct / n` with Wilson's interval (1927).

    .. math:: \frac{\hat p + z^2/2n \pm z \sqrt{\hat p (1 - \hat p)/n + z^2/4n^2}}{1 + z^2/n}
    """
    if n < 1:
        raise UsageError("no images were evaluated, so there is no accuracy. Choose a longer slice of the data.")
    share = correct / n
    center = share + _Z**2 / (2 * n)
    reach = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    scale = 1 + _Z**2 / n
    # at the edges one end is known, and rounding would miss it by a hair
    low = 0.0 if correct == 0 else (center - reach) / scale
    high = 1.0 if correct == n else (center + reach) / scale
    return Accuracy(correct, n, share, low, high)


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
