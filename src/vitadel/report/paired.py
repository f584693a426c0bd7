"""Two models on the same images: is the difference more than chance?"""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

# of so many images that only one of two models gets right, the exact sum and the normal curve agree to three digits
_EXACT = 2000


class How(enum.Enum):
    """How a p was found."""

    EXACT = "McNemar, exact"
    NORMAL = "McNemar, continuity-corrected"
    SHARES = "paired, for shares"


@dataclass(frozen=True, slots=True)
class Paired:
    """How two models differ on `n` images that both were asked about.

    `only_first` and `only_second` count the images on which one does better than the other; `p` is how often chance
    alone makes them differ so much, if neither is better.
    """

    n: int
    only_first: int
    only_second: int
    p: float
    how: How


def compare(first: Mapping[str, float], second: Mapping[str, float]) -> Paired | None:
    """Verdicts by image id, against each other on the images that both have; None if there are none."""
    pairs = [(first[key], second[key]) for key in first if key in second]
    pairs = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    if not pairs:
        return None
    gained, lost = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    if any(share not in (0, 1) for pair in pairs for share in pair):
        return Paired(len(pairs), gained, lost, _of_shares([a - b for a, b in pairs]), How.SHARES)
    how = How.EXACT if gained + lost <= _EXACT else How.NORMAL
    return Paired(len(pairs), gained, lost, mcnemar(gained, lost), how)


def mcnemar(only_first: int, only_second: int) -> float:
    r"""McNemar's test (1947), two-sided: if neither is better, each image that tells them apart is a toss of a coin.

    .. math:: P = \min\Big(1,\; 2^{1-m} \sum_{k \le \min(a, b)} \binom{m}{k}\Big), \qquad m = a + b

    Beyond 2000 such images by the normal curve, with Edwards's correction for continuity.
    """
    fewer, both = min(only_first, only_second), only_first + only_second
    if both > _EXACT:
        return math.erfc(max(0, abs(only_first - only_second) - 1) / math.sqrt(2 * both))
    term = tail = 1
    for k in range(fewer):
        term = term * (both - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / 2**both)


def _of_shares(differences: list[float]) -> float:
    """The same question about shares: the sum of differences over the root of the sum of their squares.

    Of verdicts that are 0 or 1 this is McNemar's statistic itself.
    """
    squares = math.fsum(d * d for d in differences)
    return math.erfc(abs(math.fsum(differences)) / math.sqrt(2 * squares)) if squares else 1.0
