"""From a picture of any size and mode to the pixels a model sees: uint8 [3, H, W]."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitadel.core.errors import UsageError, short_repr, unknown_name_error
from vitadel.core.numeric import LARGEST_SIDE, Range, check_ranges, parse_int

Size = Annotated[int, Range(ge=1, le=LARGEST_SIDE, hint="Write the model's input size, such as 224.")]

_WHITE = 2**16 - 1
# what a picture may have once resized, for a long thin one that grows: 400 MB of memory
_MOST_PIXELS = 2**27
_FORMS = "Write crop:SIZE[:RESIZE][:INTERPOLATION] or squash:SIZE[:INTERPOLATION], such as crop:224:256:bicubic."


class Interpolation(Enum):
    """How pictures are resampled; both average over the area that a shrunk pixel covers (antialiasing)."""

    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """Resize of the short side to `resize`, then a central crop of `size`; preserves the aspect ratio.

    Without `resize`, the crop keeps 7/8 of the short side, as in 224 of 256.
    """

    size: Size
    resize: Size | None = None
    interpolation: Interpolation = Interpolation.BILINEAR

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.short_side < self.size:
            raise UsageError(
                f"CenterCrop.resize must be at least the size {self.size}, got {self.resize}. "
                f"The crop would reach beyond the image. Write at least {self.size}."
            )

    @property
    def short_side(self) -> int:
        """The length that the short side is resized to."""
        return round(self.size / 0.875) if self.resize is None else self.resize

    @property
    def name(self) -> str:
        """The name in manifests and records."""
        return f"crop{self.size}-of-{self.short_side}-{self.interpolation.value}"

    def is_noop_for(self, width: int, height: int) -> bool:
        """Whether an image of this size is not changed."""
        return width == height == self.size == self.short_side

    def __call__(self, picture: Image.Image) -> Tensor:
        short = min(picture.size)
        # the long side is cut, not rounded, and the corner rounded to even: torchvision's and timm's convention
        width, height = (self.short_side if side == short else self.short_side * side // short for side in picture.size)
        if width * height > _MOST_PIXELS:
            raise ValueError(
                f"it has {picture.width} x {picture.height} pixels, which a short side of {self.short_side} makes "
                f"{width} x {height}"
            )
        picture = _resize(rgb(picture), width, height, self.interpolation)
        left, top = round((width - self.size) / 2), round((height - self.size) / 2)
        return _tensor(picture.crop((left, top, left + self.size, top + self.size)))


@dataclass(frozen=True, slots=True)
class Squash:
    """Resize of the whole image to `size` x `size`; does not preserve the aspect ratio."""

    size: Size
    interpolation: Interpolation = Interpolation.BILINEAR

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def name(self) -> str:
        """The name in manifests and records."""
        return f"squash{self.size}-{self.interpolation.value}"

    def is_noop_for(self, width: int, height: int) -> bool:
        """Whether an image of this size is not changed."""
        return width == height == self.size

    def __call__(self, picture: Image.Image) -> Tensor:
        return _tensor(_resize(rgb(picture), self.size, self.size, self.interpolation))


Preprocess = CenterCrop | Squash


def parse_preprocess(text: str) -> Preprocess:
    """Read `crop:224`, `crop:224:256`, `crop:224:256:bicubic`, `squash:32` or `squash:32:bicubic`."""
    kind, *words = text.split(":")
    if kind not in ("crop", "squash"):
        raise unknown_name_error("preprocess", kind, ("crop", "squash"))
    interpolation = Interpolation.BILINEAR
    if words and not _is_number(words[-1]):
        interpolation = _interpolation(words.pop())
    if not 1 <= len(words) <= (2 if kind == "crop" else 1) or not all(map(_is_number, words)):
        raise UsageError(f"cannot read the preprocess {short_repr(text)}. {_FORMS}")
    numbers = [parse_int(word, "a size in pixels") for word in words]
    if kind == "squash":
        return Squash(numbers[0], interpolation)
    return CenterCrop(numbers[0], numbers[1] if len(numbers) == 2 else None, interpolation)


def _is_number(word: str) -> bool:
    return re.fullmatch("[0-9]+", word) is not None


def _interpolation(word: str) -> Interpolation:
    known = {item.value: item for item in Interpolation}
    if word not in known:
        raise unknown_name_error("interpolation", word, known)
    return known[word]


def rgb(picture: Image.Image) -> Image.Image:
    """Three channels of 8 bits: gray is repeated, transparency dropped, 16 bits scaled to 8.

    Raises:
        ValueError: the pixels are floats or 32-bit integers, whose white value is unknown.
    """
    if picture.mode == "F" or (picture.mode == "I" and picture.format == "TIFF"):
        kind = "floats" if picture.mode == "F" else "32-bit integers"
        raise ValueError(f"its pixels are {kind}, and it does not say which value is white; save it with 8 or 16 bits")
    if picture.mode.startswith("I"):  # 16-bit gray, which Pillow would clip at 255 instead of scaling
        gray = np.asarray(picture, dtype=np.float64)
        if gray.min() < 0 or gray.max() > _WHITE:
            raise ValueError(f"its pixels reach from {gray.min():g} to {gray.max():g}, beyond 16 bits")
        picture = Image.fromarray((gray / 257).round().astype(np.uint8))
    elif picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")  # Pillow warns when a transparent palette loses its alpha in one go
    return picture.convert("RGB")


def _resize(picture: Image.Image, width: int, height: int, interpolation: Interpolation) -> Image.Image:
    if picture.size == (width, height):
        return picture
    bicubic = interpolation is Interpolation.BICUBIC
    return picture.resize((width, height), Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR)


def _tensor(picture: Image.Image) -> Tensor:
    # np.array copies: torch must not share Pillow's read-only memory
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()
