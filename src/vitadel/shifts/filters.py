"""Linear maps along the axes of an image, as small matrices, and the filters made of them.

B images, C channels, H rows, W columns. A blur or a zoom of one axis is a matrix of at most a few hundred numbers a
side, with the border's rule folded in. Where its rows hold a few numbers each, shifted images or whole rows of pixels
are added; otherwise a processor multiplies strips of the matrix faster than it slides a window.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

Edge = Callable[[Tensor, int], Tensor]
_STRIP = 32
# with more pixels than this on either side, multiplying matrices is faster than adding shifted images
_FEW = 8
# far above the rounding errors of sums in float64, far below a gray level; pixels lie in [0, 1]
_ROUNDING = 2.0**-40


@dataclass(frozen=True, slots=True)
class RowInterpolation:
    """Rows between rows: which two each one lies between [N], and how far it is on its way to the second [N, 1]."""

    low: Tensor
    high: Tensor
    share: Tensor


def interpolate_rows(x: Tensor, rows: RowInterpolation) -> Tensor:
    """[..., N, W]: rows of each plane [..., H, W], interpolated; exact between two equal pixels."""
    return torch.lerp(x.index_select(-2, rows.low), x.index_select(-2, rows.high), rows.share)


@dataclass(frozen=True, slots=True)
class Strip:
    """Some rows of a matrix that is zero far from its diagonal: the columns that are not, and the weights there."""

    columns: slice
    weights: Tensor


Strips = tuple[Strip, ...]


def strips(matrix: Tensor, device: torch.device) -> Strips:
    """A matrix cut into strips of rows, so that its zeros need not be multiplied; whole if it has few."""
    strips = []
    for first in range(0, len(matrix), _STRIP):
        rows = matrix[first : first + _STRIP]
        used = rows.any(0).nonzero()
        low, high = int(used.min()), int(used.max()) + 1
        strips.append(Strip(slice(low, high), rows[:, low:high].to(device)))
    if sum(strip.weights.numel() for strip in strips) > matrix.numel() / 2:
        return (Strip(slice(0, matrix.shape[1]), matrix.to(device)),)
    return tuple(strips)


def nearest(index: Tensor, size: int) -> Tensor:
    """Pads an image with its outermost pixel: a a | a b c."""
    return index.clamp(0, size - 1)


def mirrored(index: Tensor, size: int) -> Tensor:
    """Pads an image with its mirror image, the outermost pixel twice: b a | a b c."""
    index = index.remainder(2 * size)
    return torch.minimum(index, 2 * size - 1 - index)


def apply_to_rows(x: Tensor, cols: Strips) -> Tensor:
    """A matrix applied to each row of pixels."""
    flat = x.reshape(-1, x.shape[-1])
    return torch.cat([flat[:, strip.columns] @ strip.weights.T for strip in cols], 1).view(*x.shape[:-1], -1)


def apply_to_columns(x: Tensor, rows: Strips) -> Tensor:
    """A matrix applied to each column of pixels."""
    return torch.cat([strip.weights @ x[..., strip.columns, :] for strip in rows], -2)


def gaussian_filter(x: Tensor, sigma: float, truncate: float = 4, edge: Edge = nearest) -> Tensor:
    """A Gaussian cut off at `truncate` standard deviations.

    A narrow one adds pixels in the order scipy adds them, so in float64 it gives scipy's bits. A wide one is a
    product of matrices: a sum that is a whole gray level but for its last bits is lifted onto that level, since those
    bits depend on the machine and the level is cut later.
    """
    reach = _reach(sigma, truncate)
    height, width = x.shape[-2:]
    if reach > _FEW:
        cols = blur_strips(width, sigma, truncate, edge, x.device, x.dtype)
        rows = blur_strips(height, sigma, truncate, edge, x.device, x.dtype)
        return apply_to_columns(apply_to_rows(x, cols), rows).add_(_ROUNDING)
    weights = gaussian_taps(reach, sigma)[: reach + 1].tolist()
    return _along_rows(_along_columns(x, weights, edge), weights, edge) if reach else x.clone()


def _along_columns(x: Tensor, weights: list[float], edge: Edge) -> Tensor:
    """Each column filtered by symmetric weights, from the outermost to the middle, as scipy's correlate1d does it."""
    reach, size = len(weights) - 1, x.shape[-2]
    wide = _widened(x, reach, edge, -2)
    pair, total = torch.empty_like(x), x * weights[-1]
    for step, weight in enumerate(weights[:-1]):
        torch.add(wide[..., step : step + size, :], wide[..., 2 * reach - step :, :][..., :size, :], out=pair)
        total.add_(pair.mul_(weight))
    return total


def _along_rows(x: Tensor, weights: list[float], edge: Edge) -> Tensor:
    reach, size = len(weights) - 1, x.shape[-1]
    wide = _widened(x, reach, edge, -1)
    pair, total = torch.empty_like(x), x * weights[-1]
    for step, weight in enumerate(weights[:-1]):
        torch.add(wide[..., step : step + size], wide[..., 2 * reach - step :][..., :size], out=pair)
        total.add_(pair.mul_(weight))
    return total


def _widened(x: Tensor, reach: int, edge: Edge, dim: int) -> Tensor:
    size = x.shape[dim]
    before, after = (torch.arange(start, start + reach, device=x.device) for start in (-reach, size))
    return torch.cat([x.index_select(dim, edge(before, size)), x, x.index_select(dim, edge(after, size))], dim)


@cache
def gaussian_taps(radius: int, sigma: float) -> Tensor:
    """Float64 weights at -radius ... radius that add up to one, by scipy's formula; a point when `sigma` is 0."""
    scale = -0.5 / max(sigma, 1e-6) ** 2
    # one at a time: libm's exp gives the same bits on every processor, the vectorized ones of torch and numpy do not
    weights = np.array([math.exp(scale * step**2) for step in range(-radius, radius + 1)])
    return torch.from_numpy(weights / weights.sum())


def _reach(sigma: float, truncate: float) -> int:
    return int(truncate * sigma + 0.5)


@cache
def blur_strips(
    size: int, sigma: float, truncate: float, edge: Edge, device: torch.device, dtype: torch.dtype
) -> Strips:
    radius = _reach(sigma, truncate)
    places = edge(torch.arange(size)[:, None] + torch.arange(-radius, radius + 1), size)
    weights = gaussian_taps(radius, sigma).expand(size, -1)
    return strips(torch.zeros(size, size, dtype=torch.float64).scatter_add_(1, places, weights).to(dtype), device)


@cache
def zoom_rows(size: int, factor: float, device: torch.device, dtype: torch.dtype) -> RowInterpolation:
    """The position in the original of each row of the center magnified by `factor`.

    The middle ceil(size / factor) rows are stretched, corners on corners, to the rounded size and trimmed about
    their own middle: scipy's `zoom` of order 1, as the original calls it.
    """
    crop = math.ceil(size / factor)
    top, stretched = (size - crop) // 2, round(crop * factor)
    trim = (stretched - size) // 2
    step = (crop - 1) / (stretched - 1) if stretched > 1 else 0.0
    place = ((torch.arange(size) + trim).double() * step).clamp_max(
        crop - 1
    )  # rounding may pass the end by a rounding error
    first = place.floor().clamp_max(max(crop - 2, 0))
    share = place - first
    low = first.long() + top
    high = (low + 1).clamp_max(size - 1)
    return RowInterpolation(low.to(device), high.to(device), share[:, None].to(device, dtype))


def by_frequency(x: Tensor, response: Tensor, size: tuple[int, int]) -> Tensor:
    """Planes [B, ..., *size] after a product of Fourier transforms with `response`; smaller ones are filled with 0."""
    if not x.is_cpu:
        return torch.fft.irfft2(torch.fft.rfft2(x, s=size) * response, s=size)
    # image by image: the last bits of a transform depend on how many are made at once
    return torch.cat([torch.fft.irfft2(torch.fft.rfft2(image, s=size) * response, s=size) for image in x.split(1)])


def divide(x: Tensor, by: float) -> Tensor:
    """The quotient, in place and rounded correctly on every device.

    By a plain number, CUDA multiplies with the rounded reciprocal: 126 of the 256 gray levels become another float.
    """
    return x.div_(x.new_full((), by))


def floor_levels(x: Tensor, out: Tensor | None = None) -> Tensor:
    """Pixels in [0, 1] cut down to whole gray levels, as numpy's conversion to bytes cuts them."""
    same = out is not None and out.dtype == x.dtype
    levels = torch.mul(x, 255, out=out if same else None).clamp_(0, 255).floor_()
    return divide(levels if out is None or same else out.copy_(levels), 255)


def round_levels(x: Tensor) -> Tensor:
    """Pixels in [0, 1] at the nearest gray level, halves upwards."""
    return divide((x * 255).clamp_(0, 255).add_(0.5).floor_(), 255)
