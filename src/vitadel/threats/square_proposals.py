"""Windows and patterns of the Square attack (Andriushchenko et al. 2020, arXiv:1912.00049).

For L2 and L1 a proposal clears one window and moves its perturbation to another one. Shape letters: B images, C
channels, H rows and W columns of pixels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from vitadel.core.rng import RandomStreams

# tiles per side of the first pattern
_TILES = 5


def window_mask(uniform_B2: Tensor, side_B: Tensor, like: Tensor) -> Tensor:
    """[B, 1, H, W] booleans: a square window whose position is given by two numbers in [0, 1) per image."""
    return _inside(*_from_corner(uniform_B2, side_B, like), side_B)


def _inside(rows: Tensor, columns: Tensor, side_B: Tensor) -> Tensor:
    side = _broadcast(side_B)
    return (rows >= 0) & (rows < side) & (columns >= 0) & (columns < side)


def _from_corner(uniform_B2: Tensor, side_B: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column numbers [B, 1, H, 1] and [B, 1, 1, W] counted from the corner of a window."""
    height, width = like.shape[2:]
    # in float64, since a number just below 1 times the number of positions could round up to it
    top_B, left_B = (
        (uniform_B.double() * (length - side_B + 1)).long()
        for uniform_B, length in zip(uniform_B2.unbind(1), (height, width), strict=True)
    )
    rows = torch.arange(height, device=like.device).view(1, 1, -1, 1) - _broadcast(top_B)
    return rows, torch.arange(width, device=like.device).view(1, 1, 1, -1) - _broadcast(left_B)


def _broadcast(v_B: Tensor) -> Tensor:
    return v_B.view(-1, 1, 1, 1)


@dataclass(frozen=True, slots=True)
class WindowPatterns:
    """Patterns of windows for a p-norm, and how a perturbation moves from one window to another.

    Args:
        p: The norm, 2 or 1.
        decay: How steeply a pattern falls off from its two centers.
        mass: (eps, norm of the perturbation, its norms in the two windows [B, C, 1, 1], channels) -> the norm that
            the new window may have per channel.
    """

    p: int
    decay: int
    mass: Callable[[float, Tensor, Tensor, int], Tensor]

    def norm(self, delta: Tensor, dim: tuple[int, ...] = (2, 3)) -> Tensor:
        """Norms per channel, or over the whole image; dimensions are kept."""
        if self.p == 2:
            return delta.square().sum(dim, keepdim=True).sqrt()
        return delta.abs().sum(dim, keepdim=True)

    def move(self, best: Tensor, x0: Tensor, eps: float, side_B: Tensor, rng: RandomStreams) -> Tensor:
        """Clear one window and move its perturbation, and what `eps` still allows, to another one; not projected."""
        channels, delta = x0.shape[1], best - x0
        rows, columns = _from_corner(rng.fold(0).uniform(2), side_B, x0)
        target = _inside(rows, columns, side_B)
        cleared = window_mask(rng.fold(1).uniform(2), side_B, x0)
        pattern = self._at(rows, columns, side_B, rng.fold(2), x0)
        signs = rng.fold(3).signs(channels, 1, 1, dtype=x0.dtype)
        old = delta * target
        new = (pattern * signs + old / (1e-12 + self.norm(old))) * target
        available = self.mass(eps, self.norm(delta, (1, 2, 3)), self.norm(delta * (target | cleared)), channels)
        new = new / (1e-12 + self.norm(new)) * available
        return x0 + torch.where(target, new, delta.masked_fill(cleared, 0))

    def tiles(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        """The first perturbation: tiles with random signs per channel, each upright or transposed."""
        height, width = x0.shape[2:]
        side = max(min(height, width) // _TILES, 1)
        margin = max((height - side * _TILES) // 2, 0)
        down, across = height // side, width // side
        rows, columns = (torch.arange(length, device=x0.device) - margin for length in (height, width))
        pattern = self.table(min(height, width), x0.dtype, x0.device)[side, :side, :side]
        upright = pattern[rows.remainder(side)[:, None], columns.remainder(side)[None, :].clamp_max(side - 1)]
        transposed = pattern.T[rows.remainder(side)[:, None], columns.remainder(side)[None, :].clamp_max(side - 1)]
        row, column = rows.div(side, rounding_mode="floor"), columns.div(side, rounding_mode="floor")
        within = ((row >= 0) & (row < down))[:, None] & ((column >= 0) & (column < across))[None, :]
        tile = row.clamp(0, down - 1)[:, None] * across + column.clamp(0, across - 1)[None, :]
        is_transposed = (rng.fold(0).uniform(down * across) < 0.5)[:, tile][:, None]
        signs = rng.fold(1).signs(x0.shape[1], down * across, dtype=x0.dtype)[:, :, tile]
        return torch.where(is_transposed, transposed, upright) * signs * within

    def table(self, largest: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """[side, largest, largest]: for every side the pattern of a window, zero beyond it, of norm 1."""
        return _pattern_table(self, largest, dtype, device)

    def _at(self, rows: Tensor, columns: Tensor, side_B: Tensor, rng: RandomStreams, like: Tensor) -> Tensor:
        """[B, 1, H, W]: the pattern of each window at its position, transposed for every other window."""
        table = self.table(min(like.shape[2:]), like.dtype, like.device)
        transposed = _broadcast(rng.uniform() < 0.5)
        first, second = torch.where(transposed, columns, rows), torch.where(transposed, rows, columns)
        last = table.shape[1] - 1
        return table[_broadcast(side_B), first.clamp(0, last), second.clamp(0, last)]

    def _bump(self, height: int, width: int) -> Tensor:
        r"""A rectangle whose ring r around its center holds :math:`\sum_{k > r} k^{-decay}`, cut off at its edge."""
        rows = (torch.arange(height) - height // 2).abs()[:, None]
        columns = (torch.arange(width) - width // 2).abs()[None, :]
        rings = max(height, width) // 2 + 1
        heights = (1.0 / torch.arange(1, rings + 1, dtype=torch.float64) ** self.decay).flip(0).cumsum(0).flip(0)
        bump = heights[rows.maximum(columns).clamp_max(rings - 1)]
        return bump / (bump.square().sum().sqrt() if self.p == 2 else bump.sum()).clamp_min(1e-12)


@lru_cache(maxsize=16)
def _pattern_table(patterns: WindowPatterns, largest: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    table = torch.zeros(largest + 1, largest, largest, dtype=torch.float64)
    for side in range(1, largest + 1):
        half = side // 2
        table[side, :half, :side] = patterns._bump(half, side)
        table[side, half:side, :side] = -patterns._bump(side - half, side)
        table[side] /= patterns.norm(table[side][None, None]).squeeze().clamp_min(1e-12)
    return table.to(dtype).to(device)


L2_PATTERNS = WindowPatterns(
    2, 2, lambda eps, whole, used, channels: ((eps**2 - whole**2).clamp_min(0) / channels + used**2).sqrt()
)
L1_PATTERNS = WindowPatterns(1, 4, lambda eps, whole, used, channels: (eps - whole).clamp_min(0) + used * channels)
