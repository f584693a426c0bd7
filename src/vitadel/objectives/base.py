"""What every objective takes and gives.

Shape letters: B images, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitadel.errors import UsageError


@dataclass(frozen=True, slots=True)
class Step:
    """The scalar that weights are trained on, numbers worth logging, and the logits that were computed anyway."""

    loss: Tensor
    logs: Mapping[str, Tensor] = field(default_factory=dict)
    clean_logits: Tensor | None = None
    adv_logits: Tensor | None = None


class Objective(Protocol):
    """What training minimises. `y` is [B] class numbers or [B, K] shares; `index_B` numbers the images."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Step:
        """One batch's loss. Draws depend on `seed` and `index_B`, never on the batch."""

    def at(self, progress: float) -> "Objective":
        """The objective at this point of training, from just above 0 to 1: where schedules live."""


def shares(y: Tensor, num_classes: int, smoothing: float) -> Tensor:
    """[B, K] target shares: `smoothing` of each image's weight is spread evenly over all classes."""
    hard = F.one_hot(y, num_classes).float() if y.ndim == 1 else y
    return hard * (1 - smoothing) + smoothing / num_classes


def hard_labels(y: Tensor) -> Tensor:
    """[B] class numbers: what an attack aims away from, also when the targets are mixed."""
    return y if y.ndim == 1 else y.argmax(1)


def undistributed(model: nn.Module) -> nn.Module:
    """The module inside a distributed wrapper, whose forward hooks wait for weight gradients an attack never makes."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def accuracy(z_BK: Tensor, y: Tensor) -> Tensor:
    return (z_BK.detach().argmax(1) == hard_labels(y)).float().mean()


def check_smoothing(owner: str, smoothing: float) -> None:
    if not 0 <= smoothing < 1:
        raise UsageError(f"{owner}.smoothing must lie in [0, 1), got {smoothing:g}.")
