"""The Euclidean ball."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range, check_ranges
from vitadel.core.rng import RandomStreams
from vitadel.threats.base import per_image, spread

_TINY = 1e-12
# an image whose turns are cut short stays inside the ball, a little short of its edge
_TURNS = 16


@dataclass(frozen=True, slots=True)
class L2:
    """Every image at a Euclidean distance of at most `eps` from the original, pixels in [0, 1]."""

    eps: Annotated[float, Range(gt=0, hint="Write for example 0.5 or 128/255.")]

    def __post_init__(self) -> None:
        check_ranges(self)

    def project(self, x: Tensor, x0: Tensor) -> Tensor:
        r"""The exact projection on ball and box together, without sorting.

        The Lagrangian of :math:`\min \|z - x\|^2` gives :math:`z = \mathrm{clip}(x_0 + s (x - x_0))` for one factor
        :math:`s \le 1` per image, and :math:`\|z - x_0\|` grows with :math:`s`. Freezing the pixels clipped at the
        current :math:`s` leaves an equation solved by a square root; its solution never overshoots, and the
        turns settle as soon as the clipped set does: three or four on images (tests/unit/threat/test_projections.py).
        On a GPU their number is fixed: asking whether they have settled would make every step wait for the device.
        """
        _refuse_ball_over_box(self.eps, x0)
        # distances add up thousands of squares: float32 sums of them are only good to 1e-5
        shift = (x - x0).double().flatten(1)
        low, high = -x0.double().flatten(1), 1 - x0.double().flatten(1)
        scale_B = torch.ones_like(shift[:, 0])
        norm_B = shift.clamp(low, high).norm(dim=1)
        outside_B = norm_B > self.eps
        scale_B = torch.where(outside_B, self.eps / shift.norm(dim=1).clamp_min(_TINY), scale_B)
        for _ in range(shift.shape[1] if x.is_cpu else _TURNS):  # every turn but the last clips one value more
            moved = scale_B[:, None] * shift
            free = (moved >= low) & (moved <= high)
            clipped_B = (moved.clamp(low, high).square() * ~free).sum(1)
            free_B = (shift.square() * free).sum(1)
            grown_B = ((self.eps**2 - clipped_B).clamp_min(0) / free_B.clamp_min(_TINY)).sqrt().clamp_max(1)
            if x.is_cpu and not bool((outside_B & (grown_B > scale_B)).any()):
                break
            scale_B = torch.where(outside_B, torch.maximum(scale_B, grown_B), scale_B)
        return (x0 + (scale_B[:, None] * shift).view_as(x0).to(x0.dtype)).clamp(0, 1)

    def ascend(self, x: Tensor, grad: Tensor, step: float | Tensor) -> Tensor:
        # a saturated softmax leaves gradients far below 1e-12 that still point the right way
        return x + spread(step, x) * grad / per_image(_norm(grad).clamp_min(torch.finfo(grad.dtype).tiny), grad)

    def sample(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        """Uniform in the ball: a Gaussian direction, and a radius whose d-th power is uniform."""
        direction = rng.fold(0).normal(*x0.shape[1:], dtype=x0.dtype)
        radius_B = self.eps * rng.fold(1).uniform(dtype=x0.dtype) ** (1 / x0[0].numel())
        return self.project(x0 + direction * per_image(radius_B / _norm(direction).clamp_min(_TINY), x0), x0)

    def distance(self, x: Tensor, x0: Tensor) -> Tensor:
        return _norm(x - x0)


def _norm(x: Tensor) -> Tensor:
    return x.flatten(1).double().norm(dim=1).to(x.dtype)


def _refuse_ball_over_box(eps: float, x0: Tensor) -> None:
    if eps > (limit := math.sqrt(x0[0].numel())):
        raise UsageError(
            f"L2.eps of {eps:g} holds every image of shape {tuple(x0.shape[1:])} (the box has diameter {limit:.4g}). "
            "Pixels live in [0, 1]: write 128/255, not 128."
        )
