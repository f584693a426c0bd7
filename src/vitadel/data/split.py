"""A split: which images, in which order, with which labels."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.data.pixels import Held, Pixels
from vitadel.data.rows import checked_rows

_GIB = 2**30


@dataclass(frozen=True, eq=False)
class Split:
    """Images in a pinned order: row r is the same image on every machine and in every run.

    `skipped` are images that were left out because somebody asked for that, each with the reason.
    """

    name: str
    ids: tuple[str, ...]
    labels: Tensor
    pixels: Pixels
    skipped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def sha256(self) -> str:
        """A hash over identities and labels, in order; the pixels are not part of it."""
        digest = hashlib.sha256()
        for label, name in zip(self.labels.tolist(), self.ids, strict=True):
            digest.update(f"{label} {name}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    @property
    def is_resident(self) -> bool:
        return isinstance(self.pixels, Held)

    def images(self, rows: Tensor) -> Tensor:
        """float32 [B, 3, H, W] in [0, 1], on the CPU."""
        return self.pixels.read(self._checked(rows)).to(torch.float32).div_(255)

    def take(self, rows: Tensor) -> "Split":
        """The images in `rows` alone, in that order."""
        rows = self._checked(rows)
        ids = tuple(self.ids[row] for row in rows.tolist())
        return Split(self.name, ids, self.labels[rows], self.pixels.take(rows), self.skipped)

    def resident_if_small(self, *, limit: int = 2 * _GIB) -> "Split":
        """The split held in memory if that takes at most `limit` bytes, else as it is."""
        return self.resident() if len(self) * self.pixels.bytes_per_image <= limit else self

    def resident(self, *, limit: int = 8 * _GIB) -> "Split":
        """The same split with every image decoded once and held in memory, if that takes at most `limit` bytes."""
        if self.is_resident:
            return self
        need = len(self) * self.pixels.bytes_per_image
        if need > limit:
            raise UsageError(
                f"holding the {len(self)} images of split {self.name!r} in memory takes {need / _GIB:.2f} GiB, "
                f"more than the limit of {limit / _GIB:.2f} GiB. Read them batch by batch, or take fewer with [:n]."
            )
        return replace(self, pixels=Held(self.pixels.read(torch.arange(len(self)))))

    def _checked(self, rows: Tensor) -> Tensor:
        return checked_rows(rows, len(self), f"split {self.name!r}")
