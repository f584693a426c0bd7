"""What every objective takes and gives.

Shape letters: B images, K classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, final

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitadel.core.numeric import Range
from vitadel.objectives.schedule import TrainingTime

# label smoothing, of which something has to be left for the label
Smoothing = Annotated[float, Range(ge=0, lt=1)]


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Step:
    """The scalar that weights are trained on, numbers worth logging, and the logits that were computed anyway.

    `undo` is to be called after the backward pass: an objective that looks elsewhere than at the weights moves them.
    Where `trains` is false the batch served something else, and weights, optimizer and average stay as they are.
    """

    loss: Tensor
    logs: Mapping[str, Tensor] = field(default_factory=dict)
    clean_logits: Tensor | None = None
    adv_logits: Tensor | None = None
    undo: Callable[[], None] = _nothing
    trains: bool = True


@dataclass(frozen=True, slots=True)
class Examples:
    """A batch as the loss sees it: images, targets, and what an attack made of the images if there is one."""

    x: Tensor
    y: Tensor
    x_adv: Tensor


class Objective(ABC):
    """What training minimizes, in two halves: what to look at, and how bad it is.

    The halves are apart so that a wrapper can ask for the loss of the same examples at other weights. `y` is [B] class
    numbers or [B, K] shares; `index_B` numbers the images. Draws depend on `seed` and `index_B`, never on the batch.
    """

    __slots__ = ()

    @abstractmethod
    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        """The examples of one batch; leaves no gradients and no trace on the model."""

    @abstractmethod
    def loss(self, model: nn.Module, examples: Examples) -> Step:
        """How bad the model is on them; the model is in training mode."""

    @property
    @abstractmethod
    def loss_passes(self) -> float:
        """What `loss` and its backward pass cost, in forward passes: a backward pass to the weights counts 2."""

    @property
    def passes(self) -> float:
        """What an image costs in all, in forward passes."""
        return self.loss_passes

    @property
    def selective(self) -> bool:
        """Whether some updates leave weights alone that others train; processes that share gradients must know."""
        return False

    @property
    def recordable(self) -> bool:
        """Whether `loss` does the same work on every batch of a `stage` and touches nothing but gradients."""
        return False

    @property
    def stage(self) -> str:
        """Of an objective as it is `at` a moment: which of its losses that is, where it has several."""
        return ""

    def begin(self, model: nn.Module) -> None:
        """Give the model what it has to hold before the first update, and so before it is copied or wrapped."""
        return

    def at(self, moment: TrainingTime) -> "Objective":
        """The objective at this point of training: where schedules live."""
        return self

    @final
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Step:
        return self.loss(model, self.prepare(model, x, y, seed=seed, index_B=index_B))


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
