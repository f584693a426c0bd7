"""What storing and resizing do: elastic distortion and coarse pixels. B images, H rows, W columns."""

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from vitadel.core.rng import RandomStreams
from vitadel.shifts.fast_rng import uniform
from vitadel.shifts.filters import Strips, apply_to_columns, apply_to_rows, divide, gaussian_filter, mirrored, strips

_TINY = 1e-6


def elastic_transform(x: Tensor, rng: RandomStreams, strength: float, sigma: float, jitter: float) -> Tensor:
    """A random affine map as OpenCV does it, then a random smooth displacement of every pixel as scipy does it."""
    height, width = x.shape[-2:]
    corners = uniform(rng.fold(0), 3, 2).double().mul_(2 * jitter).sub_(jitter)
    moved = sample_once(x, fixed_point_places(affine(height, width, corners.float()), height, width))
    if not strength:
        return moved
    noise = uniform(rng.fold(1), 2, height, width).double().mul_(2).sub_(1)
    shift = gaussian_filter(noise, sigma, truncate=3, edge=mirrored).mul_(strength).float()
    return sample_twice(moved.double(), _places(height, width, x.device) + shift).to(x.dtype)


@cache
def _places(height: int, width: int, device: torch.device) -> Tensor:
    """[2, H, W]: the (x, y) of every pixel."""
    x, y = torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy")
    return torch.stack([x, y]).double().to(device)


def affine(height: int, width: int, jitter: Tensor) -> Tensor:
    """[B, 2, 3] float64: the map from (x, y, 1) to where that lay before three points moved by `jitter` [B, 3, 2].

    The points are corners of the square about the center with a half-side of a third of the image.
    """
    half = min(height, width) // 3
    center = torch.tensor([width // 2, height // 2], dtype=torch.float32)
    still = (center + half * torch.tensor([[1, 1], [1, -1], [-1, -1]])).to(jitter.device)
    moved, still = (still + jitter).double(), still.double()
    (a, c), (b, d) = (moved[:, :2] - moved[:, 2:]).permute(1, 2, 0)  # columns of the matrix of the moved sides
    det = a * d - b * c
    det = torch.where(det.abs() < _TINY, _TINY, det)
    inverse = torch.stack([torch.stack([d, -b], 1), torch.stack([-c, a], 1)], 1) / det[:, None, None]
    turn = (still[:2] - still[2:]).T @ inverse
    return torch.cat([turn, still[2, :, None] - turn @ moved[:, 2, :, None]], 2)


def fixed_point_places(matrix: Tensor, height: int, width: int) -> Tensor:
    """[B, 2, H, W]: where `matrix` [B, 2, 3] takes every (x, y), in 32nds of a pixel.

    OpenCV's warpAffine: either part of the sum rounded to 1024ths, the sum rounded to 32nds, halves upwards.
    """
    x = torch.arange(width, dtype=torch.float64, device=matrix.device)
    y = torch.arange(height, dtype=torch.float64, device=matrix.device)[:, None]
    of_x, of_y, origin = matrix[:, :, None, :].unbind(-1)
    along_x = (of_x * x * 1024).round_()[:, :, None]
    along_y = ((of_y[..., None] * y + origin[..., None]) * 1024).round_()
    return (along_x + along_y + 16).div_(32).floor_().div_(32)


def sample_once(x: Tensor, place: Tensor) -> Tensor:
    """The image at fractional (x, y) positions [B, 2, H, W], bilinear; mirrored outside: c b | a b c.

    The four products are added one after the other, as OpenCV adds them: in float32 that costs some even areas a level.
    """
    height, width = x.shape[-2:]
    low = place.floor()
    right, below = (place - low).to(x.dtype).flatten(2).split(1, 1)
    col, row = low.long().flatten(2).split(1, 1)
    cols = [(_once(col, width), 1 - right), (_once(col + 1, width), right)]
    pixels, total = x.flatten(2), torch.zeros_like(x).flatten(2)
    for rows, vertical in ((_once(row, height), 1 - below), (_once(row + 1, height), below)):
        start = rows * width
        for columns, horizontal in cols:
            corner = pixels.gather(2, (start + columns).expand(-1, x.shape[1], -1))
            total.add_(corner.mul_(vertical * horizontal))
    return total.view_as(x)


def _once(index: Tensor, size: int) -> Tensor:
    index = index.remainder(2 * size - 2)
    return torch.minimum(index, 2 * size - 2 - index)


def sample_twice(x: Tensor, place: Tensor) -> Tensor:
    """The image at fractional (x, y) positions [B, 2, H, W], bilinear; mirrored outside: b a | a b c."""
    size = torch.tensor([x.shape[-1], x.shape[-2]], dtype=x.dtype)[:, None, None].to(x.device)
    grid = ((place * 2 + 1) / size - 1).permute(0, 2, 3, 1)
    return grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def pixelate(x: Tensor, rng: RandomStreams, factor: float) -> Tensor:
    """Shrunk by averaging boxes, rounded after each axis as Pillow rounds, and enlarged by repeating."""
    height, width = x.shape[-2:]
    rows, cols = (_boxes(size, int(size * factor), x.device) for size in (height, width))
    gray = (x * 255).round_()  # whole numbers: the mean of two of them is half-way exactly or not at all
    narrow = apply_to_rows(gray, cols).add_(0.5).floor_()
    small = divide(apply_to_columns(narrow, rows).add_(0.5).floor_(), 255)
    tall, wide = (_repeats(int(size * factor), size, x.device) for size in (height, width))
    return small.index_select(3, wide).index_select(2, tall)


@cache
def _boxes(size: int, fewer: int, device: torch.device) -> Strips:
    """[fewer, size]: each row averages the pixels whose centers are in its box, with Pillow's rounding at the edges."""
    scale, index = size / fewer, torch.arange(size)
    middle = (torch.arange(fewer, dtype=torch.float64)[:, None] + 0.5) * scale
    low, high = (middle - 0.5 * scale + 0.5).long(), (middle + 0.5 * scale + 0.5).long()
    distance = (index.double() - middle + 0.5) * (1 / scale)
    inside = ((index >= low) & (index < high) & (distance > -0.5) & (distance <= 0.5)).double()
    return strips((inside / inside.sum(1, keepdim=True)).float(), device)


@cache
def _repeats(size: int, more: int, device: torch.device) -> Tensor:
    """[more]: the number of the pixel, of `size`, at the center of each of `more` pixels."""
    return ((torch.arange(more, dtype=torch.float64) + 0.5) * (size / more)).long().clamp_max(size - 1).to(device)
