"""Images on their way to the device: from its own memory, from the computer's, or from files read ahead.

Shape letters: B images.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vitadel.data import Shards, Split, read_ahead
from vitadel.train.input.pil_augment import PILAugment, host_batches
from vitadel.train.input.sampler import Pick

_AHEAD = 3
# a data set of up to so many bytes is kept on a GPU
_ON_DEVICE = 8 * 2**30

Batch = tuple[Pick, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Loader:
    """Pixels of real and synthetic images, as floats in [0, 1] on `device`."""

    real: Split
    synthetic: Shards | None
    device: torch.device

    def batches(self, picks: Iterable[Pick]) -> Generator[Batch, None, None]:
        """(pick, images, labels) in turn."""
        if self.synthetic is None and self.real.is_in_memory:
            yield from self._from_memory(picks)
        else:
            yield from map(self._sent, read_ahead(picks, self._read, _AHEAD))

    def augmented(
        self, picks: Iterable[Pick], augment: PILAugment, seed: int, first: int, workers: int
    ) -> Generator[Batch, None, None]:
        """The same with every image changed where it is read; `first` is the step of the first pick."""
        waiting: deque[Pick] = deque()

        def turns() -> Iterator[tuple[Tensor, Tensor]]:
            for pick in picks:
                waiting.append(pick)
                yield pick.row_B, pick.index_B // len(self.real)

        for _, pixels, y in host_batches(self.real, turns(), augment, seed=seed, first=first, workers=workers):
            yield self._sent((waiting.popleft(), pixels, y))

    def _from_memory(self, picks: Iterable[Pick]) -> Generator[Batch, None, None]:
        """Copied to the device once if it has room: a batch is then an index into it."""
        on_gpu = self.device.type == "cuda"
        fits = on_gpu and len(self.real) * self.real.pixels.bytes_per_image <= _ON_DEVICE
        if not fits:
            yield from (self._sent(self._read(pick)) for pick in picks)
            return
        pixels = self.real.pixels.read(torch.arange(len(self.real))).to(self.device)
        labels = self.real.labels.to(self.device)
        for pick in picks:
            row_B = pick.row_B.to(self.device, non_blocking=True)
            yield pick, _floats(pixels[row_B]), labels[row_B]

    def _read(self, pick: Pick) -> Batch:
        """Bytes on the computer's side."""
        if self.synthetic is None:
            return pick, self.real.pixels.read(pick.row_B), self.real.labels[pick.row_B]
        made_B = pick.synthetic_B
        kept, made = pick.row_B[~made_B], pick.row_B[made_B]
        parts = torch.cat([self.real.pixels.read(kept), self.synthetic.pixels(made)])
        labels = torch.cat([self.real.labels[kept], self.synthetic.labels(made)])
        # from "real first" back to the places of the batch
        back = torch.empty_like(pick.row_B)
        back[torch.cat([(~made_B).nonzero().flatten(), made_B.nonzero().flatten()])] = torch.arange(len(back))
        return pick, parts[back], labels[back]

    def _sent(self, batch: Batch) -> Batch:
        pick, pixels, labels = batch
        if self.device.type == "cuda":
            pixels, labels = pixels.pin_memory(), labels.pin_memory()
        return (
            pick,
            _floats(pixels.to(self.device, non_blocking=True)),
            labels.to(self.device, non_blocking=True),
        )


def _floats(pixels: Tensor) -> Tensor:
    """The same floats on every device: by a plain number, CUDA multiplies with the rounded reciprocal instead."""
    floats = pixels.to(torch.float32)
    return floats.div_(floats.new_full((), 255))
