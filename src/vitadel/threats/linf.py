"""The ball in which no pixel moves far."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from vitadel.core.numeric import Range, check_ranges
from vitadel.core.rng import RandomStreams
from vitadel.threats.base import spread


@dataclass(frozen=True, slots=True)
class Linf:
    """Every image whose pixels each differ from the original's by at most `eps`, and stay in [0, 1]."""

    eps: Annotated[float, Range(gt=0, le=1, hint="Pixels live in [0, 1]: write 8/255, not 8.")]

    def __post_init__(self) -> None:
        check_ranges(self)

    def project(self, x: Tensor, x0: Tensor) -> Tensor:
        return x.clamp(x0 - self.eps, x0 + self.eps).clamp(0, 1)

    def ascend(self, x: Tensor, grad: Tensor, step: float | Tensor) -> Tensor:
        return x + spread(step, x) * grad.sign()

    def sample(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        noise = rng.uniform(*x0.shape[1:], dtype=x0.dtype) * 2 - 1
        return self.project(x0 + self.eps * noise, x0)

    def distance(self, x: Tensor, x0: Tensor) -> Tensor:
        return (x - x0).abs().flatten(1).amax(1)
