"""Training on the images as they are."""

from dataclasses import dataclass

from torch import Tensor, nn

from vitadel.losses import cross_entropy
from vitadel.objectives.base import Step, accuracy, check_smoothing, shares


@dataclass(frozen=True, slots=True)
class Standard:
    """Cross-entropy on clean images, with label smoothing if wanted."""

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing("Standard", self.smoothing)

    def at(self, progress: float) -> "Standard":
        return self

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Step:
        z_BK = model(x).float()
        loss = cross_entropy(z_BK, shares(y, z_BK.shape[1], self.smoothing)).mean()
        return Step(loss, {"clean_accuracy": accuracy(z_BK, y)}, clean_logits=z_BK)
