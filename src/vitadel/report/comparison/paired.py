"""Two models on the same images: is the difference more than chance?"""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

from vitadel.core.stats import SMALLEST, mcnemar_p


class How(enum.Enum):
    """How a p was found."""

    EXACT = "McNemar, exact"
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
    return Paired(len(pairs), gained, lost, mcnemar_p(gained, lost), How.EXACT)


def _of_shares(differences: list[float]) -> float:
    """The same question about shares: the sum of differences over the root of the sum of their squares.

    Of verdicts that are 0 or 1 this is McNemar's statistic itself.
    """
    squares = math.fsum(d * d for d in differences)
    if not squares:
        return 1.0
    return max(SMALLEST, math.erfc(abs(math.fsum(differences)) / math.sqrt(2 * squares)))
