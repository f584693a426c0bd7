"""Linear maps along the axes of an image, as small matrices, and the filters made of them.

B images, C channels, H rows, W columns. A blur or a zoom of one axis is a matrix of at most a few hundred numbers a
side, with the border's rule folded in; a processor multiplies such matrices faster than it slides a window.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

Edge = Callable[[Tensor, int], Tensor]
_STRIP = 56


@dataclass(frozen=True, slots=True)
class Strip:
    """Some rows of a matrix that is zero far from its diagonal: which they are, what they read, with which weights."""

    writes: slice
    reads: slice
    weights: Tensor


Strips = tuple[Strip, ...]


def strips(matrix: Tensor, device: torch.device) -> Strips:
    """A matrix [N, N] cut into strips of rows, so that its zeros need not be multiplied; whole if it has few."""
    found = []
    for first in range(0, len(matrix), _STRIP):
        rows = matrix[first : first + _STRIP]
        used = rows.any(0).nonzero()
        low, high = int(used.min()), int(used.max()) + 1
        found.append(Strip(slice(first, first + len(rows)), slice(low, high), rows[:, low:high].float().to(device)))
    if sum(strip.weights.numel() for strip in found) > matrix.numel() / 2:
        return (Strip(slice(0, len(matrix)), slice(0, len(matrix)), matrix.float().to(device)),)
    return tuple(found)


def nearest(index: Tensor, size: int) -> Tensor:
    """Outside an image lies its outermost pixel: a a | a b c."""
    return index.clamp(0, size - 1)


def mirrored(index: Tensor, size: int) -> Tensor:
    """Outside an image lies its mirror image, the outermost pixel twice: b a | a b c."""
    index = index.remainder(2 * size)
    return torch.minimum(index, 2 * size - 1 - index)


def along(x: Tensor, rows: Strips, cols: Strips) -> Tensor:
    """Apply the matrix `rows` down the columns of each plane and `cols` along its rows."""
    flat = x.reshape(-1, x.shape[-1])
    wide = torch.cat([flat[:, strip.reads] @ strip.weights.T for strip in cols], 1).view(*x.shape[:-1], -1)
    return torch.cat([strip.weights @ wide[..., strip.reads, :] for strip in rows], -2)


def gaussian_blur(x: Tensor, sigma: float, truncate: float = 4, edge: Edge = nearest) -> Tensor:
    """A Gaussian cut off at `truncate` standard deviations."""
    height, width = x.shape[-2:]
    rows = blur_strips(height, sigma, truncate, edge, x.device)
    return along(x, rows, blur_strips(width, sigma, truncate, edge, x.device))


def gaussian_taps(radius: int, sigma: float) -> Tensor:
    """Weights at -radius ... radius that add up to one; a point when `sigma` is 0."""
    steps = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (steps / max(sigma, 1e-6)).square())
    return weights / weights.sum()


@cache
def blur_strips(size: int, sigma: float, truncate: float, edge: Edge, device: torch.device) -> Strips:
    radius = int(truncate * sigma + 0.5)
    taps = gaussian_taps(radius, sigma)
    reach = torch.arange(size)[:, None] + torch.arange(-radius, radius + 1)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    matrix.scatter_add_(1, edge(reach, size), taps.expand(size, -1))
    return strips(matrix, device)


@cache
def zoom_taps(size: int, factor: float, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Which two rows of the original make each row of its centre magnified by `factor`, and the second's share.

    The middle ceil(size / factor) rows are stretched, corners on corners, to the rounded size and trimmed about
    their own middle: scipy's `zoom` of order 1, as the original calls it.
    """
    crop = math.ceil(size / factor)
    top, stretched = (size - crop) // 2, round(crop * factor)
    trim = (stretched - size) // 2
    step = (crop - 1) / (stretched - 1) if stretched > 1 else 0.0
    place = ((torch.arange(size) + trim).double() * step).clamp_max(crop - 1)  # rounding may pass the end by a hair
    first = place.floor().clamp_max(max(crop - 2, 0))
    share = (place - first).float()
    low = first.long() + top
    return low.to(device), (low + 1).clamp_max(size - 1).to(device), share.to(device)


@cache
def zoom_strips(size: int, factor: float, device: torch.device) -> Strips:
    low, high, share = zoom_taps(size, factor, torch.device("cpu"))
    matrix = torch.zeros(size, size).scatter_add_(1, low[:, None], 1 - share[:, None])
    return strips(matrix.scatter_add_(1, high[:, None], share[:, None]), device)


def whole(x: Tensor) -> Tensor:
    """Pixels in [0, 1] cut down to whole grey levels.

    A float32 sum may end a hair below the level that exact arithmetic reaches, and cutting would make that a whole
    level: hence the thousandth.
    """
    return (x * 255).add_(2.0**-10).clamp_(0, 255).floor_().div_(255)


def rounded(x: Tensor) -> Tensor:
    """Pixels in [0, 1] at the nearest grey level, halves upwards."""
    return (x * 255).clamp_(0, 255).add_(0.5).floor_().div_(255)
