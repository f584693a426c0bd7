"""Factors for the scores of every attention that a network keeps: part of the model, as its weights are.

The factors of `attention_scales` multiply the products of queries and keys in every forward pass. They are a buffer of
the network, so state dicts, fingerprints, copies and files hold them. The other two belong to training alone:
`attack_scales` are used where attacks are crafted and never by the model, and `scaling_record` says in which epoch the
factors were found and what they reached. Files of models leave these two out; training states have them.

Shape letters: M attentions.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.models.families import family_of
from vitadel.models.taps import Taps, is_compiled

ATTENTION, ATTACK, RECORD = "attention_scales", "attack_scales", "scaling_record"
_OF_TRAINING = (ATTACK, RECORD)


def hold_factors(net: nn.Module, name: str, factors: float | Tensor | Sequence[float]) -> None:
    """Keep factors under one of the names above: one for all attentions, or one for each."""
    count = len(family_of(net).blocks(net))
    if count == 0:
        raise UsageError(
            f"{type(net).__name__} has no attention Vitadel knows, so there is nothing to scale. "
            "Take a ViT, DeiT, CaiT, XCiT, Swin or LeViT."
        )
    each_M = torch.as_tensor(factors, dtype=torch.float32).detach()
    each_M = each_M.expand(count) if each_M.ndim == 0 else each_M
    if each_M.shape != (count,):
        raise UsageError(f"this network has {count} attentions, got {each_M.numel()} factors. Give one, or one each.")
    if not bool((each_M.isfinite() & (each_M >= 0)).all()):
        raise UsageError(f"factors of attention must be numbers from 0 up, got {each_M.tolist()}.")
    hold(net, name, each_M)


def held(net: nn.Module, name: str) -> Tensor | None:
    """What the network keeps under this name, if anything."""
    return getattr(net, name, None)


@torch.no_grad()
def hold(net: nn.Module, name: str, value: Tensor) -> None:
    """A buffer of this name; written in place where there is one, because copies and optimizers look at the tensor."""
    if (old := held(net, name)) is not None:
        old.copy_(value)
    else:
        net.register_buffer(name, value.clone().to(next(net.parameters()).device))


def has_factors(net: nn.Module) -> bool:
    """Whether training or answering goes through factors of attention."""
    return any(held(net, name) is not None for name in (ATTENTION, ATTACK))


@torch.no_grad()
def copy(source: nn.Module, target: nn.Module) -> None:
    """The same factors for a copy of a network: they change by jumps, and a mean of two of them is neither."""
    for name in (ATTENTION, *_OF_TRAINING):
        if (value := held(source, name)) is not None:
            getattr(target, name).copy_(value)


def without_training(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict without what only training needs."""
    return {name: value for name, value in tensors.items() if name not in _OF_TRAINING}


def forget_training(net: nn.Module) -> None:
    """Take off the network what only training needs."""
    for name in _OF_TRAINING:
        if hasattr(net, name):
            delattr(net, name)


def answer(net: nn.Module, taps: Taps, pixels: Tensor) -> Tensor:
    """The network's logits, with its factors if it has any."""
    factors_M = held(net, ATTENTION)
    if factors_M is None:
        return net(pixels)
    return _scaled(net, taps, pixels, factors_M)


# a compiler that traced this could fix or lose what hooks and modes do; run as it is, the factors are always applied
@torch.compiler.disable
def _scaled(net: nn.Module, taps: Taps, pixels: Tensor, factors_M: Tensor) -> Tensor:
    if is_compiled(net):
        raise UsageError(
            "the network has factors for its attention, and compiled code does not see them. Do not compile it "
            "(in training: plan.compile=off)."
        )
    with taps.scale(factors_M):
        return net(pixels)
