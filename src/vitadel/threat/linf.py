"""The ball in which no pixel moves far."""

from dataclasses import dataclass

from torch import Tensor

from vitadel.draws import Draws
from vitadel.errors import UsageError
from vitadel.threat.base import spread


@dataclass(frozen=True, slots=True)
class Linf:
    """Every image whose pixels each differ from the original's by at most `eps`, and stay in [0, 1]."""

    eps: float

    def __post_init__(self) -> None:
        if not 0 < self.eps <= 1:
            raise UsageError(
                f"Linf.eps must lie in (0, 1], got {self.eps:g}. Pixels live in [0, 1]: write 8/255, not 8."
            )

    def project(self, x: Tensor, x0: Tensor) -> Tensor:
        return x.clamp(x0 - self.eps, x0 + self.eps).clamp(0, 1)

    def ascend(self, x: Tensor, grad: Tensor, step: float | Tensor) -> Tensor:
        return x + spread(step, x) * grad.sign()

    def sample(self, x0: Tensor, rng: Draws) -> Tensor:
        noise = rng.uniform(*x0.shape[1:], dtype=x0.dtype) * 2 - 1
        return self.project(x0 + self.eps * noise, x0)

    def size(self, x: Tensor, x0: Tensor) -> Tensor:
        return (x - x0).abs().flatten(1).amax(1)
