"""What an adversary wants. The only room where a sign flips.

Shape letters: B images, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from vitadel.losses import Loss, TargetLoss, cross_entropy, kl_divergence, targeted_dlr


class Goal(Protocol):
    """A number to maximize, and the moment at which it is enough."""

    def objective(self, z_BK: Tensor) -> Tensor:
        """[B] values; an attack makes them as large as it can."""

    def success(self, z_BK: Tensor) -> Tensor:
        """[B] truth values: does the adversary have what it wants?"""

    def at(self, rows: Tensor) -> "Goal":
        """The same goal for the images in `rows` alone."""

    @property
    def classes(self) -> Tensor:
        """The class numbers the goal speaks of, so that a model with too few outputs is refused."""


@dataclass(frozen=True, slots=True)
class Untargeted:
    """Any class but the label."""

    label_B: Tensor
    loss: Loss = cross_entropy

    def objective(self, z_BK: Tensor) -> Tensor:
        return self.loss(z_BK, self.label_B)

    def success(self, z_BK: Tensor) -> Tensor:
        return z_BK.argmax(1) != self.label_B

    def at(self, rows: Tensor) -> "Untargeted":
        return Untargeted(self.label_B[rows], self.loss)

    @property
    def classes(self) -> Tensor:
        return self.label_B


@dataclass(frozen=True, slots=True)
class Targeted:
    """One chosen class."""

    target_B: Tensor
    loss: Loss = cross_entropy

    def objective(self, z_BK: Tensor) -> Tensor:
        return -self.loss(z_BK, self.target_B)

    def success(self, z_BK: Tensor) -> Tensor:
        return z_BK.argmax(1) == self.target_B

    def at(self, rows: Tensor) -> "Targeted":
        return Targeted(self.target_B[rows], self.loss)

    @property
    def classes(self) -> Tensor:
        return self.target_B


@dataclass(frozen=True, slots=True)
class Toward:
    """Any class but the label, sought in the direction of one other class."""

    label_B: Tensor
    target_B: Tensor
    loss: TargetLoss = targeted_dlr

    def objective(self, z_BK: Tensor) -> Tensor:
        return self.loss(z_BK, self.label_B, self.target_B)

    def success(self, z_BK: Tensor) -> Tensor:
        return z_BK.argmax(1) != self.label_B

    def at(self, rows: Tensor) -> "Toward":
        return Toward(self.label_B[rows], self.target_B[rows], self.loss)

    @property
    def classes(self) -> Tensor:
        return self.label_B.maximum(self.target_B)


@dataclass(frozen=True, slots=True)
class Diverge:
    """An answer far from the one the model gave on other images, labels aside (the inner goal of TRADES)."""

    reference_BK: Tensor

    def objective(self, z_BK: Tensor) -> Tensor:
        return kl_divergence(z_BK, self.reference_BK)

    def success(self, z_BK: Tensor) -> Tensor:
        return z_BK.argmax(1) != self.reference_BK.argmax(1)

    def at(self, rows: Tensor) -> "Diverge":
        return Diverge(self.reference_BK[rows])

    @property
    def classes(self) -> Tensor:
        return self.reference_BK.argmax(1)


Target = Callable[[Tensor], Tensor]


def least_likely(z_BK: Tensor) -> Tensor:
    """The class the model believes in least: the hardest target."""
    return z_BK.argmin(1)


def runner_up(z_BK: Tensor) -> Tensor:
    """The class that comes second: the easiest target."""
    return z_BK.topk(2, dim=1).indices[:, 1]


def top_other_classes(z_BK: Tensor, label_B: Tensor, count: int) -> Tensor:
    """[B, count] classes other than the label, the one the model believes in most first."""
    return z_BK.scatter(1, label_B[:, None], float("-inf")).topk(count, dim=1).indices


TARGETS: dict[str, Target] = {"least-likely": least_likely, "runner-up": runner_up}

__all__ = [
    "TARGETS",
    "Diverge",
    "Goal",
    "Target",
    "Targeted",
    "Toward",
    "Untargeted",
    "least_likely",
    "runner_up",
    "top_other_classes",
]
