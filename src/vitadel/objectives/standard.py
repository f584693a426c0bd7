"""Standard training."""

from dataclasses import dataclass

from torch import Tensor, nn

from vitadel.core.numeric import check_ranges
from vitadel.losses import cross_entropy
from vitadel.objectives.base import Examples, LossOutput, Objective, Smoothing, batch_accuracy, soft_targets


@dataclass(frozen=True, slots=True)
class Standard(Objective):
    """Cross-entropy on clean images, with label smoothing if wanted.

    Args:
        smoothing: The probability that label smoothing distributes over all classes.
    """

    smoothing: Smoothing = 0.0

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def capturable(self) -> bool:
        return True

    @property
    def loss_passes(self) -> float:
        return 3.0

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        return Examples(x, y, x)

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        z_BK = model(examples.x).float()
        loss = cross_entropy(z_BK, soft_targets(examples.y, z_BK.shape[1], self.smoothing)).mean()
        return LossOutput(loss, {"clean_accuracy": batch_accuracy(z_BK, examples.y)})
