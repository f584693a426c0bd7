"""A corruption at one severity, applied to batches of images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from zlib import crc32

import torch
from torch import Tensor

from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.core.numeric import Range, check_ranges, check_seed
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.shifts.filters import divide, floor_levels
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

    The random numbers of an image depend on the seed, its index in the data set, the corruption and the severity, and
    never on its batch (tests/unit/shifts/test_shifts_corruption.py).

    Args:
        name: One of `CORRUPTIONS`.
        severity: 1 to 5.
        table: `imagenet` or `cifar`; None takes the CIFAR table for 32 px images and ImageNet's for all others.
        jpeg: Quality of a round trip through JPEG; 85 is what the released files of ImageNet-C went through.
        frost: A folder of photographs for the corruption of that name, which is procedural without one, and then not
            ImageNet-C's.

    Example:
        >>> Corruption("fog", 3)(x, torch.arange(len(x)), seed=0)
    """

    name: str
    severity: Severity
    table: str | None = None
    jpeg: Quality | None = None
    frost: Path | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.name not in CORRUPTIONS:
            raise unknown_name_error("corruption", self.name, CORRUPTIONS)
        if self.table is not None and self.table not in TABLES:
            raise unknown_name_error("table of severities", self.table, TABLES)
        if self.frost is not None:
            if self.name != "frost":
                raise UsageError(
                    f"only the corruption frost takes a folder of photographs, got one for {self.name}. Leave it out."
                )
            photos_in(self.frost)

    def table_for(self, height: int, width: int) -> str:
        """The table that images of this size are corrupted by."""
        return self.table or ("cifar" if height == width == _CIFAR_SIDE else "imagenet")

    def describe(self, height: int, width: int) -> dict[str, object]:
        """All that determines the pixels besides image and seed, for the record of a result."""
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
    def __call__(self, x: Tensor, index_B: Tensor, *, seed: int) -> Tensor:
        """Corrupt images.

        They are rounded to the nearest of 256 gray levels first, and the result is cut down to one: 8-bit images in,
        8-bit images out, as in the original.

        Args:
            x: [B, 3, H, W] in [0, 1].
            index_B: [B] the index of each image in its data set.
            seed: Seeds all random numbers, together with the index.

        Returns:
            [B, 3, H, W] in [0, 1], of the same type and on the same device.
        """
        check_seed(seed)
        _refuse(x, index_B)
        out = torch.empty_like(x, dtype=torch.float32)
        streams = RandomStreams.of(fold_seed(seed, crc32(self.name.encode()), self.severity), index_B.to(x.device))
        many = max(1, _VALUES.get(x.device.type, _VALUES_ON_GPU) // x[0].numel())
        if self.name == "jpeg_compression":
            many = len(x)  # spreads images, not pixels, over the threads
        for first in range(0, len(x), many):
            part = slice(first, first + many)
            self.apply(x[part].float(), RandomStreams(streams.key_B[part]), out[part])
        return (jpeg(out, self.jpeg) if self.jpeg else out).to(x.dtype)

    def apply(self, x: Tensor, rng: RandomStreams, out: Tensor | None = None) -> Tensor:
        """As a call without its checks and without `jpeg`, with random numbers from `rng`."""
        kind, table = CORRUPTIONS[self.name], self.table_for(*x.shape[-2:])
        files = (self.frost, _FROST_STRIDE[table]) if self.name == "frost" else ()
        gray = divide((x * 255).round_().to(kind.dtype), 255)
        return floor_levels(kind.apply(gray, rng, *kind.parameters(table, self.severity), *files), out)


def _refuse(x: Tensor, index_B: Tensor) -> None:
    if not x.is_floating_point():
        raise UsageError(f"corruptions take float images in [0, 1], got {x.dtype}. Write x.float() / 255.")
    if x.ndim != 4 or x.shape[1] != 3 or min(x.shape[2:]) < _SMALLEST or not len(x):
        raise UsageError(
            f"corruptions take images [B, 3, H, W] of at least {_SMALLEST} px a side, got {list(x.shape)}. "
            "Repeat the channel of a gray image: x.expand(-1, 3, -1, -1)."
        )
    if index_B.shape != (len(x),) or index_B.is_floating_point():
        raise UsageError(
            f"corruptions take one whole number per image, its index in the data set: {len(x)} images, got indices of "
            f"shape {list(index_B.shape)} and {index_B.dtype}. Write torch.arange(len(x)) for a separate set."
        )
    low, high = x.aminmax()
    if not (low >= 0 and high <= 1):
        raise UsageError(
            f"corruptions take pixels in [0, 1], got [{low:.3g}, {high:.3g}]. "
            "Normalization belongs inside the model, after the corruption. Leave it to the model."
        )
