"""Random permutations that are computed and not stored.

A shuffled list of 50 million numbers takes 400 MB in every process. A Feistel network (Luby & Rackoff 1988) is a
bijection for any round function, here SplitMix64 of (seed, pass, round, other half). Its halves are the row and the
column in a square slightly larger than the count (the generalized network of Black & Rogaway 2002), since the next
power of four could be four times as large. The few results beyond the count are permuted again until they are below it
(cycle walking, same authors), which preserves bijectivity.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range, Seed, check_ranges
from vitadel.core.rng import RandomStreams

# each changes row and column; with fewer rounds, the positions of small sets of images are correlated
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Permutation:
    """An endless sequence of random permutations of range(count), computed and not stored."""

    count: Annotated[int, Range(ge=1, le=2**60, hint="Write how many images there are.")]
    seed: Seed

    def __post_init__(self) -> None:
        check_ranges(self)

    def at(self, positions: Tensor) -> Tensor:
        """int64 [B]: the numbers at these positions; the second permutation begins at position `count`."""
        if positions.dtype != torch.int64 or positions.dim() != 1 or bool((positions < 0).any()):
            raise UsageError(
                f"positions must be a list of int64 numbers of at least 0, got {positions.dtype} of shape "
                f"{tuple(positions.shape)}{' with some below 0' if bool((positions < 0).any()) else ''}. "
                "Write torch.arange(first, last)."
            )
        keys = RandomStreams.of(self.seed, positions // self.count)
        numbers = self._permuted(positions % self.count, keys)
        while len(beyond := (numbers >= self.count).nonzero().flatten()):
            numbers[beyond] = self._permuted(numbers[beyond], keys.at(beyond))
        return numbers

    def _permuted(self, values: Tensor, keys: RandomStreams) -> Tensor:
        """A bijection of the cells of the smallest square that holds the count, one for each key."""
        side = math.isqrt(self.count - 1) + 1
        row, column = values // side, values % side
        for number in range(_ROUNDS):
            row = (row + _word(keys, 2 * number, column)) % side
            column = (column + _word(keys, 2 * number + 1, row)) % side
        return row * side + column


def _word(keys: RandomStreams, number: int, half: Tensor) -> Tensor:
    # a half has at most 30 bits, so the number of the step is shifted above it; 62 bits prevent overflow of the sum
    return keys.fold(half + (number << 32)).key_B >> 2
