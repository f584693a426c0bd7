"""The images of each batch: a function of (seed, step) only, so that there is no state to save.

Shape letters: B images.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, CountOrZero, Range, Seed, check_ranges
from vitadel.core.rng import fold_seed
from vitadel.data import Permutation

# streams of the seed of a run
_REAL, _SYNTHETIC, _POSITIONS = 1, 3, 4

Share = Annotated[float, Range(ge=0, le=1, hint="It is the share of synthetic images.")]


@dataclass(frozen=True, slots=True)
class BatchIndex:
    """This process's part of one batch.

    Args:
        step: The update that the batch is for.
        row_B: Positions in the split, or in the synthetic images where `synthetic_B` is true.
        synthetic_B: Whether each image is synthetic.
        index_B: A number for each copy of each image, which its random numbers depend on.
    """

    step: int
    row_B: Tensor
    synthetic_B: Tensor
    index_B: Tensor


@dataclass(frozen=True, slots=True)
class Sampler:
    """Batches of `batch_size` images, a fixed `share` of each synthetic.

    The length of an epoch is the number of real images, whatever the share: with a share of 0.8 every real image
    appears once in five epochs. Without synthetic images, every epoch is shuffled and an incomplete last batch is
    dropped. With them, real and synthetic images each follow a sequence of permutations, and none is dropped.

    With `repeats` (repeated augmentation, Hoffer et al. 2020; 3 in DeiT), every image appears `repeats` times in a row,
    and an epoch of the same length covers fewer distinct images. A process that takes every `world_size`-th image gets
    other copies than its neighbors, as with DeiT's sampler; unlike there, an epoch is not truncated to a multiple of
    256 images.
    """

    real: Count
    batch_size: Count
    seed: Seed
    synthetic: CountOrZero = 0
    share: Share = 0.0
    repeats: Count = 1

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.share and not self.synthetic:
            raise UsageError(
                "a share of every batch should be synthetic, but there are no synthetic images. Set synthetic to none."
            )
        if self.share and self.repeats > 1:
            raise UsageError("repeated augmentation is for real images only. Set plan.repeats=1 or synthetic to none.")

    @property
    def steps_per_epoch(self) -> int:
        """Updates per epoch."""
        return max(1, self.real // self.batch_size)

    @property
    def synthetic_per_batch(self) -> int:
        """Synthetic images in each batch."""
        return round(self.share * self.batch_size)

    def batches(self, steps: range, rank: int = 0, world_size: int = 1) -> Iterator[BatchIndex]:
        """The batches of these steps; every process gets every `world_size`-th image of each."""
        epoch, rows, copies = -1, torch.empty(0), torch.empty(0)
        for step in steps:
            if self.share:
                yield self._mixed(step, rank, world_size)
                continue
            if step // self.steps_per_epoch != epoch:
                epoch = step // self.steps_per_epoch
                rows, copies = self.epoch(epoch)
            begin = step % self.steps_per_epoch * self.batch_size
            row_B, copy_B = (values[begin : begin + self.batch_size][rank::world_size] for values in (rows, copies))
            yield BatchIndex(step, row_B, torch.zeros_like(row_B, dtype=torch.bool), row_B + copy_B * self.real)

    def epoch(self, number: int) -> tuple[Tensor, Tensor]:
        """The rows of an epoch in their order, and for each the number of the copy, from 0."""
        generator = torch.Generator().manual_seed(fold_seed(self.seed, _REAL, number))
        position = torch.arange(self.real)
        return torch.randperm(self.real, generator=generator)[position // self.repeats], position % self.repeats

    def _mixed(self, step: int, rank: int, world_size: int) -> BatchIndex:
        synthetic = self.synthetic_per_batch
        real = self.batch_size - synthetic
        real_B = Permutation(self.real, fold_seed(self.seed, _REAL)).at(torch.arange(step * real, (step + 1) * real))
        synthetic_B = Permutation(self.synthetic, fold_seed(self.seed, _SYNTHETIC)).at(
            torch.arange(step * synthetic, (step + 1) * synthetic)
        )
        generator = torch.Generator().manual_seed(fold_seed(self.seed, _POSITIONS, step))
        positions = torch.randperm(self.batch_size, generator=generator)[rank::world_size]
        row_B = torch.cat([real_B, synthetic_B])[positions]
        is_synthetic_B = positions >= real
        return BatchIndex(step, row_B, is_synthetic_B, row_B + is_synthetic_B * self.real)
