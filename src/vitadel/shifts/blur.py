"""Blurs: out of focus, through frosted glass, in motion, zooming. B images, H rows, W columns, T taps."""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from vitadel.core.rng import RandomStreams
from vitadel.shifts import filters
from vitadel.shifts.fast_rng import uniform
from vitadel.shifts.filters import by_frequency, divide, gaussian_taps, interpolate_rows, round_levels, zoom_rows

# above the rounding errors of a Fourier transform in float64, far below a gray level
_ROUNDING = 2.0**-40
# Fourier transforms are fast for sizes with small factors
_FFT_MULTIPLE = 16
# a chain of glass_blur's copies continues with a probability of at most 0.5: 64 links are never reached
_LINKS = 6


def gaussian_blur(x: Tensor, rng: RandomStreams, sigma: float) -> Tensor:
    return filters.gaussian_filter(x, sigma)


def defocus_blur(x: Tensor, rng: RandomStreams, radius: float, softness: float) -> Tensor:
    """A soft disk slid over the image, mirrored about its outermost pixels; a product of Fourier transforms."""
    reach, (height, width) = disk(radius, softness).shape[0] // 2, x.shape[-2:]
    padded = pad(x, (reach, reach, reach, reach), mode="reflect")
    size = _fast(height + 2 * reach), _fast(width + 2 * reach)
    response = _disk_spectrum(radius, softness, *size, x.device).to(torch.promote_types(x.dtype, torch.complex64))
    return by_frequency(padded, response, size)[..., reach : reach + height, reach : reach + width] + _ROUNDING


def _fast(side: int) -> int:
    return side + -side % _FFT_MULTIPLE


@cache
def disk(radius: float, softness: float) -> Tensor:
    """The original's kernel: a disk of weight one, smoothed by a Gaussian over 3 or 5 pixels.

    Its grid ends at 8 pixels, or at the radius beyond that, and the smoothing mirrors it there. A disk of radius 8
    or more touches that border and gains weight: 1.013 in all for (8, 0.5), 1.011 for (10, 0.5), so those severities
    also brighten the image a little. ImageNet-C has this, and so have we.

    Float32 as OpenCV calculates it: the weights of the small disks add up to a little more or less than one, which
    decides whether an evenly colored area keeps its gray level or loses one.
    """
    reach, soft = (8, 1) if radius <= 8 else (math.ceil(radius), 2)
    steps = torch.arange(-reach, reach + 1, dtype=torch.float64)
    inside = (steps[:, None].square() + steps.square() <= radius**2).float()
    taps = gaussian_taps(soft, softness).float()
    padded = pad((inside / inside.sum())[None], (soft, soft, soft, soft), mode="reflect")[0]
    # OpenCV's vectorized loops begin with the middle pixel down the columns, with its neighbors along the rows
    return _fused(_fused(padded, taps, (1, 0, 2)).T, taps, (0, 1, 2)).T.contiguous()


def _fused(padded: Tensor, taps: Tensor, order: tuple[int, ...]) -> Tensor:
    """Rows filtered by symmetric float32 taps, `order` pixels from the middle, each product and sum rounded once."""
    soft, size = len(taps) // 2, padded.shape[1] - len(taps) + 1
    total = torch.zeros((), dtype=torch.float32)
    for step in order[: soft + 1]:
        left, right = (padded[:, soft + side :][:, :size] for side in (-step, step))
        pixels = left + right if step else left
        total = (total.double() + pixels.double() * taps[soft + step].double()).float()
    return total


@cache
def _disk_spectrum(radius: float, softness: float, height: int, width: int, device: torch.device) -> Tensor:
    kernel = disk(radius, softness)
    reach = kernel.shape[0] // 2
    field = torch.zeros(height, width, dtype=torch.float64)
    field[: len(kernel), : len(kernel)] = kernel
    return torch.fft.rfft2(field.roll((-reach, -reach), (0, 1))).to(device)


def glass_blur(x: Tensor, rng: RandomStreams, sigma: float, reach: int, passes: int) -> Tensor:
    """Blur, let every pixel copy a random neighbor `passes` times, blur.

    The original means to swap two pixels, but its assignment overwrites the first before it is read: the neighbor
    stays as it is. The scan goes from the bottom right to the top left, so a pixel copies what a neighbor further on
    has copied itself, or else that neighbor's own value. `copied` follows these chains for all pixels at once.
    """
    levels = (filters.gaussian_filter(x, sigma) * 255).clamp_(0, 255).floor_().float().flatten(2)
    height, width = x.shape[-2:]
    source: Tensor | None = None
    for number in range(passes):
        last = copied(*offsets(rng.fold(number), reach, height, width), reach)
        source = last if source is None else source.gather(1, last)
    assert source is not None
    taken = levels.gather(2, source[:, None].expand(-1, x.shape[1], -1)).view_as(x)
    return filters.gaussian_filter(divide(taken.to(x.dtype), 255), sigma)


def offsets(rng: RandomStreams, reach: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """[B, H, W] twice, down and to the right: whole numbers from -reach to reach - 1, two out of one of 24 bits."""
    u = uniform(rng, height, width).mul_(2 * reach)
    down = u.floor()
    right = u.sub_(down).mul_(2 * reach).floor_()
    return down.sub_(reach), right.sub_(reach)


def copied(down: Tensor, right: Tensor, reach: int) -> Tensor:
    """[B, HW]: where each pixel's value comes from after one scan with these offsets, whole numbers [B, H, W]."""
    height, width = down.shape[1:]
    here, moves = _scanned(height, width, reach, down.device)
    step = torch.add(right, down, alpha=width).flatten(1).long().mul_(moves)
    there = step + here
    if reach == 1:
        return there  # offsets of -1 and 0 only read pixels that are not overwritten yet
    # a pixel further on has copied already; the last of a chain takes what is old, and the border takes itself
    last = step.clamp_min_(0).add_(here)
    for _ in range(_LINKS):  # every turn doubles the links followed
        last = last.gather(1, last)
    return there.gather(1, last)


@cache
def _scanned(height: int, width: int, reach: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """[HW] twice: the number of each pixel, and 1 where the scan passes, 0 on the border it leaves out."""
    rows, cols = torch.arange(height)[:, None], torch.arange(width)
    moves = (rows > reach) & (rows <= height - reach) & (cols > reach) & (cols <= width - reach)
    return torch.arange(height * width, device=device), moves.flatten().long().to(device)


def motion_blur(x: Tensor, rng: RandomStreams, radius: int, sigma: float) -> Tensor:
    angle = uniform(rng).mul(90).sub(45)
    return round_levels(smear(x, angle, radius, sigma))


def smear(x: Tensor, degrees: Tensor, radius: int, sigma: float) -> Tensor:
    """ImageMagick's motion blur: 2 radius + 1 taps of half a Gaussian from each pixel on, the border continued."""
    steps = torch.arange(2 * radius + 1, dtype=torch.float64, device=x.device)
    weights = torch.exp(-steps.square() / (2 * sigma**2))
    weights = weights / weights.sum()
    turn = torch.deg2rad(degrees.double())[:, None]
    down, right = ((steps * part - 0.5).ceil().long() for part in (turn.sin(), turn.cos()))
    if x.is_cpu:
        return smear_by_slices(x, down.tolist(), right.tolist(), weights.tolist())
    return smear_by_index(x, down, right, weights.to(x.dtype))


def smear_by_slices(x: Tensor, down: list[list[int]], right: list[list[int]], weights: Sequence[float]) -> Tensor:
    """Each image is the weighted sum of its own shifts, by slices of padded images."""
    reach, (height, width) = len(weights) - 1, x.shape[-2:]
    padded = pad(x, (reach, reach, reach, reach), mode="replicate")
    out = torch.zeros_like(x)
    for image, into, rows, cols in zip(padded, out, down, right, strict=True):
        for row, col, weight in zip(rows, cols, weights, strict=True):
            row, col = row + reach, col + reach
            into.add_(image[:, row : row + height, col : col + width], alpha=weight)
    return out


def smear_by_index(x: Tensor, down: Tensor, right: Tensor, weights: Tensor) -> Tensor:
    """The same without copies between CPU and GPU, for large batches."""
    height, width = x.shape[-2:]
    rows = torch.arange(height, device=x.device)[:, None]
    cols = torch.arange(width, device=x.device)
    flat, out = x.flatten(2), torch.zeros_like(x).flatten(2)
    for tap, weight in enumerate(weights.unbind()):
        row = (rows + down[:, tap, None, None]).clamp(0, height - 1)
        col = (cols + right[:, tap, None, None]).clamp(0, width - 1)
        place = (row * width + col).flatten(1)[:, None].expand(-1, x.shape[1], -1)
        out.addcmul_(flat.gather(2, place), weight)
    return out.view_as(x)


def zoom_blur(x: Tensor, rng: RandomStreams, end: float, step: float) -> Tensor:
    """The mean of the image and its magnifications, added in the original's order."""
    factors, turned = zoom_factors(end, step), x.mT.contiguous()
    total = turned.clone()  # the first factor is 1
    for factor in factors[1:]:
        total += _magnified_and_turned(x, factor)
    return divide(total.add_(turned), len(factors) + 1).mT.contiguous()


def zoom_factors(end: float, step: float) -> list[float]:
    """1, 1 + step, ... below `end`; by the rounding of float64, `end` itself too at times, as in the original."""
    return [float(factor) for factor in np.arange(1, end, step)]


def magnified(x: Tensor, factor: float) -> Tensor:
    """The center of each plane, `factor` times as large."""
    return _magnified_and_turned(x, factor).mT.contiguous()


def _magnified_and_turned(x: Tensor, factor: float) -> Tensor:
    """Transposes columns to rows, as rows can be copied fast."""
    height, width = x.shape[-2:]
    tall = interpolate_rows(x, zoom_rows(height, factor, x.device, x.dtype))
    return interpolate_rows(tall.mT.contiguous(), zoom_rows(width, factor, x.device, x.dtype))
