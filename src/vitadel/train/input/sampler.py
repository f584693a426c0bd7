"""Which images come when: a function of (seed, step) alone, so that nothing about it has to be saved.

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
from vitadel.train.input.repeated_augmentation import repeated

# streams of one run's seed
_REAL, _SYNTHETIC, _PLACES = 1, 3, 4

Share = Annotated[float, Range(ge=0, le=1, hint="It is the share of synthetic images.")]


@dataclass(frozen=True, slots=True)
class Pick:
    """This process's part of one batch. `index_B` numbers each appearance of each image: draws depend on it."""

    step: int
    row_B: Tensor
    synthetic_B: Tensor
    index_B: Tensor


@dataclass(frozen=True, slots=True)
class Order:
    """Batches of `batch` images, a fixed `share` of each synthetic.

    An epoch is as long as the real images are many, whatever the share: with a share of 0.8 every real image comes once
    in five epochs. Real images alone are shuffled anew for each epoch, and what does not fill a batch is left out.
    Mixed, both streams go on through permutation after permutation, and none of their images is left out.
    """

    real: Count
    batch: Count
    seed: Seed
    synthetic: CountOrZero = 0
    share: Share = 0.0
    repeats: Count = 1

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.share and not self.synthetic:
            raise UsageError("a share of the batch is to be synthetic, but there are no synthetic images.")
        if self.share and self.repeats > 1:
            raise UsageError("repeated augmentation is for real images alone. Set plan.repeats=1 or synthetic to null.")

    @property
    def steps_per_epoch(self) -> int:
        return max(1, self.real // self.batch)

    @property
    def synthetic_per_batch(self) -> int:
        return round(self.share * self.batch)

    def picks(self, steps: range, rank: int = 0, world: int = 1) -> Iterator[Pick]:
        """The batches of these steps: every process gets every `world`-th place of each."""
        epoch, rows, copies = -1, torch.empty(0), torch.empty(0)
        for step in steps:
            if self.share:
                yield self._mixed(step, rank, world)
                continue
            if step // self.steps_per_epoch != epoch:
                epoch = step // self.steps_per_epoch
                rows, copies = self._epoch(epoch)
            place = step % self.steps_per_epoch * self.batch
            row_B = rows[place : place + self.batch][rank::world]
            copy_B = copies[place : place + self.batch][rank::world]
            yield Pick(step, row_B, torch.zeros_like(row_B, dtype=torch.bool), row_B + copy_B * self.real)

    def _epoch(self, epoch: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(fold_seed(self.seed, _REAL, epoch))
        return repeated(torch.randperm(self.real, generator=generator), self.repeats)

    def _mixed(self, step: int, rank: int, world: int) -> Pick:
        made = self.synthetic_per_batch
        kept = self.batch - made
        real_B = Permutation(self.real, fold_seed(self.seed, _REAL)).at(torch.arange(step * kept, (step + 1) * kept))
        made_B = Permutation(self.synthetic, fold_seed(self.seed, _SYNTHETIC)).at(
            torch.arange(step * made, (step + 1) * made)
        )
        generator = torch.Generator().manual_seed(fold_seed(self.seed, _PLACES, step))
        places = torch.randperm(self.batch, generator=generator)[rank::world]
        row_B = torch.cat([real_B, made_B])[places]
        synthetic_B = places >= kept
        return Pick(step, row_B, synthetic_B, row_B + synthetic_B * self.real)
