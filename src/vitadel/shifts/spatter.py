"""Water or mud on the lens, and the three classical steps that water takes: edges, distances, an even histogram.

Planes are [B, H, W]; 8-bit planes hold whole numbers in [0, 255] as floats.
"""

import math
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import pad

from vitadel.core.rng import RandomStreams
from vitadel.shifts.fast_rng import normal
from vitadel.shifts.filters import divide, gaussian_filter

_WATER = (175 / 255, 238 / 255, 238 / 255)
_MUD = (63 / 255, 42 / 255, 20 / 255)
_FARTHEST = 20.0
_SLANT = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
_SOLID = 0.8
# OpenCV's lengths of a step along an axis, along a diagonal and like a knight, for its 5 x 5 mask
_STEPS = (((0, 1), 1.0), ((1, 1), 1.4), ((1, 2), 2.1969))


def spatter(
    x: Tensor,
    rng: RandomStreams,
    mean: float,
    spread: float,
    sigma: float,
    threshold: float,
    amount: float,
    muddy: bool,
) -> Tensor:
    liquid = gaussian_filter(normal(rng, *x.shape[-2:]).double().mul_(spread).add_(mean), sigma)
    if muddy:
        cover = gaussian_filter((liquid > threshold).double(), amount).to(x.dtype)
        cover = cover.masked_fill(cover < _SOLID, 0)[:, None]
        return x * (1 - cover) + cover * _color(_MUD, x)
    # a byte of the original overflows where the noise is beyond white
    liquid = (liquid.masked_fill(liquid < threshold, 0) * 255).floor_().remainder_(256).to(x.dtype)
    depth = liquid * relief(liquid)
    depth = depth / depth.amax((1, 2), keepdim=True).clamp_min(1) * amount
    return x + depth[:, None] * _color(_WATER, x)


def _color(rgb: tuple[float, float, float], like: Tensor) -> Tensor:
    return torch.stack([torch.full_like(like[:1, 0], value) for value in rgb], 1)


def relief(liquid: Tensor) -> Tensor:
    """Light and shade near the shores of the drops."""
    near = distances(edges(liquid, 50, 150), _FARTHEST)
    soft = box(near.double()).to(near.dtype).floor_()
    even, lit = _wide(equalized(soft)), torch.zeros_like(soft)
    for row, col in product(range(3), range(3)):
        lit.add_(_beside(even, row - 1, col - 1), alpha=_SLANT[row][col])
    return box(lit.clamp_(0, 255)).round_()


def box(plane: Tensor) -> Tensor:
    """The mean over 3 x 3 pixels."""
    wide = _wide(plane)
    rows = wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]
    return divide(rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:], 9)


def _wide(plane: Tensor) -> Tensor:
    """[B, H + 2, W + 2]: mirrored about the outermost pixels."""
    return pad(plane, (1, 1, 1, 1), mode="reflect")


def _beside(wide: Tensor, row: int, col: int) -> Tensor:
    """[B, H, W]: the value `row` down and `col` to the right of each pixel, of a plane padded by one pixel."""
    return wide[:, 1 + row : wide.shape[1] - 1 + row, 1 + col : wide.shape[2] - 1 + col]


def edges(plane: Tensor, low: float, high: float) -> Tensor:
    """Canny's edge detection (1986) as in OpenCV: Sobel gradients, non-maximum suppression, hysteresis."""
    wide = pad(plane[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    above, middle, below = (wide[:, i : i + plane.shape[1]] for i in range(3))
    down = _smooth(below - above)
    across = _slope(above) + 2 * _slope(middle) + _slope(below)
    size = across.abs() + down.abs()
    thin = _ridge(size, across, down) & (size > low)
    strong = thin & (size > high)
    while True:  # strong edges spread along weak ones; few turns, since a drop's shore is steep all along
        grown = _grown(strong) & thin
        if torch.equal(grown, strong):
            return strong
        strong = grown


def _grown(marked: Tensor) -> Tensor:
    """Marked pixels and their eight neighbors."""
    tall = pad(marked, (0, 0, 1, 1))
    tall = tall[:, :-2] | tall[:, 1:-1] | tall[:, 2:]
    wide = pad(tall, (1, 1))
    return wide[..., :-2] | wide[..., 1:-1] | wide[..., 2:]


def _smooth(rows: Tensor) -> Tensor:
    return rows[..., :-2] + 2 * rows[..., 1:-1] + rows[..., 2:]


def _slope(rows: Tensor) -> Tensor:
    return rows[..., 2:] - rows[..., :-2]


def _ridge(size: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """Where a gradient is larger than its neighbors uphill and downhill; the direction is rounded to 45 degrees."""
    wide = pad(size, (1, 1, 1, 1))
    steep, flat = math.tan(math.radians(67.5)), math.tan(math.radians(22.5))
    level, upright = down.abs() < flat * across.abs(), down.abs() > steep * across.abs()
    falling = (across < 0) == (down < 0)
    horizontal = (size > _beside(wide, 0, -1)) & (size >= _beside(wide, 0, 1))
    vertical = (size > _beside(wide, -1, 0)) & (size >= _beside(wide, 1, 0))
    diagonal = torch.where(
        falling,
        (size > _beside(wide, -1, -1)) & (size > _beside(wide, 1, 1)),
        (size > _beside(wide, -1, 1)) & (size > _beside(wide, 1, -1)),
    )
    return torch.where(level, horizontal, torch.where(upright, vertical, diagonal))


def distances(marked: Tensor, farthest: float) -> Tensor:
    """The distance to the nearest marked pixel, in steps of the 5 x 5 mask, clipped at `farthest`.

    A shortest way needs steps in two neighboring directions only, all of one before all of the other. So it is enough
    to follow each of the 16 directions once, for up to 2, 4, 8, ... steps at a time.
    """
    field = torch.where(marked, 0.0, farthest)
    for (one, two), length in _STEPS:
        for row, col in {(s * a, t * b) for a, b in ((one, two), (two, one)) for s in (1, -1) for t in (1, -1)}:
            for many in (1 << power for power in range(int(farthest / length).bit_length())):
                (to_rows, from_rows), (to_cols, from_cols) = _apart(row * many), _apart(col * many)
                there = field[:, to_rows, to_cols]
                torch.minimum(there, field[:, from_rows, from_cols] + length * many, out=there)
    return field


def _apart(step: int) -> tuple[slice, slice]:
    """Along one axis: the positions that a step leads to, and those it starts from."""
    return (slice(step, None), slice(None, -step)) if step > 0 else (slice(None, step or None), slice(-step, None))


def equalized(plane: Tensor) -> Tensor:
    """Gray levels stretched so that each takes as much of [0, 255] as it takes of the plane; the lowest becomes 0."""
    level = plane.long().flatten(1)
    counts = torch.zeros(len(plane), 256, device=plane.device).scatter_add_(1, level, torch.ones_like(plane).flatten(1))
    lowest = counts.gather(1, level.amin(1, keepdim=True))
    rest = level.shape[1] - lowest
    scale = torch.full_like(rest, 255) / rest.clamp_min(1)  # torch divides a plain number by multiplying, rounded twice
    table = ((counts.cumsum(1) - lowest) * scale).round_().clamp_(0, 255)
    return torch.where(rest[:, :, None] > 0, table.gather(1, level).view_as(plane), plane)
