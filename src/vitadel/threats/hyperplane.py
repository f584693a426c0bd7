r"""The nearest point of a hyperplane inside the box, without synchronizing with the device.

Given a point :math:`p` of the box and the plane :math:`w \cdot v = b`, find the :math:`v \in [0, 1]^d` on the plane
that is nearest to :math:`p`; if the plane misses the box, the corner nearest to the plane. Shape letters: B points.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# on images Newton's method settles after four to eight iterations; a point cut short lies before the plane
_ITERATIONS = 12
# (|normal|, largest allowed moves, what is missing to the plane) -> moves, all [B, d] and not negative
Solver = Callable[[Tensor, Tensor, Tensor], Tensor]


def displacement(x: Tensor, normal: Tensor, offset_B: Tensor, solve: Solver) -> Tensor:
    """The displacement of `x` to the plane inside the box, with lengths per value chosen by `solve`.

    Args:
        x: [B, ...] points of the box.
        normal: [B, ...] normals of the planes.
        offset_B: Their offsets.
        solve: Takes the steepness [B, d] of every value, the room [B, d] it has to the box and the [B] gaps to
            close, and returns how far [B, d] each value moves; this is where norms differ.
    """
    point, flat = x.flatten(1), normal.flatten(1)
    gap_B = offset_B - (flat * point).sum(1)
    # every value moves so as to bring the point nearer to the plane, at most as far as the box lets it
    direction = flat * torch.where(gap_B < 0, -1.0, 1.0).to(flat.dtype)[:, None]
    room = torch.where(direction > 0, 1 - point, point)
    return (direction.sign() * solve(direction.abs(), room, gap_B.abs())).view_as(x)


def proportional_moves(pace: Tensor, slope: Tensor, room: Tensor, gap_B: Tensor) -> Tensor:
    r"""Moves of :math:`\min(\lambda \cdot pace, room)` that close the gaps; L-infinity and L2.

    The sum of :math:`slope \cdot move` is concave and piecewise linear in :math:`\lambda`, so Newton's method from
    below never overshoots and is exact as soon as the set of values that meet the box stays the same.
    """
    lambda_B = torch.zeros_like(gap_B)
    for _ in range(slope.shape[1] if slope.is_cpu else _ITERATIONS):
        clipped = lambda_B[:, None] * pace >= room
        closed_B = (slope * room * clipped).sum(1)
        rate_B = (slope * pace * ~clipped).sum(1)
        next_B = (gap_B - closed_B).clamp_min(0) / rate_B.clamp_min(torch.finfo(rate_B.dtype).tiny)
        next_B = lambda_B.maximum(next_B.clamp_max(torch.finfo(rate_B.dtype).max))
        if slope.is_cpu and bool((next_B <= lambda_B).all()):
            break
        lambda_B = next_B
    return (lambda_B[:, None] * pace).minimum(room)


def steepest_moves(slope: Tensor, room: Tensor, gap_B: Tensor) -> Tensor:
    """Moves that use up the room of the steepest value, then of the next, until the gaps are closed; L1."""
    order = slope.argsort(dim=1, descending=True)
    sorted_slope, closes = slope.gather(1, order), (slope * room).gather(1, order)
    before = closes.cumsum(1) - closes
    part = (gap_B[:, None] - before).clamp_min(0).minimum(closes)
    moved = part / sorted_slope.clamp_min(torch.finfo(slope.dtype).tiny)
    return torch.zeros_like(slope).scatter(1, order, moved).minimum(room)
