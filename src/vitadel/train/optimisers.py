"""Optimisers, all timm's, with the exemptions from weight decay that timm knows for each architecture."""

from dataclasses import dataclass
from typing import Protocol

from timm.optim import create_optimizer_v2
from torch import nn
from torch.optim import Optimizer

from vitadel.errors import UsageError


class OptimiserChoice(Protocol):
    """A way to change weights, before it has seen any."""

    @property
    def lr(self) -> float:
        """The peak learning rate."""

    def build(self, net: nn.Module) -> Optimizer:
        """The optimiser of these weights; biases, norms and what the network names are not decayed."""


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101)."""

    lr: float
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        _check("AdamW", self.lr, self.weight_decay)

    def build(self, net: nn.Module) -> Optimizer:
        return create_optimizer_v2(net, "adamw", lr=self.lr, weight_decay=self.weight_decay, betas=self.betas)


@dataclass(frozen=True, slots=True)
class Lion:
    """The sign of an interpolated momentum (Chen et al. 2023, arXiv:2302.06675)."""

    lr: float
    weight_decay: float = 0.5
    betas: tuple[float, float] = (0.9, 0.99)

    def __post_init__(self) -> None:
        _check("Lion", self.lr, self.weight_decay)

    def build(self, net: nn.Module) -> Optimizer:
        return create_optimizer_v2(net, "lion", lr=self.lr, weight_decay=self.weight_decay, betas=self.betas)


@dataclass(frozen=True, slots=True)
class SGD:
    """Gradient descent with momentum."""

    lr: float
    weight_decay: float = 5e-4
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        _check("SGD", self.lr, self.weight_decay)

    def build(self, net: nn.Module) -> Optimizer:
        name = "sgd" if self.nesterov else "momentum"
        return create_optimizer_v2(net, name, lr=self.lr, weight_decay=self.weight_decay, momentum=self.momentum)


def _check(owner: str, lr: float, weight_decay: float) -> None:
    if not lr > 0:
        raise UsageError(f"{owner}.lr must be positive, got {lr:g}.")
    if weight_decay < 0:
        raise UsageError(f"{owner}.weight_decay must not be negative, got {weight_decay:g}.")
