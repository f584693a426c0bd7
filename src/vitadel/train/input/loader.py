"""Loading of batches to the device: from its own memory, from host memory, or from files read ahead.

Shape letters: B images.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from vitadel.data import Shards, Split, read_ahead
from vitadel.train.input.pil_augment import PILAugment, pil_augmented
from vitadel.train.input.sampler import BatchIndex

_AHEAD = 3
# a data set of up to this number of bytes is kept on a GPU
_ON_DEVICE = 8 * 2**30

# images and labels of one batch
TrainingBatch = tuple[BatchIndex, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Loader:
    """Pixels of real and synthetic images, as floats in [0, 1] on `device`.

    Args:
        real: The training images.
        synthetic: Synthetic images, if batches contain any.
        device: The device of the batches.
        pil_augment: Augmentation when images are read.
        num_workers: Processes for it; 0 uses this process.
    """

    real: Split
    synthetic: Shards | None
    device: torch.device
    pil_augment: PILAugment | None = None
    num_workers: int = 0

    def batches(self, indices: Iterable[BatchIndex], *, seed: int = 0) -> Generator[TrainingBatch, None, None]:
        """Yield (index, images, labels) for each index; `seed` is that of `pil_augment`."""
        if self.pil_augment is not None:
            augmented = pil_augmented(self.real, indices, self.pil_augment, seed=seed, num_workers=self.num_workers)
            yield from map(self._to_device, augmented)
        elif self.synthetic is None and self.real.is_in_memory:
            yield from self._from_memory(indices)
        else:
            yield from map(self._to_device, read_ahead(indices, self._read, _AHEAD))

    def _from_memory(self, indices: Iterable[BatchIndex]) -> Generator[TrainingBatch, None, None]:
        """Copy the data set to a GPU once if it fits, and index it there."""
        on_gpu = self.device.type == "cuda"
        fits = on_gpu and len(self.real) * self.real.pixels.bytes_per_image <= _ON_DEVICE
        if not fits:
            yield from (self._to_device(self._read(index)) for index in indices)
            return
        pixels = self.real.pixels.read(torch.arange(len(self.real))).to(self.device)
        labels = self.real.labels.to(self.device)
        for index in indices:
            row_B = index.row_B.to(self.device, non_blocking=True)
            yield index, _floats(pixels[row_B]), labels[row_B]

    def _read(self, index: BatchIndex) -> TrainingBatch:
        """A batch of bytes in host memory."""
        if self.synthetic is None:
            return index, self.real.pixels.read(index.row_B), self.real.labels[index.row_B]
        synthetic_B = index.synthetic_B
        real, synthetic = index.row_B[~synthetic_B], index.row_B[synthetic_B]
        pixels = torch.cat([self.real.pixels.read(real), self.synthetic.pixels(synthetic)])
        labels = torch.cat([self.real.labels[real], self.synthetic.labels(synthetic)])
        # from "real first" back to the positions in the batch
        back = torch.empty_like(index.row_B)
        back[torch.cat([(~synthetic_B).nonzero().flatten(), synthetic_B.nonzero().flatten()])] = torch.arange(len(back))
        return index, pixels[back], labels[back]

    def _to_device(self, batch: TrainingBatch) -> TrainingBatch:
        index, pixels, labels = batch
        if self.device.type == "cuda":
            pixels, labels = pixels.pin_memory(), labels.pin_memory()
        return (
            index,
            _floats(pixels.to(self.device, non_blocking=True)),
            labels.to(self.device, non_blocking=True),
        )


def _floats(pixels: Tensor) -> Tensor:
    """Pixels / 255, divided by a tensor, because CUDA replaces division by a number with a rounded reciprocal."""
    floats = pixels.to(torch.float32)
    return floats.div_(floats.new_full((), 255))
