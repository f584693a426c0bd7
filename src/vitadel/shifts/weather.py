"""Weather: snow and fog. B images, H rows, W columns."""

import torch
from torch import Tensor

from vitadel.core.numeric import LUMA
from vitadel.core.rng import RandomStreams
from vitadel.shifts.blur import magnified, smear
from vitadel.shifts.fast_rng import normal, uniform
from vitadel.shifts.filters import divide, floor_levels, round_levels


def snow(
    x: Tensor,
    rng: RandomStreams,
    mean: float,
    spread: float,
    zoom: float,
    threshold: float,
    radius: int,
    sigma: float,
    keep: float,
) -> Tensor:
    """Blots of magnified noise, blown in one direction, over an image grown paler."""
    noise = normal(rng.fold(0), 1, *x.shape[-2:]).double()
    flakes = magnified(noise.mul_(spread).add_(mean), zoom)
    flakes = floor_levels(flakes.masked_fill(flakes < threshold, 0)).to(x.dtype)
    flakes = round_levels(smear(flakes, uniform(rng.fold(1)) * 90 - 135, radius, sigma)).double()
    flakes = divide(flakes.mul_(255).round_(), 255)
    paler = torch.maximum(x, _gray(x) * 1.5 + 0.5).mul_(1 - keep)
    return (x * keep + paler) + flakes + flakes.flip(-2, -1)


def _gray(x: Tensor) -> Tensor:
    """[B, 1, H, W] float32 as OpenCV's vectorized loop adds it: green rounded, red and blue fused onto it."""
    red, green, blue = x.split(1, 1)
    of_red, of_green, of_blue = torch.tensor(LUMA, dtype=torch.float32).double().tolist()
    total = (red.double() * of_red + (green * of_green).double()).to(x.dtype)
    return (blue.double() * of_blue + total.double()).to(x.dtype)


def fog(x: Tensor, rng: RandomStreams, thickness: float, decay: float) -> Tensor:
    """Plasma added, and everything scaled so that the brightest value an image has stays the brightest possible."""
    height, width = x.shape[-2:]
    size = 1 << (max(height, width) - 1).bit_length()
    cloud = plasma(size, decay, uniform(rng, size * size - 1).to(x.dtype))
    brightest = x.amax((1, 2, 3), keepdim=True)
    cloud = cloud[:, None, :height, :width]
    return cloud.mul(thickness).add(x).mul_(brightest).div_(brightest + thickness)


def plasma(size: int, decay: float, u: Tensor) -> Tensor:
    """[B, size, size] heights in [0, 1] by diamond-square on a torus, from uniform numbers [B, size * size - 1].

    The noise of a level is w U(-w, w) with w = 100 at first and divided by `decay` at each halving: the original's w
    enters twice, so heights fall off with the square of the decay.
    """
    heights, wobble = torch.zeros(len(u), 1, 1, dtype=u.dtype, device=u.device), 100.0
    while (side := heights.shape[1]) < size:
        now, u = u.split([3 * side * side, u.shape[1] - 3 * side * side], 1)
        center, top, left = now.mul(2).sub_(1).mul_(wobble**2).view(-1, 3, side, side).unbind(1)
        right, below = heights.roll(-1, 2), heights.roll(-1, 1)
        centers = (heights + right + below + right.roll(-1, 1)) / 4 + center
        tops = (centers + centers.roll(1, 1) + heights + right) / 4 + top
        lefts = (centers + centers.roll(1, 2) + heights + below) / 4 + left
        finer = heights.new_empty(len(u), side, 2, side, 2)
        finer[:, :, 0, :, 0], finer[:, :, 0, :, 1] = heights, tops
        finer[:, :, 1, :, 0], finer[:, :, 1, :, 1] = lefts, centers
        heights = finer.view(-1, 2 * side, 2 * side)
        wobble /= decay
    heights = heights - heights.amin((1, 2), keepdim=True)
    return heights.div_(heights.amax((1, 2), keepdim=True))
