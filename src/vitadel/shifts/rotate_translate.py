"""Images turned and shifted a little: a handful of numbers per image instead of one per pixel.

Shape letters: B images, M moves.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, Degrees, NotNegative, check_ranges
from vitadel.core.rng import RandomStreams

# a grid that memory holds: the published ones have up to 2511 moves
_MOST_MOVES = 1_000_000


@dataclass(frozen=True, slots=True)
class RotateTranslate:
    """Every turn about the center by up to `degrees`, followed by a shift of up to `reach` pixels down and right.

    As a grid (Engstrom et al. 2019, arXiv:1712.02779), it has `turns` angles and `shifts` lengths either way, evenly
    spaced from end to end. A move is (down, right, degrees), shifts in pixels. What comes in from outside is black.
    """

    reach: NotNegative
    degrees: Degrees = 30.0
    shifts: Count = 9
    turns: Count = 31

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.shifts % 2 == 0 or self.turns % 2 == 0:
            raise UsageError(
                f"RotateTranslate.shifts and turns are odd, so that the image itself is among them, got {self.shifts} "
                f"and {self.turns}."
            )
        if (moves := self.shifts**2 * self.turns) > _MOST_MOVES:
            raise UsageError(
                f"RotateTranslate has {self.shifts} x {self.shifts} shifts and {self.turns} turns: {moves} moves, more "
                f"than {_MOST_MOVES}. Write for example shifts=9,turns=31."
            )

    def moves(self) -> Tensor:
        """[M, 3]: the grid, angle by angle; the image itself is in the middle."""
        lengths = _evenly(self.reach, self.shifts)
        angles = _evenly(self.degrees, self.turns)
        angle, down, right = torch.meshgrid(angles, lengths, lengths, indexing="ij")
        return torch.stack([down, right, angle], -1).flatten(0, 2)

    def sample(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        """Each image moved at random, uniformly within the reach of all three."""
        ends = torch.tensor([self.reach, self.reach, self.degrees], dtype=torch.float64, device=x0.device)
        return moved(x0, (2 * rng.uniform(3, dtype=torch.float64) - 1) * ends)


def moved(x: Tensor, move_B3: Tensor) -> Tensor:
    r"""Each image turned counter-clockwise about its center, then shifted, by its own move (down, right, degrees).

    One bilinear interpolation for both: a pixel at :math:`p`, measured from the center, is read at
    :math:`R^{-1}(p - t)`. An image that does not move comes back bit for bit.
    """
    height, width = x.shape[-2:]
    down, right, degrees = move_B3.to(device=x.device, dtype=torch.float64).unbind(1)
    # rows of an image grow downwards, so a turn that looks counter-clockwise is a clockwise one in their coordinates
    cos, sin = torch.cos(torch.deg2rad(degrees)), torch.sin(torch.deg2rad(degrees))
    theta = torch.stack(
        [
            torch.stack([cos, -sin * height / width, (-cos * right + sin * down) * 2 / width], 1),
            torch.stack([sin * width / height, cos, (-sin * right - cos * down) * 2 / height], 1),
        ],
        1,
    )
    grid = affine_grid(theta.to(x.dtype), list(x.shape), align_corners=False)
    turned = grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    still_B = (move_B3 == 0).all(1).to(x.device)
    # an interpolation ends a hair beside the box now and then
    return torch.where(still_B.view(-1, 1, 1, 1), x, turned.clamp(0, 1))


def _evenly(end: float, count: int) -> Tensor:
    return torch.linspace(-end, end, count, dtype=torch.float64) if count > 1 else torch.zeros(1, dtype=torch.float64)
