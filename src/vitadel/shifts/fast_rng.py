"""Fast random numbers for whole images.

A corruption needs one or two random numbers per pixel value, 150,000 at 224 px, so sampling takes as long as the
corruption itself. These numbers have the same keys and guarantees as those of `vitadel.core.rng` (a function of seed,
image, stream and position, the same on every device), but each 64-bit word gives two of them, and each pair of uniform
numbers two normal ones.
"""

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitadel.core.rng import FACTORS, GOLDEN, RandomStreams, signed_word

*_ROUNDS, (_LAST, _) = FACTORS  # the factor of the last round is 1


def uniform(rng: RandomStreams, *shape: int) -> Tensor:
    """[B, *shape] float32 numbers in [0, 1), multiples of 2**-24."""
    count = math.prod(shape)
    halves = _words(rng, (count + 1) // 2).view(torch.int32)[:, :count]
    return (halves >> 8).float().mul_(2.0**-24).add_(0.5).view(-1, *shape)


def normal(rng: RandomStreams, *shape: int) -> Tensor:
    """[B, *shape] float32 standard normal numbers (Box & Muller 1958), both of each pair used."""
    count = math.prod(shape)
    pairs = (count + 1) // 2
    u, v = uniform(rng, 2, pairs).unbind(1)
    radius, angle = u.neg_().log1p_().mul_(-2).sqrt_(), v.mul_(2 * math.pi)
    both = u.new_empty(len(u), 2, pairs)
    torch.cos(angle, out=both[:, 0])
    torch.sin(angle, out=both[:, 1])
    return both.mul_(radius[:, None]).flatten(1)[:, :count].reshape(-1, *shape)


def _words(rng: RandomStreams, count: int) -> Tensor:
    return words_by_numpy(rng.key_B, count) if rng.key_B.is_cpu else words_by_torch(rng.key_B, count)


def words_by_numpy(key_B: Tensor, count: int) -> Tensor:
    """[B, count] words of SplitMix64; numpy multiplies them faster and shifts unsigned ones in one operation."""
    words = key_B.numpy().view(np.uint64)[:, None] + _steps(count)
    shifted = np.empty_like(words)
    for bits, factor in _ROUNDS:
        words ^= np.right_shift(words, np.uint64(bits), out=shifted)
        words *= np.uint64(factor)
    words ^= np.right_shift(words, np.uint64(_LAST), out=shifted)
    return torch.from_numpy(words.view(np.int64))


@lru_cache(maxsize=8)
def _steps(count: int) -> NDArray[np.uint64]:
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)


def words_by_torch(key_B: Tensor, count: int) -> Tensor:
    """The same words, on any device."""
    words = key_B[:, None] + torch.arange(1, count + 1, device=key_B.device) * signed_word(GOLDEN)
    for bits, factor in _ROUNDS:
        words.bitwise_xor_(_shift(words, bits)).mul_(signed_word(factor))
    return words.bitwise_xor_(_shift(words, _LAST))


def _shift(words: Tensor, bits: int) -> Tensor:
    # an unsigned shift, as in core.rng, but in place
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)
