"""Optimizers, all timm's, and which weights they decay."""

import enum
import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

from torch import nn
from torch.optim import Optimizer

from vitadel.core.errors import UsageError
from vitadel.core.numeric import NotNegative, Positive, Range, check_ranges

# what a running mean keeps of itself
Decaying = Annotated[float, Range(ge=0, lt=1)]


class Decay(enum.Enum):
    """Which weights are decayed."""

    # timm's rule; the temperatures of XCiT's attention have three and are decayed, as in the thesis's runs
    DIMENSIONS = "those with two dimensions or more, unless the network names them"
    # the rule of the ViT-beats-WideResNet code
    KERNELS = "matrices and convolutions alone: no norms, biases, tokens, positions or layer scales"
    ALL = "all of them"


class OptimizerChoice(Protocol):
    """A way to change weights, before it has seen any."""

    @property
    def lr(self) -> float:
        """The peak learning rate."""

    def build(self, net: nn.Module) -> Optimizer:
        """The optimizer of these weights; biases, norms and what the network names are not decayed."""


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101)."""

    lr: Positive
    weight_decay: NotNegative = 0.05
    betas: tuple[Decaying, Decaying] = (0.9, 0.999)
    decay: Decay = Decay.DIMENSIONS
    exempt: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)

    def build(self, net: nn.Module) -> Optimizer:
        return _built("adamw", net, self, betas=self.betas)


@dataclass(frozen=True, slots=True)
class Lion:
    """The sign of an interpolated momentum (Chen et al. 2023, arXiv:2302.06675)."""

    lr: Positive
    weight_decay: NotNegative = 0.5
    betas: tuple[Decaying, Decaying] = (0.9, 0.99)
    decay: Decay = Decay.DIMENSIONS
    exempt: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)

    def build(self, net: nn.Module) -> Optimizer:
        return _built("lion", net, self, betas=self.betas)


@dataclass(frozen=True, slots=True)
class SGD:
    """Gradient descent with momentum."""

    lr: Positive
    weight_decay: NotNegative = 5e-4
    momentum: Decaying = 0.9
    nesterov: bool = True
    decay: Decay = Decay.DIMENSIONS
    exempt: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.nesterov and not self.momentum:
            raise UsageError("SGD.nesterov looks ahead along the momentum, got momentum=0. Write nesterov=false.")

    def build(self, net: nn.Module) -> Optimizer:
        return _built("sgd" if self.nesterov else "momentum", net, self, momentum=self.momentum)


def _built(name: str, net: nn.Module, choice: AdamW | Lion | SGD, **values: object) -> Optimizer:
    """timm's optimizer of this name, with the weights it decays in one group and the others in a second."""

    def groups(model: nn.Module) -> list[dict[str, object]]:
        trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
        decayed = _decayed(model, trained, choice.decay, choice.exempt)
        spared = [one for name, one in trained.items() if name not in decayed]
        kept = [one for name, one in trained.items() if name in decayed]
        both = [{"params": spared, "weight_decay": 0.0}, {"params": kept, "weight_decay": choice.weight_decay}]
        return [group for group in both if group["params"]]

    from timm.optim import create_optimizer_v2

    if name == "adamw" and all(weight.is_cuda for weight in net.parameters()):
        values["fused"] = True  # one kernel for many weights
    return create_optimizer_v2(
        net, name, lr=choice.lr, weight_decay=choice.weight_decay, param_group_fn=groups, **values
    )


def _decayed(net: nn.Module, weights: Mapping[str, nn.Parameter], decay: Decay, exempt: Iterable[str]) -> set[str]:
    """The names of the weights to decay; `exempt` takes patterns such as *.temperature away from them."""
    ask = getattr(net, "no_weight_decay", None)
    named = set(ask()) if callable(ask) else set()
    rules = {
        Decay.DIMENSIONS: lambda name, one: one.ndim > 1 and not name.endswith("bias") and name not in named,
        Decay.KERNELS: lambda name, one: one.ndim > 1 and name.endswith("weight"),
        Decay.ALL: lambda name, one: True,
    }
    chosen = {name for name, one in weights.items() if rules[decay](name, one)}
    return {name for name in chosen if not any(fnmatch.fnmatch(name, pattern) for pattern in exempt)}
