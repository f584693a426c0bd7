"""Optimizers of timm, and which weights they decay."""

import enum
import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

from torch import nn
from torch.optim import Optimizer

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range, check_ranges

# the decay of a running mean
Decaying = Annotated[float, Range(ge=0, lt=1)]
# far beyond any use; scaled, divided and multiplied by each other these still fit into a float32
Rate = Annotated[float, Range(ge=0, top=1e10)]
PositiveRate = Annotated[float, Range(gt=0, top=1e10)]


class Decay(enum.Enum):
    """The weights that are decayed."""

    # timm's rule; the temperatures of XCiT's attention have three and are decayed, as in the runs of Debenedetti 2022
    DIMENSIONS = "those with two dimensions or more, unless the network names them"
    # the rule of the code of Wu et al. 2025
    KERNELS = "matrices and convolutions alone: no norms, biases, tokens, positions or layer scales"
    ALL = "all of them"


class OptimizerConfig(Protocol):
    """The settings of an optimizer."""

    @property
    def lr(self) -> float:
        """The peak learning rate."""

    def build(self, net: nn.Module) -> Optimizer:
        """The optimizer for the weights of a network that have gradients."""


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101).

    Args:
        lr: The peak learning rate.
        weight_decay: The weight decay.
        betas: The decays of the running means of gradient and squared gradient.
        decay: Which weights are decayed.
        exempt: Patterns of the names of weights that are not decayed, such as `*.temperature`.
    """

    lr: PositiveRate
    weight_decay: Rate = 0.05
    betas: tuple[Decaying, Decaying] = (0.9, 0.999)
    decay: Decay = Decay.DIMENSIONS
    exempt: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)

    def build(self, net: nn.Module) -> Optimizer:
        return _create("adamw", net, self, betas=self.betas)


@dataclass(frozen=True, slots=True)
class Lion:
    """The sign of an interpolated momentum (Chen et al. 2023, arXiv:2302.06675); settings as in `AdamW`.

    Args:
        lr: The peak learning rate.
        weight_decay: The weight decay.
        betas: The weights of the momentum in a step, and in its running mean.
        decay: Which weights are decayed.
        exempt: Patterns of the names of weights that are not decayed, such as `*.temperature`.
    """

    lr: PositiveRate
    weight_decay: Rate = 0.5
    betas: tuple[Decaying, Decaying] = (0.9, 0.99)
    decay: Decay = Decay.DIMENSIONS
    exempt: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)

    def build(self, net: nn.Module) -> Optimizer:
        return _create("lion", net, self, betas=self.betas)


@dataclass(frozen=True, slots=True)
class SGD:
    """Stochastic gradient descent with momentum; `decay` and `exempt` as in `AdamW`.

    Args:
        lr: The peak learning rate.
        weight_decay: The weight decay.
        momentum: The decay of the running sum of gradients.
        nesterov: Whether the gradient is added to the momentum before the step (Nesterov).
        decay: Which weights are decayed.
        exempt: Patterns of the names of weights that are not decayed, such as `*.temperature`.
    """

    lr: PositiveRate
    weight_decay: Rate = 5e-4
    momentum: Decaying = 0.9
    nesterov: bool = True
    decay: Decay = Decay.DIMENSIONS
    exempt: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.nesterov and not self.momentum:
            raise UsageError("SGD.nesterov needs momentum > 0, got momentum=0. Write nesterov=false.")

    def build(self, net: nn.Module) -> Optimizer:
        return _create("sgd" if self.nesterov else "momentum", net, self, momentum=self.momentum)


def _create(name: str, net: nn.Module, choice: AdamW | Lion | SGD, **values: object) -> Optimizer:
    """timm's optimizer of this name, with one parameter group without and one with weight decay."""

    def groups(model: nn.Module) -> list[dict[str, object]]:
        trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        decayed = _decayed(model, trained, choice.decay, choice.exempt)
        no_decay = [weight for name, weight in trained.items() if name not in decayed]
        decay = [weight for name, weight in trained.items() if name in decayed]
        both = [{"params": no_decay, "weight_decay": 0.0}, {"params": decay, "weight_decay": choice.weight_decay}]
        return [group for group in both if group["params"]]

    from timm.optim import create_optimizer_v2

    if name == "adamw" and all(weight.is_cuda for weight in net.parameters()):
        values["fused"] = True  # one kernel for many weights
    return create_optimizer_v2(
        net, name, lr=choice.lr, weight_decay=choice.weight_decay, param_group_fn=groups, **values
    )


def _decayed(net: nn.Module, weights: Mapping[str, nn.Parameter], decay: Decay, exempt: Iterable[str]) -> set[str]:
    """The names of the weights to decay."""
    no_weight_decay = getattr(net, "no_weight_decay", None)
    named = set(no_weight_decay()) if callable(no_weight_decay) else set()
    rules = {
        Decay.DIMENSIONS: lambda name, weight: weight.ndim > 1 and not name.endswith("bias") and name not in named,
        Decay.KERNELS: lambda name, weight: weight.ndim > 1 and name.endswith("weight"),
        Decay.ALL: lambda name, weight: True,
    }
    decayed = {name for name, weight in weights.items() if rules[decay](name, weight)}
    return {name for name in decayed if not any(fnmatch.fnmatch(name, pattern) for pattern in exempt)}
