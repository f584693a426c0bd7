"""The L1 ball."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from vitadel.core.numeric import Range
from vitadel.core.rng import RandomStreams
from vitadel.threats.base import Threat, check_size, per_image
from vitadel.threats.hyperplane import displacement, steepest_moves
from vitadel.threats.square_proposals import L1_PATTERNS

# 48 halvings leave an interval far below the resolution of float32; what remains is solved exactly
_HALVINGS = 48


@dataclass(frozen=True, slots=True)
class L1(Threat):
    """Images whose changes of pixel values add up to at most `eps`.

    Args:
        eps: The radius for pixels in [0, 1], such as 12.
        active: The share of the pixel values that one step of PGD moves, as in the sparse steps of Tramer & Boneh 2019
            (arXiv:1904.13000): the steepest step moves a single value and is far too slow.

    Example:
        >>> PGD(steps=20)(model, x, y, L1(12))  # or "l1:12"
    """

    name: ClassVar[str] = "l1"
    usual_eps: ClassVar[str] = "12"
    sparse: ClassVar[bool] = True
    square_min_side: ClassVar[int] = 3

    eps: Annotated[float, Range(gt=0, hint="Write for example 12.")]
    active: Annotated[float, Range(gt=0, le=1, hint="It is a share of the pixel values.")] = 0.01

    def project(self, x: Tensor, x0: Tensor) -> Tensor:
        """The exact projection on ball and box together."""
        check_size(self, x0.shape[1:])
        return project_l1(x, x0, self.eps)

    def ascend(self, x: Tensor, grad: Tensor, step: float | Tensor) -> Tensor:
        """A step of L1 length `step`, divided among the steepest values; where the box blocks one, the next moves more.

        Only then does a step keep its length next to the box: `project` moves every changed value a little away from
        it, and steps that only fill these gaps would never reach further values
        (tests/contract/test_contract_radius.py).
        """
        flat, slack = grad.flatten(1), torch.where(grad > 0, 1 - x, x).flatten(1)
        free = (flat != 0) & (slack > 0)
        step = step[:, None] if isinstance(step, Tensor) else step
        share_B = step / free.sum(1, keepdim=True).clamp(1, max(1, int(self.active * flat.shape[1])))
        order = flat.abs().argsort(dim=1, descending=True)
        most = slack.minimum(share_B).masked_fill(~free, 0).gather(1, order)
        moved = (step - most.cumsum(1) + most).clamp_min(0).minimum(most)
        return x + (flat.sign() * torch.zeros_like(flat).scatter(1, order, moved)).view_as(x)

    def sample(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        """Uniform in the ball: exponential lengths with random signs, and a radius whose d-th power is uniform."""
        shape = x0.shape[1:]
        lengths = -torch.log1p(-rng.fold(0).uniform(*shape, dtype=x0.dtype))
        signs = rng.fold(1).signs(*shape, dtype=x0.dtype)
        radius_B = self.eps * rng.fold(2).uniform(dtype=x0.dtype) ** (1 / x0[0].numel())
        total_B = lengths.flatten(1).double().sum(1).clamp_min(1e-12).to(x0.dtype)
        return self.project(x0 + signs * lengths * per_image(radius_B / total_B, x0), x0)

    def distance(self, x: Tensor, x0: Tensor) -> Tensor:
        return (x - x0).abs().flatten(1).double().sum(1).to(x.dtype)

    def diameter(self, shape: Sequence[int]) -> float:
        return math.prod(shape)

    def sample_boundary(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        return project_l1(x0 + self.random_direction(x0, rng), x0, self.eps)

    def dual_norm(self, grad: Tensor) -> Tensor:
        return grad.flatten(1).abs().amax(1)

    def project_on_hyperplane(self, x: Tensor, normal: Tensor, offset_B: Tensor) -> Tensor:
        return displacement(x, normal, offset_B, steepest_moves)

    def square_start(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        return project_l1(x0 + L1_PATTERNS.tiles(x0, rng), x0, self.eps)

    def square_proposal(self, best: Tensor, x0: Tensor, side_B: Tensor, rng: RandomStreams) -> Tensor:
        return project_l1(L1_PATTERNS.move(best, x0, self.eps, side_B, rng), x0, self.eps)

    def project_within(self, x: Tensor, x0: Tensor, eps_B: Tensor) -> Tensor:
        return project_l1(x, x0, eps_B)

    def sparse_step(self, x: Tensor, grad: Tensor, step_B: Tensor, share_B: Tensor) -> Tensor:
        flat = grad.flatten(1).abs()
        values = flat.shape[1]
        rank_B = ((1 - share_B) * values).clamp(0, values - 1).long()
        threshold_B = flat.sort(1).values.gather(1, rank_B[:, None]).squeeze(1)
        signs = grad.sign() * (grad.abs() >= per_image(threshold_B, grad))
        moved_B = signs.abs().flatten(1).sum(1)
        return x + signs * per_image(step_B / (moved_B + 1e-10), x)


def project_l1(x: Tensor, x0: Tensor, eps: float | Tensor) -> Tensor:
    r"""The nearest image to `x` in the box and within an L1 distance of `eps`, [B] if each has its own, from `x0`.

    With :math:`d = x - x_0` and :math:`r` the slack from :math:`x_0` to the box in the direction of :math:`d`, the
    projection moves each value by :math:`\mathrm{clip}(|d| - \lambda, 0, r)`. Their sum falls as :math:`\lambda`
    rises and is piecewise linear: bisect, then solve the last piece (tests/unit/threats/test_projections.py).
    """
    eps = eps[:, None].double() if isinstance(eps, Tensor) else eps
    shift, origin = (x - x0).double().flatten(1), x0.double().flatten(1)
    length, slack = shift.abs(), torch.where(shift > 0, 1 - origin, origin)
    low_B, high_B = torch.zeros_like(length[:, :1]), length.amax(1, keepdim=True)
    for _ in range(_HALVINGS):
        middle_B = (low_B + high_B) / 2
        too_long_B = _moved(length, middle_B, slack).sum(1, keepdim=True) > eps
        low_B, high_B = torch.where(too_long_B, middle_B, low_B), torch.where(too_long_B, high_B, middle_B)
    start, end = (_moved(length, edge_B, slack).sum(1, keepdim=True) for edge_B in (low_B, high_B))
    part_B = ((start - eps) / (start - end).clamp_min(1e-300)).clamp(0, 1)
    moved = _moved(length, low_B + part_B * (high_B - low_B), slack)
    inside_B = length.minimum(slack).sum(1, keepdim=True) <= eps
    moved = torch.where(inside_B, length.minimum(slack), moved)
    return (x0 + (shift.sign() * moved).view_as(x0).to(x0.dtype)).clamp(0, 1)


def _moved(length: Tensor, threshold_B: Tensor, slack: Tensor) -> Tensor:
    return (length - threshold_B).clamp_min(0).minimum(slack)
