"""Frost on the window: from photographs, or procedural. B images, H rows, W columns, P photographs."""

import hashlib
import math
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, WebPImagePlugin  # noqa: F401 (makes its format known)
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.files import check_regular_file
from vitadel.core.rng import RandomStreams
from vitadel.shifts.fast_rng import normal
from vitadel.shifts.filters import by_frequency, divide

ORIGINAL = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg", "frost6.jpg")
_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}
# Pillow reads the content, whatever a file is called, and has Ghostscript run what is PostScript
_FORMATS = ("BMP", "JPEG", "PNG", "TIFF", "WEBP")
# mean and spread of R, G, B in each photograph of the original; the second lies there twice
_TINTS = (
    ((78, 149, 166), (27, 17, 15)),
    ((201, 205, 215), (22, 22, 22)),
    ((201, 205, 215), (22, 22, 22)),
    ((138, 153, 165), (29, 29, 29)),
    ((112, 123, 135), (44, 43, 42)),
)
# power falls as frequency to the -1.6 in the photographs; the ridges' kinks lift the high end, so noise falls faster
_SLOPE = -1.75
_RIDGES = 0.6


def frost(x: Tensor, rng: RandomStreams, keep: float, add: float, folder: Path | None, stride: int) -> Tensor:
    """keep x + add ice, with the ice of a random window of a photograph from `folder`, or procedural if that is None.

    Added and cut in gray levels, 0 to 255, as in the original: shares of a tenth often add up to a whole level.
    """
    ice = procedural(x, rng) * 255 if folder is None else from_photographs(x, rng, folder, stride)
    levels = (x * 255).round_().mul_(keep).add_(ice.to(x.dtype).mul_(add))
    return divide(levels.clamp_(0, 255).floor_(), 255)


def photos_in(folder: Path) -> list[Path]:
    """The photographs to draw from; of the original six only five, since its draw never reaches the last."""
    if not os.path.isdir(folder):
        raise UsageError(
            f"there is no folder {str(folder)!r} of frost photographs. Leave frost out for procedural ice."
        )
    try:
        if all((folder / name).is_file() for name in ORIGINAL):
            return [folder / name for name in ORIGINAL[:-1]]
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS)
    except OSError as error:
        raise UsageError(
            f"cannot list the frost folder {str(folder)!r}: {error.strerror}. Make it readable."
        ) from error
    for path in paths:
        check_regular_file(path)
    if not paths:
        raise UsageError(f"the frost folder {str(folder)!r} holds no photographs. Put .png or .jpg files there.")
    return paths


def digest(folder: Path) -> str:
    """The photographs' bytes in one number: other pictures by the same names are other ice."""
    try:
        parts = [hashlib.sha256(path.read_bytes()).digest() for path in photos_in(folder)]
    except OSError as error:
        raise _unreadable(error.filename, error) from error
    return hashlib.sha256(b"".join(parts)).hexdigest()


@dataclass(frozen=True, slots=True)
class Photos:
    """Photographs of different sizes end to end: pixels [3, all] from 0 to 255; start, height and width of each [P]."""

    pixels: Tensor
    start: Tensor
    height: Tensor
    width: Tensor


@cache
def _opened(folder: Path, stride: int, height: int, width: int, device: torch.device) -> Photos:
    photos = [read_photo(path, stride, height, width) for path in photos_in(folder)]
    sizes = torch.tensor([photo.shape[1:] for photo in photos])
    areas = sizes.prod(1)
    pixels = torch.cat([photo.flatten(1) for photo in photos], 1).float()
    return Photos(*(part.to(device) for part in (pixels, areas.cumsum(0) - areas, sizes[:, 0], sizes[:, 1])))


def read_photo(path: Path, stride: int, height: int, width: int) -> Tensor:
    """[3, H, W]; every `stride`-th pixel from the middle of the first, enlarged if it is no larger than the image."""
    try:
        with Image.open(path, formats=_FORMATS) as file:
            if file.mode[0] in "IF":
                raise UsageError(f"the frost photograph {path} has more than 8 bits a channel. Save it with 8.")
            image = file.convert("RGB")
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        Image.DecompressionBombError,
    ) as error:  # as Pillow's formats do
        raise _unreadable(path, error) from error
    wide, high = (side // stride for side in image.size)
    grow = max((width + 1) / wide, (height + 1) / high)
    if grow > 1:
        size = (math.ceil(wide * grow) * stride, math.ceil(high * grow) * stride)
        image = image.resize(size, Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)[:, stride // 2 :: stride, stride // 2 :: stride]


def _unreadable(path: Path | str, error: Exception) -> UsageError:
    reason = (isinstance(error, OSError) and error.strerror) or "damaged, or not an image"
    return UsageError(f"cannot read the frost photograph {path}: {reason}. Replace or remove it.")


def from_photographs(x: Tensor, rng: RandomStreams, folder: Path, stride: int) -> Tensor:
    photos = _opened(folder, stride, *x.shape[-2:], x.device)
    which = rng.fold(0).randint(len(photos.start))
    width = photos.width[which]
    top = rng.fold(1).randint(photos.height[which] - x.shape[-2])
    left = rng.fold(2).randint(width - x.shape[-1])
    corner = photos.start[which] + top * width + left
    cut = windows_by_slices if x.is_cpu else windows_by_index
    return cut(photos.pixels, corner, width, *x.shape[-2:])


def windows_by_slices(pixels: Tensor, corner: Tensor, row: Tensor, height: int, width: int) -> Tensor:
    """[B, 3, height, width] from the pixels numbered `corner` on, of photographs `row` pixels wide."""
    places = zip(corner.tolist(), row.tolist(), strict=True)
    shape, plane = (3, height, width), pixels.stride(0)
    return torch.stack([pixels.as_strided(shape, (plane, step, 1), first) for first, step in places])


def windows_by_index(pixels: Tensor, corner: Tensor, row: Tensor, height: int, width: int) -> Tensor:
    """The same without copies between GPU and CPU."""
    down = torch.arange(height, device=pixels.device)[:, None] * row[:, None, None]
    across = torch.arange(width, device=pixels.device)
    return pixels[:, corner[:, None, None] + down + across].transpose(0, 1)


def procedural(x: Tensor, rng: RandomStreams) -> Tensor:
    """Cloudy noise with ridges, in the tint and the spread of one of the original's photographs."""
    height, width = x.shape[-2:]
    clouds, crystals = (normal(rng.fold(0), 2, height, width)).unbind(1)
    clouds, crystals = _colored(clouds), _colored(crystals)
    ice = _standard(clouds - _RIDGES * _standard(crystals.abs()))
    mean, spread = _tints(x.device)
    which = rng.fold(1).randint(len(mean))
    return (mean[which] + spread[which] * ice[:, None]).clamp_(0, 1)


def _colored(noise: Tensor) -> Tensor:
    """White noise with its power made to fall as a power of the frequency, at spread one."""
    height, width = noise.shape[-2:]
    return _standard(by_frequency(noise, _falling(height, width, noise.device), (height, width)))


def _standard(plane: Tensor) -> Tensor:
    centered = plane - plane.mean((-2, -1), keepdim=True)
    return centered / centered.square().mean((-2, -1), keepdim=True).sqrt()


@cache
def _falling(height: int, width: int, device: torch.device) -> Tensor:
    down, across = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)
    frequency = torch.hypot(down.expand(-1, len(across)), across.expand(height, -1))
    frequency[0, 0] = torch.inf
    return frequency.pow(_SLOPE / 2).to(device)


@cache
def _tints(device: torch.device) -> tuple[Tensor, Tensor]:
    values = torch.tensor(_TINTS) / 255  # [P, 2, 3]
    mean, spread = values[:, :, :, None, None].to(device).unbind(1)
    return mean, spread
