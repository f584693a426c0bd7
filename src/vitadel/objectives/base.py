"""The interface of objectives, the time that their schedules depend on, and helpers for targets and logits.

Shape letters: B images, K classes.
"""

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, final

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitadel.core.numeric import Range

# label smoothing; at 1 nothing would be left of the label
Smoothing = Annotated[float, Range(ge=0, lt=1)]


class ScheduleUnit(enum.Enum):
    """How often a schedule changes its value."""

    STEP = "every update"
    EPOCH = "every epoch"


@dataclass(frozen=True, slots=True)
class TrainingTime:
    """When an update takes place.

    Args:
        epoch: Epochs completed after the update, a fraction.
        epochs: Total number of epochs.
        updates: Updates per epoch.
    """

    epoch: float
    epochs: float
    updates: int = 1

    @property
    def epoch_index(self) -> int:
        """The current epoch, counted from 0."""
        return math.ceil(self.epoch) - 1

    @property
    def update_in_epoch(self) -> int:
        """The update within the current epoch, counted from 0."""
        return round((self.epoch - self.epoch_index) * self.updates) - 1

    def warmup(self, share: float, unit: ScheduleUnit) -> float:
        """A factor from 0 to 1 over the first `share` of training: linear, or constant within epochs, first at 0."""
        until = share * self.epochs
        now = self.epoch if unit is ScheduleUnit.STEP else self.epoch_index
        return min(1.0, now / until) if until > 0 else 1.0


def _no_undo() -> None:
    return None


@dataclass(frozen=True, slots=True)
class LossOutput:
    """The loss of one batch.

    Args:
        loss: The scalar to minimize.
        logs: Scalars to log, by name.
        undo: Called after the backward pass: restores what `loss` changed on the model, such as weights that AWP
            perturbed.
        trains: False if the batch was not used to train the weights; weights, optimizer and averaged weights then do
            not change.

    Example:
        >>> output = Standard()(model, x, y, seed=0)
        >>> output.loss.backward()
        >>> output.undo()  # nothing to restore here; AWP restores the weights that it perturbed
        >>> output.trains
        True
    """

    loss: Tensor
    logs: Mapping[str, Tensor] = field(default_factory=dict)
    undo: Callable[[], None] = _no_undo
    trains: bool = True


@dataclass(frozen=True, slots=True)
class Examples:
    """The input of a loss: images, targets, and adversarial examples (the images themselves without an attack)."""

    x: Tensor
    y: Tensor
    x_adv: Tensor


class Objective(ABC):
    """What training minimizes, in two parts: `prepare` makes the examples, `loss` evaluates the model on them.

    They are separate so that a wrapper such as AWP can evaluate the loss of the same examples at other weights. A
    subclass is a frozen dataclass with `prepare`, `loss` and `loss_passes`; everything else has a default.

    Example:
        >>> output = Standard()(model, x, y, seed=0)
        >>> output.loss.backward()
    """

    __slots__ = ()

    @abstractmethod
    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        """Make the examples of one batch; does not change the model or its gradients.

        Args:
            model: Computes logits from pixels in [0, 1].
            x: [B, 3, H, W] images.
            y: [B] class numbers, or [B, K] soft targets.
            seed: Random numbers depend on it and on `index_B`, never on the batch.
            index_B: [B] the index of each image in its data set.
        """

    @abstractmethod
    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        """The loss on the examples, with the model in training mode."""

    @property
    @abstractmethod
    def loss_passes(self) -> float:
        """Cost of `loss` and its backward pass, in forward passes: a backward pass to the weights counts 2."""

    @property
    def passes(self) -> float:
        """Total cost per image, in forward passes."""
        return self.loss_passes

    @property
    def trains_subsets(self) -> bool:
        """Whether updates train different subsets of the weights, which distributed training has to know."""
        return False

    @property
    def uses_taps(self) -> bool:
        """Whether it reads or edits activations, which torch.compile, FSDP and gradient checkpointing do not allow."""
        return False

    @property
    def capturable(self) -> bool:
        """Whether `loss` can be captured in a CUDA graph.

        It must run the same operations for every batch of a `phase` and have no side effects other than gradients.
        """
        return False

    @property
    def phase(self) -> str:
        """The name of the loss that `at` has selected, for an objective with several."""
        return ""

    def prepare_model(self, model: nn.Module) -> None:
        """Check the model, and add the buffers that the objective needs, before training copies or wraps it."""
        return

    def at(self, time: TrainingTime) -> "Objective":
        """The objective for the update at this time, with all schedules applied."""
        return self

    @final
    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None
    ) -> LossOutput:
        """The loss of one batch: `prepare`, then `loss`."""
        return self.loss(model, self.prepare(model, x, y, seed=seed, index_B=index_B))


class WrappedObjective(Objective):
    """A wrapper of another objective, its field `inner`, to which it delegates what a subclass does not define."""

    __slots__ = ()

    inner: Objective

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        return self.inner.prepare(model, x, y, seed=seed, index_B=index_B)

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        return self.inner.loss(model, examples)

    def prepare_model(self, model: nn.Module) -> None:
        self.inner.prepare_model(model)

    @property
    def passes(self) -> float:
        return self.inner.passes

    @property
    def loss_passes(self) -> float:
        return self.inner.loss_passes

    @property
    def trains_subsets(self) -> bool:
        return self.inner.trains_subsets

    @property
    def uses_taps(self) -> bool:
        return self.inner.uses_taps


def soft_targets(y: Tensor, num_classes: int, smoothing: float) -> Tensor:
    """[B, K] target probabilities, with `smoothing` of each spread evenly over all classes."""
    hard = F.one_hot(y, num_classes).float() if y.ndim == 1 else y
    return hard * (1 - smoothing) + smoothing / num_classes


def hard_labels(y: Tensor) -> Tensor:
    """[B] class numbers: the most probable class of soft targets."""
    return y if y.ndim == 1 else y.argmax(1)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside DistributedDataParallel, whose hooks wait for weight gradients, which attacks do not make."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def batch_accuracy(z_BK: Tensor, y: Tensor) -> Tensor:
    """The accuracy of a batch; of soft targets, the most probable class counts."""
    return (z_BK.detach().argmax(1) == hard_labels(y)).float().mean()
