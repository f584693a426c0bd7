"""What storing and resizing do: elastic distortion and coarse pixels. B images, H rows, W columns."""

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from vitadel.draws import Draws
from vitadel.shifts.filters import Strips, across, down, gaussian_blur, mirrored, strips
from vitadel.shifts.streams import uniform

_TINY = 1e-6


def elastic_transform(x: Tensor, draws: Draws, strength: float, sigma: float, jitter: float) -> Tensor:
    """A random affine map, then a random smooth displacement of every pixel."""
    height, width = x.shape[-2:]
    corners = uniform(draws.fold(0), 3, 2).mul_(2).sub_(1).mul_(jitter)
    place = _places(height, width, x.device)
    x = sample(x, affine(place, corners), outermost_once=True)
    if not strength:
        return x
    noise = uniform(draws.fold(1), 2, height, width).mul_(2).sub_(1)
    shift = gaussian_blur(noise, sigma, truncate=3, edge=mirrored).mul_(strength)
    return sample(x, shift.add_(place), outermost_once=False)


@cache
def _places(height: int, width: int, device: torch.device) -> Tensor:
    """[2, H, W]: the (x, y) of every pixel."""
    x, y = torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy")
    return torch.stack([x, y]).float().to(device)


def affine(place: Tensor, jitter: Tensor) -> Tensor:
    """[B, 2, H, W]: where each (x, y) of `place` lay before three points of the image moved by `jitter` [B, 3, 2].

    The points are corners of the square about the centre with a half-side of a third of the image.
    """
    height, width = place.shape[1:]
    half = min(height, width) // 3
    centre = torch.tensor([width // 2, height // 2], dtype=torch.float32)
    still = (centre + half * torch.tensor([[1, 1], [1, -1], [-1, -1]])).to(place.device)
    moved = still + jitter
    (a, c), (b, d) = (moved[:, :2] - moved[:, 2:]).permute(1, 2, 0)  # columns of the matrix of the moved sides
    det = a * d - b * c
    det = torch.where(det.abs() < _TINY, _TINY, det)
    inverse = torch.stack([torch.stack([d, -b], 1), torch.stack([-c, a], 1)], 1) / det[:, None, None]
    back = (still[:2] - still[2:]).T @ inverse
    origin = still[2] - (back @ moved[:, 2, :, None])[:, :, 0]
    along_x = back[:, :, :1, None] * place[0, :1]  # [B, 2, 1, W]
    along_y = back[:, :, 1:, None] * place[1, :, :1]  # [B, 2, H, 1]
    return along_x + (along_y + origin[:, :, None, None])


def sample(x: Tensor, place: Tensor, *, outermost_once: bool) -> Tensor:
    """The image at fractional (x, y) places [B, 2, H, W], bilinearly, mirrored outside.

    The mirror stands on the outermost pixels (c b | a b c) or just outside them (b a | a b c).
    """
    size = torch.tensor([x.shape[-1], x.shape[-2]], dtype=x.dtype)[:, None, None].to(x.device)
    scaled = place * (2 / (size - 1)) - 1 if outermost_once else (place * 2 + 1) / size - 1
    grid = scaled.permute(0, 2, 3, 1)
    return grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=outermost_once)


def pixelate(x: Tensor, draws: Draws, factor: float) -> Tensor:
    """Shrunk by averaging boxes, rounded after each axis as Pillow rounds, and enlarged by repeating."""
    height, width = x.shape[-2:]
    rows, cols = (_boxes(size, int(size * factor), x.device) for size in (height, width))
    grey = (x * 255).round_()  # whole numbers: the mean of two of them is half-way exactly or not at all
    narrow = across(grey, cols).add_(0.5).floor_()
    small = down(narrow, rows).add_(0.5).floor_().div_(255)
    tall, wide = (_repeats(int(size * factor), size, x.device) for size in (height, width))
    return small.index_select(3, wide).index_select(2, tall)


@cache
def _boxes(size: int, fewer: int, device: torch.device) -> Strips:
    """[fewer, size]: each row averages the pixels whose centres lie in its box, an edge decided as Pillow rounds it."""
    scale, index = size / fewer, torch.arange(size)
    middle = (torch.arange(fewer, dtype=torch.float64)[:, None] + 0.5) * scale
    low, high = (middle - 0.5 * scale + 0.5).long(), (middle + 0.5 * scale + 0.5).long()
    distance = (index.double() - middle + 0.5) * (1 / scale)
    inside = ((index >= low) & (index < high) & (distance > -0.5) & (distance <= 0.5)).double()
    return strips(inside / inside.sum(1, keepdim=True), device)


@cache
def _repeats(size: int, more: int, device: torch.device) -> Tensor:
    """[more]: which of `size` pixels lies under the centre of each of `more`."""
    return ((torch.arange(more, dtype=torch.float64) + 0.5) * (size / more)).long().clamp_max(size - 1).to(device)
