"""Random numbers that belong to an image, not to its position in a batch.

A torch generator returns numbers in the order of the calls, so the same image gets other noise in another batch, on
another device or after a restart. Here a number is a function of (seed, image index, stream, position): there is no
state to save, and results do not change with the batch size.

The function is SplitMix64 (Steele, Lea & Flood 2014): a 64-bit state advances in steps of the golden ratio, and a
bijective mixer turns each state into a random word. int64 arithmetic wraps in torch, as the algorithm needs.
"""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_WORD = (1 << 64) - 1
# SplitMix64: the step of the state, then the shift and the factor of each round of the mixer
GOLDEN = 0x9E3779B97F4A7C15
FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def fold_seed(seed: int, *numbers: int) -> int:
    """A new seed derived from `seed` and `numbers`, such as the seed of one step of one run; in [0, 2**63)."""
    word = splitmix64_int(seed)
    for number in numbers:
        # the seed is mixed once more than the numbers: otherwise (seed 1, number 2) would equal (seed 2, number 1)
        word = splitmix64_int(word ^ number)
    return word >> 1


@contextmanager
def seeded_generators(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Context manager: the global generators start from `seed`; their states are restored after it.

    These are Python's `random`, numpy's, and torch's on the CPU and on `device`.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        random.seed(seed)
        np.random.seed(seed % 2**32)
        # not torch.manual_seed: it seeds every device there is, and until CUDA starts it queues that for later
        torch.default_generator.manual_seed(seed)
        for one in devices:
            current = torch.cuda.current_device() if one.index is None else one.index
            torch.cuda.default_generators[current].manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


@dataclass(frozen=True, slots=True)
class RandomStreams:
    """One stream of random numbers per image; the same call returns the same numbers."""

    key_B: Tensor

    @classmethod
    def of(cls, seed: int, index_B: Tensor) -> "RandomStreams":
        """The streams of the images numbered `index_B` in their data set."""
        return cls(splitmix64(index_B.to(torch.int64) ^ signed_word(splitmix64_int(seed))))

    def fold(self, number: int | Tensor) -> "RandomStreams":
        """Fresh streams for iteration, restart or purpose `number`, independent of these; [B] if each has its own."""
        word = (
            splitmix64(number + signed_word(GOLDEN))
            if isinstance(number, Tensor)
            else signed_word(splitmix64_int(number))
        )
        return RandomStreams(splitmix64(self.key_B ^ word))

    def at(self, rows: Tensor) -> "RandomStreams":
        """The streams of the images in `rows` only."""
        return RandomStreams(self.key_B[rows])

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """[B, *shape] numbers in [0, 1), with as many random bits as `dtype` holds: more would round up to 1."""
        bits = 1 - round(math.log2(torch.finfo(dtype).eps))
        counter = torch.arange(1, math.prod(shape) + 1, device=self.key_B.device)
        words = splitmix64(self.key_B[:, None] + counter * signed_word(GOLDEN))
        top = _shift(words, 64 - bits).to(torch.float64 if bits == 53 else torch.float32)
        return (top * 2.0**-bits).to(dtype).view(-1, *shape)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """[B, *shape] standard normal numbers (Box & Muller 1958)."""
        radius = (-2 * torch.log1p(-self.fold(1).uniform(*shape, dtype=dtype))).sqrt()
        return radius * (2 * math.pi * self.fold(2).uniform(*shape, dtype=dtype)).cos()

    def randint(self, limit: int | Tensor, *shape: int) -> Tensor:
        """[B, *shape] whole numbers in [0, limit); [B] limits if each stream has its own."""
        if isinstance(limit, Tensor):
            limit = limit.view(-1, *(1 for _ in shape))
        return (self.uniform(*shape, dtype=torch.float64) * limit).to(torch.int64)

    def signs(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """[B, *shape] numbers that are -1 or 1."""
        return torch.where(self.uniform(*shape) < 0.5, -1.0, 1.0).to(dtype)


def signed_word(word: int) -> int:
    """The int64 with the bits of an unsigned word."""
    return word - (1 << 64) if word >> 63 else word


def _shift(words: Tensor, bits: int) -> Tensor:
    # `>>` copies the sign bit of an int64; the mask turns that into the shift of an unsigned word
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def splitmix64(words: Tensor) -> Tensor:
    """SplitMix64's mixer applied to states that were incremented already, as int64."""
    for bits, factor in FACTORS:
        words = (words ^ _shift(words, bits)) * signed_word(factor)
    return words


def splitmix64_int(word: int) -> int:
    """SplitMix64's next number after the state `word`: increment, then mix."""
    word = (word + GOLDEN) & _WORD
    for bits, factor in FACTORS:
        word = ((word ^ (word >> bits)) * factor) & _WORD
    return word
