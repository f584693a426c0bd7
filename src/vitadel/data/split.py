"""A split of a data set: which images, in which order, with which labels."""

import hashlib
import operator
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload

import torch
from torch import Tensor
from torch.utils.data import Dataset

from vitadel.core.errors import UsageError
from vitadel.data.pixels import InMemory, Pixels

_GIB = 2**30


@dataclass(frozen=True, eq=False, repr=False)
class Split(Dataset[tuple[Tensor, int]]):
    """Images in a fixed order: index i is the same image on every machine and in every run.

    A split is a map-style data set for `torch.utils.data.DataLoader`: `split[i]` is an (image, label) pair, and
    `split[:5]` has five images and five labels, stacked.

    Args:
        name: `train`, `holdout` or `test`.
        ids: One name per image, by which it is recognized.
        labels: int64 [N].
        pixels: Where the pixels are read from.
        skipped: Images that were left out on request, each with the reason.

    Example:
        >>> test = vd.load_data("digits").test
        >>> x, y = test.tensors(256)
        >>> x.shape
        torch.Size([256, 3, 8, 8])
        >>> batches = [len(y) for x, y in torch.utils.data.DataLoader(test, batch_size=100)]
        >>> batches
        [100, 100, 100, 59]
    """

    name: str
    ids: tuple[str, ...]
    labels: Tensor
    pixels: Pixels
    skipped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        height, width = self.pixels.image_size
        classes = len(self.labels.unique())
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        where = "in memory" if self.is_in_memory else "read when needed"
        return f"Split({self.name!r}: {len(self)} images of {height} x {width}, {classes} classes{skipped}; {where})"

    @overload
    def __getitem__(self, i: int) -> tuple[Tensor, int]: ...

    @overload
    def __getitem__(self, i: slice) -> tuple[Tensor, Tensor]: ...

    def __getitem__(self, i: int | slice) -> tuple[Tensor, int | Tensor]:
        """The image, float32 [3, H, W] in [0, 1], and its label; of a slice, those of all its images, stacked.

        Negative numbers count from the end. `split[:5]` gives tensors [5, 3, H, W] and [5], as `TensorDataset` does;
        `take` gives a split.
        """
        if isinstance(i, slice):
            index = torch.tensor(range(len(self))[i], dtype=torch.int64)
            return self.images(index), self.labels[index]
        i = operator.index(i)
        if not -len(self) <= i < len(self):
            raise IndexError(f"split {self.name!r} has {len(self)} images, got index {i}")
        return self.__getitems__([i % len(self)])[0]

    def __getitems__(self, index: Sequence[int]) -> list[tuple[Tensor, int]]:
        """Several items; DataLoader calls this, so that images are decoded in parallel."""
        chosen = torch.as_tensor(index, dtype=torch.int64)
        return list(zip(self.images(chosen), self.labels[chosen].tolist(), strict=True))

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for index in torch.arange(len(self)).split(64):
            yield from self.__getitems__(index.tolist())

    def tensors(self, n: int | None = None) -> tuple[Tensor, Tensor]:
        """The first `n` images, or all: float32 [n, 3, H, W] in [0, 1], and labels, int64 [n], on the CPU."""
        index = torch.arange(len(self) if n is None else min(n, len(self)))
        return self.images(index), self.labels[index]

    @cached_property
    def sha256(self) -> str:
        """A hash of names and labels, in order; the pixels are not part of it."""
        digest = hashlib.sha256()
        for label, name in zip(self.labels.tolist(), self.ids, strict=True):
            digest.update(f"{label} {name}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    @property
    def is_in_memory(self) -> bool:
        """Whether every image is decoded and held in memory."""
        return isinstance(self.pixels, InMemory)

    def images(self, index: Tensor) -> Tensor:
        """float32 [B, 3, H, W] in [0, 1], on the CPU.

        Args:
            index: int64 [B]: which images, in any order, with repetitions or without.

        Raises:
            UsageError: An index is out of range, or an image cannot be read.
        """
        return self.pixels.read(self._checked(index)).to(torch.float32).div_(255)

    def take(self, index: Tensor) -> "Split":
        """The images at `index`, in that order."""
        index = self._checked(index)
        ids = tuple(self.ids[i] for i in index.tolist())
        return Split(self.name, ids, self.labels[index], self.pixels.take(index), self.skipped)

    def load_if_small(self, *, limit: int = 2 * _GIB) -> "Split":
        """The split held in memory if that takes at most `limit` bytes, else unchanged."""
        return self.load_into_memory() if len(self) * self.pixels.bytes_per_image <= limit else self

    def load_into_memory(self, *, limit: int = 8 * _GIB) -> "Split":
        """The same split with every image decoded once and held in memory, if that takes at most `limit` bytes."""
        if self.is_in_memory:
            return self
        need = len(self) * self.pixels.bytes_per_image
        if need > limit:
            raise UsageError(
                f"holding the {len(self)} images of split {self.name!r} in memory takes {need / _GIB:.2f} GiB, "
                f"more than the limit of {limit / _GIB:.2f} GiB. Read them batch by batch, or take fewer with [:n]."
            )
        return replace(self, pixels=InMemory(self.pixels.read(torch.arange(len(self)))))

    def _checked(self, index: Tensor) -> Tensor:
        return checked_index(index, len(self), f"split {self.name!r}")


def checked_index(index: Tensor, count: int, owner: str, hint: str = "") -> Tensor:
    """`index` on the CPU, if it is a list of int64 numbers in range(count); `owner` and `hint` are for the error."""
    index = index.cpu()
    if index.dtype != torch.int64 or index.dim() != 1:
        raise UsageError(
            f"index must be a list of int64 numbers, got {index.dtype} of shape {tuple(index.shape)}. "
            "Write torch.tensor([3, 5])."
        )
    if len(index) and not (index.min() >= 0 and index.max() < count):
        got = f"{int(index.min())} to {int(index.max())}"
        raise UsageError(f"{owner} has images 0 to {count - 1}, got index {got}.{hint}")
    return index


def check_not_empty(images: Sized, what: str, purpose: str) -> None:
    """Raise if there are no images.

    Args:
        images: The images.
        what: What the error calls them, such as "the test split of digits".
        purpose: What they are needed for, such as "evaluate".
    """
    if len(images) == 0:
        raise UsageError(f"{what} is empty, so there is nothing to {purpose}. Choose a longer slice or other data.")
