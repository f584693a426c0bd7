"""Every number below a count once, in random order, without writing the order down.

A shuffled list of 50 million numbers takes 400 MB in every process; this takes none. A Feistel network (Luby & Rackoff
1988) is a bijection whatever its round function, here SplitMix64 of (seed, pass, round, other half). Its halves are
not bits but the row and the column of a square hardly larger than the count (the generalized network of Black &
Rogaway 2002): the next power of four can be four times as large. The few numbers that land beyond the count are sent
through again until they land below it (cycle walking, same authors), which keeps it a bijection.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range, Seed, check_ranges
from vitadel.core.rng import RandomStreams

# each changes row and column; with fewer, the positions of a handful of images are visibly related
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
    # a half has at most 30 bits, so the number of the step fits above it; two bits fewer leave space for the sum
    return keys.fold(half + (number << 32)).key_B >> 2
