"""The contract of objectives: what one takes, what it returns, and what its loss needs of targets and logits.

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

# label smoothing, of which something has to be left for the label
Smoothing = Annotated[float, Range(ge=0, lt=1)]


class ScheduleUnit(enum.Enum):
    """How often a schedule changes its value."""

    STEP = "every update"
    EPOCH = "every epoch"


@dataclass(frozen=True, slots=True)
class TrainingTime:
    """When an update takes place.

    Args:
        epoch: Epochs done once the update is made, a fraction.
        epochs: Epochs in all.
        updates: Updates per epoch.
    """

    epoch: float
    epochs: float
    updates: int = 1

    @property
    def epoch_index(self) -> int:
        """The running epoch, counted from 0."""
        return math.ceil(self.epoch) - 1

    @property
    def update_in_epoch(self) -> int:
        """The update within the running epoch, counted from 0."""
        return round((self.epoch - self.epoch_index) * self.updates) - 1

    def warmup(self, share: float, unit: ScheduleUnit) -> float:
        """A factor from 0 to 1 over the first `share` of training: linear, or constant in each epoch from 0 on."""
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
        logs: Scalars worth logging, by name.
        undo: Called after the backward pass: restores what `loss` changed on the model, such as weights that AWP
            perturbed.
        trains: False if the batch was used for something else than the weights; weights, optimizer and averaged
            weights then stay as they are.

    Example:
        >>> output = Standard()(model, x, y, seed=0)
        >>> output.loss.backward()
        >>> output.undo()  # nothing to restore here; AWP takes its perturbation of the weights back
        >>> output.trains
        True
    """

    loss: Tensor
    logs: Mapping[str, Tensor] = field(default_factory=dict)
    undo: Callable[[], None] = _no_undo
    trains: bool = True


@dataclass(frozen=True, slots=True)
class Examples:
    """A batch as the loss takes it: images, targets, and adversarial examples (the images where there is no attack)."""

    x: Tensor
    y: Tensor
    x_adv: Tensor


class Objective(ABC):
    """What training minimizes, in two parts: `prepare` makes the examples, `loss` evaluates the model on them.

    They are separate so that a wrapper such as AWP can evaluate the loss of the same examples at other weights. A
    subclass is a frozen dataclass with `prepare`, `loss` and `loss_passes`; all else has a default.

    Example:
        >>> output = Standard()(model, x, y, seed=0)
        >>> output.loss.backward()
    """

    __slots__ = ()

    @abstractmethod
    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        """Make the examples of one batch; leaves no gradients and changes nothing on the model.

        Args:
            model: Computes logits from pixels in [0, 1].
            x: [B, 3, H, W] images.
            y: [B] class numbers, or [B, K] soft targets.
            seed: Random numbers depend on it and on `index_B`, never on the batch.
            index_B: The number of each image.
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
        """Cost of an image in all, in forward passes."""
        return self.loss_passes

    @property
    def trains_subsets(self) -> bool:
        """Whether an update may leave out weights that others train, which distributed training has to know."""
        return False

    @property
    def uses_taps(self) -> bool:
        """Whether it looks into the model, which compiled code, cut weights and recomputed activations prevent."""
        return False

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph may hold `loss`: it does the same for every batch of a `phase`, and gradients apart
        changes nothing.
        """
        return False

    @property
    def phase(self) -> str:
        """Which of its losses an objective is after `at`, if it has several."""
        return ""

    def prepare_model(self, model: nn.Module) -> None:
        """Add to the model what the objective needs on it, before training copies or wraps the model."""
        return

    def at(self, time: TrainingTime) -> "Objective":
        """The objective for the update at this time: where schedules apply."""
        return self

    @final
    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None
    ) -> LossOutput:
        """The loss of one batch: `prepare`, then `loss`."""
        return self.loss(model, self.prepare(model, x, y, seed=seed, index_B=index_B))


class WrappedObjective(Objective):
    """An objective around another one, its field `inner`; whatever a subclass does not define is done by that."""

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
    """The module inside DistributedDataParallel, whose hooks wait for weight gradients that an attack never makes."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def batch_accuracy(z_BK: Tensor, y: Tensor) -> Tensor:
    """The share of images whose class has the largest logit."""
    return (z_BK.detach().argmax(1) == hard_labels(y)).float().mean()
