"""The Euclidean ball."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from vitadel.core.numeric import Range
from vitadel.core.rng import RandomStreams
from vitadel.threats.base import Threat, broadcast_per_image, check_size, per_image
from vitadel.threats.hyperplane import displacement, proportional_moves
from vitadel.threats.square_proposals import L2_PATTERNS

_TINY = 1e-12
# stopped earlier, an image lies inside the ball, close to its boundary
_ITERATIONS = 16


@dataclass(frozen=True, slots=True)
class L2(Threat):
    """Images at a Euclidean distance of at most `eps` from the original.

    Args:
        eps: The radius for pixels in [0, 1], such as 0.5 or 128/255.

    Example:
        >>> PGD(steps=20)(model, x, y, L2(0.5))  # or "l2:0.5"
    """

    name: ClassVar[str] = "l2"
    usual_eps: ClassVar[str] = "0.5"
    square_min_side: ClassVar[int] = 3

    eps: Annotated[float, Range(gt=0, hint="Write for example 0.5 or 128/255.")]

    def project(self, x: Tensor, x0: Tensor) -> Tensor:
        r"""The exact projection on ball and box together, without sorting.

        The Lagrangian of :math:`\min \|z - x\|^2` gives :math:`z = \mathrm{clip}(x_0 + s (x - x_0))` for one factor
        :math:`s \le 1` per image, and :math:`\|z - x_0\|` grows with :math:`s`. Freezing the pixels clipped at the
        current :math:`s` leaves an equation solved by a square root; its solution never overshoots, and the
        iteration ends as soon as the clipped set no longer changes: after three or four steps on images
        (tests/unit/threats/test_projections.py). On a GPU the number of steps is fixed, because testing for the
        end would synchronize with the device.
        """
        check_size(self, x0.shape[1:])
        # float32 sums of thousands of squares have a relative error of 1e-5
        shift = (x - x0).double().flatten(1)
        low, high = -x0.double().flatten(1), 1 - x0.double().flatten(1)
        scale_B = torch.ones_like(shift[:, 0])
        norm_B = shift.clamp(low, high).norm(dim=1)
        outside_B = norm_B > self.eps
        scale_B = torch.where(outside_B, self.eps / shift.norm(dim=1).clamp_min(_TINY), scale_B)
        for _ in range(
            shift.shape[1] if x.is_cpu else _ITERATIONS
        ):  # every iteration but the last clips one value more
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
        return x + broadcast_per_image(step, x) * grad / per_image(
            _norm(grad).clamp_min(torch.finfo(grad.dtype).tiny), grad
        )

    def sample(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        """Uniform in the ball: a Gaussian direction, and a radius whose d-th power is uniform."""
        direction = rng.fold(0).normal(*x0.shape[1:], dtype=x0.dtype)
        radius_B = self.eps * rng.fold(1).uniform(dtype=x0.dtype) ** (1 / x0[0].numel())
        return self.project(x0 + direction * per_image(radius_B / _norm(direction).clamp_min(_TINY), x0), x0)

    def distance(self, x: Tensor, x0: Tensor) -> Tensor:
        return _norm(x - x0)

    def diameter(self, shape: Sequence[int]) -> float:
        return math.sqrt(math.prod(shape))

    def sample_boundary(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        noise = self.random_direction(x0, rng)
        return (x0 + self.eps * noise / per_image(noise.flatten(1).norm(dim=1).clamp_min(_TINY), noise)).clamp(0, 1)

    def dual_norm(self, grad: Tensor) -> Tensor:
        return grad.flatten(1).norm(dim=1)

    def project_on_hyperplane(self, x: Tensor, normal: Tensor, offset_B: Tensor) -> Tensor:
        return displacement(
            x, normal, offset_B, lambda weight, slack, gap_B: proportional_moves(weight, weight, slack, gap_B)
        )

    def square_start(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        return self._stretched(x0 + L2_PATTERNS.tiles(x0, rng), x0)

    def square_proposal(self, best: Tensor, x0: Tensor, side_B: Tensor, rng: RandomStreams) -> Tensor:
        return self._stretched(L2_PATTERNS.move(best, x0, self.eps, side_B, rng), x0)

    def _stretched(self, x: Tensor, x0: Tensor) -> Tensor:
        """`x` at distance eps from `x0`, then clipped to the box."""
        delta = x - x0
        return (x0 + delta * (self.eps / L2_PATTERNS.norm(delta, (1, 2, 3)).clamp_min(_TINY))).clamp(0, 1)


def _norm(x: Tensor) -> Tensor:
    return x.flatten(1).double().norm(dim=1).to(x.dtype)
