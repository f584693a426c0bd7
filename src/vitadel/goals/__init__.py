"""The adversary's goals: an objective to maximize and when it has succeeded. The only place where a sign flips.

Shape letters: B images, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.losses import Loss, TargetLoss, cross_entropy, kl_divergence, targeted_dlr

Labels = Tensor | npt.NDArray[np.int64] | Sequence[int]


class Goal(Protocol):
    """An objective to maximize, and whether the adversary has succeeded; both functions of the logits."""

    def objective(self, z_BK: Tensor) -> Tensor:
        """[B] values that an attack maximizes."""

    def success(self, z_BK: Tensor) -> Tensor:
        """[B] whether each image is an adversarial example."""

    def at(self, index_B: Tensor) -> "Goal":
        """The same goal for some of the images."""

    @property
    def classes(self) -> Tensor:
        """[B] the highest class number that the goal refers to, to refuse models with too few outputs.

        For `Untargeted` this is the label; FAB and GAMA, which take no other goal, read the label here.
        """


@dataclass(frozen=True, slots=True)
class Untargeted:
    """Any class but the label.

    Args:
        label_B: The labels.
        loss: A function of logits and labels that increases as the label is predicted worse.

    Example:
        >>> result = PGD(steps=20)(model, x, Untargeted(y, vd.losses.margin), "linf:8/255")
    """

    label_B: Tensor
    loss: Loss = cross_entropy

    def objective(self, z_BK: Tensor) -> Tensor:
        return self.loss(z_BK, self.label_B)

    def success(self, z_BK: Tensor) -> Tensor:
        return z_BK.argmax(1) != self.label_B

    def at(self, index_B: Tensor) -> "Untargeted":
        return Untargeted(self.label_B[index_B], self.loss)

    @property
    def classes(self) -> Tensor:
        return self.label_B


@dataclass(frozen=True, slots=True)
class Targeted:
    """One chosen class per image.

    Args:
        target_B: The target classes.
        loss: As in `Untargeted`, with the target as the label; it is minimized.

    Example:
        >>> result = PGD()(model, x, Targeted(least_likely(model(x))), "linf:8/255")
    """

    target_B: Tensor
    loss: Loss = cross_entropy

    def objective(self, z_BK: Tensor) -> Tensor:
        return -self.loss(z_BK, self.target_B)

    def success(self, z_BK: Tensor) -> Tensor:
        return z_BK.argmax(1) == self.target_B

    def at(self, index_B: Tensor) -> "Targeted":
        return Targeted(self.target_B[index_B], self.loss)

    @property
    def classes(self) -> Tensor:
        return self.target_B


@dataclass(frozen=True, slots=True)
class TowardClass:
    """Any class but the label, with an objective that leads toward one other class, as in APGD-T and FAB-T."""

    label_B: Tensor
    target_B: Tensor
    loss: TargetLoss = targeted_dlr

    def objective(self, z_BK: Tensor) -> Tensor:
        return self.loss(z_BK, self.label_B, self.target_B)

    def success(self, z_BK: Tensor) -> Tensor:
        return z_BK.argmax(1) != self.label_B

    def at(self, index_B: Tensor) -> "TowardClass":
        return TowardClass(self.label_B[index_B], self.target_B[index_B], self.loss)

    @property
    def classes(self) -> Tensor:
        return self.label_B.maximum(self.target_B)


@dataclass(frozen=True, slots=True)
class Diverge:
    """A large KL divergence from reference logits, as in the inner maximization of TRADES; labels are not used."""

    reference_BK: Tensor

    def objective(self, z_BK: Tensor) -> Tensor:
        return kl_divergence(z_BK, self.reference_BK)

    def success(self, z_BK: Tensor) -> Tensor:
        return z_BK.argmax(1) != self.reference_BK.argmax(1)

    def at(self, index_B: Tensor) -> "Diverge":
        return Diverge(self.reference_BK[index_B])

    @property
    def classes(self) -> Tensor:
        return self.reference_BK.argmax(1)


def as_goal(y: Labels | Goal, loss: Loss = cross_entropy) -> Goal:
    """The goal itself, or for labels the untargeted goal with `loss` as the objective.

    Raises:
        UsageError: If `y` is neither.
    """
    if isinstance(y, Tensor | np.ndarray | Sequence) and not isinstance(y, str):
        return Untargeted(torch.as_tensor(y), loss)
    if not hasattr(y, "objective"):
        raise UsageError(
            f"an attack takes labels [B] or a goal such as Untargeted(labels), got {type(y).__name__}. "
            "Write torch.as_tensor(labels)."
        )
    return y


def require_untargeted(goal: Goal, attack: str) -> Untargeted:
    """The goal as an `Untargeted` one, which some attacks need.

    Args:
        goal: The goal.
        attack: The name of the attack in an error.

    Raises:
        UsageError: If the goal is not untargeted.
    """
    if not isinstance(goal, Untargeted):
        raise UsageError(
            f"{attack} needs an Untargeted goal, got {type(goal).__name__}. Write Untargeted(y), or leave target= out."
        )
    return goal


Target = Callable[[Tensor], Tensor]


def least_likely(z_BK: Tensor) -> Tensor:
    """[B] the class with the lowest logit: the hardest target."""
    return z_BK.argmin(1)


def runner_up(z_BK: Tensor) -> Tensor:
    """[B] the class with the second highest logit: the easiest target."""
    return z_BK.topk(2, dim=1).indices[:, 1]


def top_other_classes(z_BK: Tensor, label_B: Tensor, count: int) -> Tensor:
    """[B, count] the classes other than the label with the highest logits, in descending order."""
    return z_BK.scatter(1, label_B[:, None], float("-inf")).topk(count, dim=1).indices


TARGETS: dict[str, Target] = {"least-likely": least_likely, "runner-up": runner_up}

__all__ = [
    "TARGETS",
    "Diverge",
    "Goal",
    "Labels",
    "Target",
    "Targeted",
    "TowardClass",
    "Untargeted",
    "as_goal",
    "least_likely",
    "require_untargeted",
    "runner_up",
    "top_other_classes",
]
