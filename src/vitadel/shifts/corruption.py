"""A corruption at one severity, applied to batches of images."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from zlib import crc32

import torch
from torch import Tensor

from vitadel.core.errors import UsageError, unknown
from vitadel.core.numeric import Range, check_ranges, check_seed
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.shifts.filters import divided, whole
from vitadel.shifts.frost import digest, photos_in
from vitadel.shifts.jpeg import jpeg
from vitadel.shifts.tables import CORRUPTIONS, TABLES

SEVERITIES = (1, 2, 3, 4, 5)
_SMALLEST = 16
_CIFAR_SIDE = 32
# values worked on at a time: what the cache of one core holds, and what a GPU has plenty of memory for
_VALUES = {"cpu": 1 << 18}
_VALUES_ON_GPU = 1 << 25
# the CIFAR sets were made with the photographs of frost at a fifth of their size
_FROST_STRIDE = {"imagenet": 1, "cifar": 5}

Severity = Annotated[int, Range(ge=1, le=5)]
Quality = Annotated[int, Range(ge=1, le=100, hint="ImageNet-C's files have 85.")]


@dataclass(frozen=True, slots=True)
class Corruption:
    """One cell of ImageNet-C: a corruption by name at a severity from 1 to 5.

    `table` is `imagenet` or `cifar`; None takes the CIFAR table for 32 px images and ImageNet's for all others.
    `jpeg` adds a round trip through JPEG of that quality: 85 is what the released files of ImageNet-C went through.
    `frost` names a folder of photographs for the corruption of that name; without one its ice is procedural, which is
    not ImageNet-C's.

    What is drawn for an image depends on the seed, its row in the data set, the corruption and the severity, and
    never on its batch (tests/unit/shifts/test_shifts_corruption.py).
    """

    name: str
    severity: Severity
    table: str | None = None
    jpeg: Quality | None = None
    frost: Path | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.name not in CORRUPTIONS:
            raise unknown("corruption", self.name, CORRUPTIONS)
        if self.table is not None and self.table not in TABLES:
            raise unknown("table of severities", self.table, TABLES)
        if self.frost is not None:
            if self.name != "frost":
                raise UsageError(f"only the corruption frost takes a folder of photographs, got one for {self.name}.")
            photos_in(self.frost)

    def table_for(self, height: int, width: int) -> str:
        """The table that images of this size are corrupted by."""
        return self.table or ("cifar" if height == width == _CIFAR_SIDE else "imagenet")

    def describe(self, height: int, width: int) -> dict[str, object]:
        """All that decides the pixels besides image and seed, for the record beside a result."""
        table = self.table_for(height, width)
        known: dict[str, object] = {"corruption": self.name, "severity": self.severity, "table": table}
        known["parameters"] = list(CORRUPTIONS[self.name].parameters(table, self.severity))
        known["jpeg"] = self.jpeg
        if self.name == "frost" and self.frost is None:
            known["frost"] = "procedural"
        elif self.frost is not None:
            known["frost"] = [path.name for path in photos_in(self.frost)]
            known["frost_sha256"] = digest(self.frost)
        return known

    @torch.no_grad()
    def __call__(self, x: Tensor, rows: Tensor, *, seed: int) -> Tensor:
        """Corrupt images [B, 3, H, W] in [0, 1], which are rows `rows` [B] of their data set.

        The images are taken to the nearest of 256 gray levels first, and the result is cut down to one: 8-bit images
        in, 8-bit images out, as in the original.
        """
        check_seed(seed)
        _refuse(x, rows)
        out = torch.empty_like(x, dtype=torch.float32)
        streams = RandomStreams.of(fold_seed(seed, crc32(self.name.encode()), self.severity), rows.to(x.device))
        many = max(1, _VALUES.get(x.device.type, _VALUES_ON_GPU) // x[0].numel())
        if self.name == "jpeg_compression":
            many = len(x)  # spreads images, not pixels, over the threads
        for first in range(0, len(x), many):
            part = slice(first, first + many)
            self._apply(x[part].float(), RandomStreams(streams.key_B[part]), out[part])
        return (jpeg(out, self.jpeg) if self.jpeg else out).to(x.dtype)

    def _apply(self, x: Tensor, draws: RandomStreams, out: Tensor | None = None) -> Tensor:
        kind, table = CORRUPTIONS[self.name], self.table_for(*x.shape[-2:])
        files = (self.frost, _FROST_STRIDE[table]) if self.name == "frost" else ()
        gray = divided((x * 255).round_().to(kind.dtype), 255)
        return whole(kind.apply(gray, draws, *kind.parameters(table, self.severity), *files), out)


def _refuse(x: Tensor, rows: Tensor) -> None:
    if not x.is_floating_point():
        raise UsageError(f"corruptions take float images in [0, 1], got {x.dtype}. Write x.float() / 255.")
    if x.ndim != 4 or x.shape[1] != 3 or min(x.shape[2:]) < _SMALLEST or not len(x):
        raise UsageError(
            f"corruptions take images [B, 3, H, W] of at least {_SMALLEST} px a side, got {list(x.shape)}. "
            "Repeat the channel of a gray image: x.expand(-1, 3, -1, -1)."
        )
    if rows.shape != (len(x),) or rows.is_floating_point():
        raise UsageError(
            f"corruptions take one whole number per image, its row in the data set: {len(x)} images, "
            f"got rows of shape {list(rows.shape)} and {rows.dtype}. Write torch.arange(len(x)) for a set of its own."
        )
    low, high = x.aminmax()
    if not (low >= 0 and high <= 1):
        raise UsageError(
            f"corruptions take pixels in [0, 1], got [{low:.3g}, {high:.3g}]. "
            "Normalization belongs inside the model, after the corruption."
        )


def grid(
    *, extra: bool = False, table: str | None = None, jpeg: int | None = None, frost: Path | None = None
) -> Iterator[Corruption]:
    """The 75 cells of the benchmark, severity by severity within each corruption; 95 with the extra four."""
    for name, kind in CORRUPTIONS.items():
        if extra or kind.group != "extra":
            for severity in SEVERITIES:
                yield Corruption(name, severity, table, jpeg, frost if name == "frost" else None)
