"""The L-infinity ball."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from vitadel.core.numeric import Range
from vitadel.core.rng import RandomStreams
from vitadel.threats.base import Threat, broadcast_per_image, per_image
from vitadel.threats.hyperplane import displacement, proportional_moves
from vitadel.threats.square_proposals import window_mask


@dataclass(frozen=True, slots=True)
class Linf(Threat):
    """Images whose pixel values each differ from the original's by at most `eps`.

    Args:
        eps: The radius for pixels in [0, 1], such as 8/255.

    Example:
        >>> PGD(steps=20)(model, x, y, Linf(8 / 255))  # or "linf:8/255"
    """

    name: ClassVar[str] = "linf"
    eps_unit: ClassVar[str] = "1/255"
    largest_eps: ClassVar[float] = 1.0

    eps: Annotated[float, Range(gt=0, le=1, hint="Pixels lie in [0, 1]: write 8/255, not 8.")]

    def project(self, x: Tensor, x0: Tensor) -> Tensor:
        return x.clamp(x0 - self.eps, x0 + self.eps).clamp(0, 1)

    def ascend(self, x: Tensor, grad: Tensor, step: float | Tensor) -> Tensor:
        return x + broadcast_per_image(step, x) * grad.sign()

    def sample(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        return self.project(x0 + self.eps * self.random_direction(x0, rng), x0)

    def distance(self, x: Tensor, x0: Tensor) -> Tensor:
        return (x - x0).abs().flatten(1).amax(1)

    def random_direction(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        return 2 * rng.uniform(*x0.shape[1:], dtype=x0.dtype) - 1

    def sample_boundary(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        noise = self.random_direction(x0, rng)
        longest_B = noise.abs().flatten(1).amax(1)
        return (x0 + self.eps * noise / per_image(longest_B.clamp_min(1e-12), noise)).clamp(0, 1)

    def sample_vertex(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        return self.project(x0 + self.eps * rng.signs(*x0.shape[1:], dtype=x0.dtype), x0)

    def dual_norm(self, grad: Tensor) -> Tensor:
        return grad.flatten(1).abs().sum(1)

    def project_on_hyperplane(self, x: Tensor, normal: Tensor, offset_B: Tensor) -> Tensor:
        def solve(weight: Tensor, slack: Tensor, gap_B: Tensor) -> Tensor:
            return proportional_moves(torch.ones_like(weight), weight, slack, gap_B) * (weight > 0)

        return displacement(x, normal, offset_B, solve)

    def square_start(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        """Vertical stripes of +eps and -eps."""
        stripes = rng.signs(x0.shape[1], 1, x0.shape[3], dtype=x0.dtype)
        return (x0 + self.eps * stripes).clamp(0, 1)

    def square_proposal(self, best: Tensor, x0: Tensor, side_B: Tensor, rng: RandomStreams) -> Tensor:
        """One window set to +eps or -eps per channel."""
        channels = x0.shape[1]
        # one call for position and signs, to keep the overhead per query small
        uniform = rng.uniform(2 + channels, dtype=x0.dtype)
        signs = torch.where(uniform[:, 2:, None, None] < 0.5, -1.0, 1.0).to(x0.dtype)
        return torch.where(window_mask(uniform[:, :2], side_B, x0), (x0 + self.eps * signs).clamp(0, 1), best)
