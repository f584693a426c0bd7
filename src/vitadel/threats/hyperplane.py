r"""Projection onto the intersection of a hyperplane and the box, without synchronizing with the device.

Given a point :math:`p` of the box and the plane :math:`w \cdot v = b`, find the :math:`v \in [0, 1]^d` on the plane
that is nearest to :math:`p`; if the plane does not intersect the box, the corner nearest to the plane.

Shape letters: B points, d values of a point.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# on images Newton's method converges after four to eight iterations; stopped earlier, a point lies before the plane
_ITERATIONS = 12
# (|normal| [B, d], largest allowed moves [B, d], gaps to the plane [B]) -> moves [B, d], all not negative
Solver = Callable[[Tensor, Tensor, Tensor], Tensor]


def displacement(x: Tensor, normal: Tensor, offset_B: Tensor, solve: Solver) -> Tensor:
    """The displacement of `x` to the plane inside the box, with lengths per value chosen by `solve`.

    Args:
        x: [B, ...] points of the box.
        normal: [B, ...] normals of the planes.
        offset_B: Their offsets.
        solve: Takes the weight |w| [B, d] of every value, the slack [B, d] it has to the box and the [B] gaps to
            close, and returns how far [B, d] each value moves; this is where norms differ.
    """
    point, flat = x.flatten(1), normal.flatten(1)
    gap_B = offset_B - (flat * point).sum(1)
    # every value moves in the direction of the plane, at most to the boundary of the box
    direction = flat * torch.where(gap_B < 0, -1.0, 1.0).to(flat.dtype)[:, None]
    slack = torch.where(direction > 0, 1 - point, point)
    return (direction.sign() * solve(direction.abs(), slack, gap_B.abs())).view_as(x)


def proportional_moves(pace: Tensor, weight: Tensor, slack: Tensor, gap_B: Tensor) -> Tensor:
    r"""Moves of :math:`\min(\lambda \cdot pace, slack)` that close the gaps; L-infinity and L2.

    The sum of :math:`weight \cdot move` is concave and piecewise linear in :math:`\lambda`, so Newton's method from
    below never overshoots and is exact as soon as the set of values that meet the box stays the same.
    """
    lambda_B = torch.zeros_like(gap_B)
    for _ in range(weight.shape[1] if weight.is_cpu else _ITERATIONS):
        clipped = lambda_B[:, None] * pace >= slack
        closed_B = (weight * slack * clipped).sum(1)
        rate_B = (weight * pace * ~clipped).sum(1)
        next_B = (gap_B - closed_B).clamp_min(0) / rate_B.clamp_min(torch.finfo(rate_B.dtype).tiny)
        next_B = lambda_B.maximum(next_B.clamp_max(torch.finfo(rate_B.dtype).max))
        if weight.is_cpu and bool((next_B <= lambda_B).all()):
            break
        lambda_B = next_B
    return (lambda_B[:, None] * pace).minimum(slack)


def steepest_moves(weight: Tensor, slack: Tensor, gap_B: Tensor) -> Tensor:
    """Moves that use up the slack of the largest weight, then of the next, until the gaps are closed; L1."""
    order = weight.argsort(dim=1, descending=True)
    sorted_weight, closes = weight.gather(1, order), (weight * slack).gather(1, order)
    before = closes.cumsum(1) - closes
    part = (gap_B[:, None] - before).clamp_min(0).minimum(closes)
    moved = part / sorted_weight.clamp_min(torch.finfo(weight.dtype).tiny)
    return torch.zeros_like(weight).scatter(1, order, moved).minimum(slack)
