"""Shares with their uncertainty."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitadel.errors import UsageError

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
    centre = share + _Z**2 / (2 * n)
    reach = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    scale = 1 + _Z**2 / n
    # at the edges one end is known, and rounding would miss it by a hair
    low = 0.0 if correct == 0 else (centre - reach) / scale
    high = 1.0 if correct == n else (centre + reach) / scale
    return Accuracy(correct, n, share, low, high)
