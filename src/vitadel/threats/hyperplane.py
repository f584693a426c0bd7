"""The nearest point of a hyperplane inside the box, in three norms, without asking the device.

Given a point :math:`p` of the box and the plane :math:`w \\cdot v = b`, find the :math:`v \\in [0, 1]^d` on the plane
that is nearest to :math:`p`; if the plane misses the box, the corner nearest to the plane. Shape letters: B points.
"""

import torch
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.threats import L1, L2, Linf, Threat

# on images the turns settle after four to eight; a point cut short lies before the plane
_TURNS = 12


def project_on_plane(point: Tensor, normal: Tensor, offset_B: Tensor, threat: Threat) -> Tensor:
    """The displacements [B, d], shortest in the threat's norm, that take `point` to the plane inside the box."""
    missing_B = offset_B - (normal * point).sum(1)
    # every value moves so as to bring the point nearer to the plane, at most as far as the box lets it
    slope = normal * torch.where(missing_B < 0, -1.0, 1.0).to(normal.dtype)[:, None]
    room = torch.where(slope > 0, 1 - point, point)
    pull = slope.abs()
    if isinstance(threat, Linf):
        moved = _along(torch.ones_like(pull), pull, room, missing_B.abs()) * (pull > 0)
    elif isinstance(threat, L2):
        moved = _along(pull, pull, room, missing_B.abs())
    elif isinstance(threat, L1):
        moved = _steepest_first(pull, room, missing_B.abs())
    else:
        raise UsageError(f"FAB knows the norms linf, l2 and l1, got {type(threat).__name__}.")
    return slope.sign() * moved


def _along(pace: Tensor, pull: Tensor, room: Tensor, missing_B: Tensor) -> Tensor:
    r"""Moves of :math:`\min(\lambda \cdot pace, room)` whose pulls add up to `missing_B`.

    The sum is concave and piecewise linear in :math:`\lambda`, so Newton's method from below never overshoots and is
    exact as soon as the set of values that meet the box stays the same.
    """
    far_B = torch.zeros_like(missing_B)
    for _ in range(pull.shape[1] if pull.is_cpu else _TURNS):
        stuck = far_B[:, None] * pace >= room
        success_B = (pull * room * stuck).sum(1)
        rate_B = (pull * pace * ~stuck).sum(1)
        further_B = (missing_B - success_B).clamp_min(0) / rate_B.clamp_min(torch.finfo(rate_B.dtype).tiny)
        further_B = far_B.maximum(further_B.clamp_max(torch.finfo(rate_B.dtype).max))
        if pull.is_cpu and bool((further_B <= far_B).all()):
            break
        far_B = further_B
    return (far_B[:, None] * pace).minimum(room)


def _steepest_first(pull: Tensor, room: Tensor, missing_B: Tensor) -> Tensor:
    """Moves that use up the room of the value that pulls most, then of the next, until `missing_B` is reached."""
    order = pull.argsort(dim=1, descending=True)
    sorted_pull, gains = pull.gather(1, order), (pull * room).gather(1, order)
    before = gains.cumsum(1) - gains
    part = (missing_B[:, None] - before).clamp_min(0).minimum(gains)
    moved = part / sorted_pull.clamp_min(torch.finfo(pull.dtype).tiny)
    return torch.zeros_like(pull).scatter(1, order, moved).minimum(room)
