"""Attention scaling factors stored as buffers of the network.

The factors of `attention_scales` multiply the products of queries and keys in every forward pass, and `logits_scale`,
if there is one, the logits. As buffers they are in state dicts, fingerprints, copies and files.

Further buffers exist in training only: `attack_scales` and `attack_logits_scale` are used by attacks and not by the
model itself, and `scaling_record` has the epoch of the last search and the objective it reached. Files of models omit
these, checkpoints of a training contain them.

Shape letters: M attention layers.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from vitadel.core.device import is_compiled
from vitadel.core.errors import UsageError
from vitadel.models.families import family_of
from vitadel.models.taps import Taps

ATTENTION, ATTACK, SEARCH_RECORD = "attention_scales", "attack_scales", "scaling_record"
# the buffer with the factor of the logits, by the buffer with the factors of attention
LOGITS = {ATTENTION: "logits_scale", ATTACK: "attack_logits_scale"}
_OF_TRAINING = (ATTACK, LOGITS[ATTACK], SEARCH_RECORD)
_OF_MODEL = (ATTENTION, LOGITS[ATTENTION])


def set_factors(net: nn.Module, name: str, factors: float | Tensor | Sequence[float]) -> None:
    """Set the buffer `name` to these factors: one for all attention layers, or one for each."""
    count = len(family_of(net).blocks(net))
    if count == 0:
        raise UsageError(
            f"{type(net).__name__} has no attention Vitadel supports, so there is nothing to scale. "
            "Take a ViT, DeiT, CaiT, XCiT, Swin or LeViT."
        )
    each_M = torch.as_tensor(factors, dtype=torch.float32).detach()
    each_M = each_M.expand(count) if each_M.ndim == 0 else each_M
    if each_M.shape != (count,):
        raise UsageError(
            f"this network has {count} attention layers, got {each_M.numel()} factors. Give one, or one each."
        )
    if not bool((each_M.isfinite() & (each_M >= 0)).all()):
        raise UsageError(
            f"attention scaling factors must be finite and not negative, got {each_M.tolist()}. Write 1 for no scaling."
        )
    set_buffer(net, name, each_M)


def set_logits_factor(net: nn.Module, name: str, factor: float | Tensor) -> None:
    """Set the buffer `name` to the factor of the logits."""
    value = torch.as_tensor(factor, dtype=torch.float32).detach()
    if value.ndim or not bool(value.isfinite() and value > 0):
        raise UsageError(
            f"the factor of the logits must be a positive number, got {value.tolist()}. Write 1 for no scaling."
        )
    set_buffer(net, name, value)


def buffer(net: nn.Module, name: str) -> Tensor | None:
    """The network's buffer of this name, if it has one."""
    return getattr(net, name, None)


@torch.no_grad()
def set_buffer(net: nn.Module, name: str, value: Tensor) -> None:
    """Set a buffer of this name; in place if it exists, because copies and optimizers refer to the tensor."""
    if (old := buffer(net, name)) is not None:
        old.copy_(value)
    else:
        net.register_buffer(name, value.clone().to(next(net.parameters()).device))


def has_factors(net: nn.Module) -> bool:
    """Whether the model or its training uses attention scaling factors."""
    return any(buffer(net, name) is not None for name in (ATTENTION, ATTACK))


@torch.no_grad()
def copy_factors(source: nn.Module, target: nn.Module) -> None:
    """Copy the factors to the averaged weights: they change abruptly and are not averaged."""
    for name in (*_OF_MODEL, *_OF_TRAINING):
        if (value := buffer(source, name)) is not None:
            getattr(target, name).copy_(value)


def without_training(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict without the buffers that only training needs."""
    return {name: value for name, value in tensors.items() if name not in _OF_TRAINING}


def taken_from(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Take a model's factors out of a state dict, for `restore`."""
    return {name: state.pop(name) for name in _OF_MODEL if name in state}


def restore(net: nn.Module, factors: Mapping[str, Tensor]) -> None:
    """Set the factors that were taken from a state dict, which may come from any file.

    Raises:
        UsageError: If they do not fit the network, or are not factors.
    """
    if ATTENTION in factors:
        set_factors(net, ATTENTION, factors[ATTENTION])
    if LOGITS[ATTENTION] in factors:
        set_logits_factor(net, LOGITS[ATTENTION], factors[LOGITS[ATTENTION]])


def drop_training_buffers(net: nn.Module) -> None:
    """Remove the buffers that only training needs."""
    for name in _OF_TRAINING:
        if hasattr(net, name):
            delattr(net, name)


def scaled_logits(net: nn.Module, taps: Taps, pixels: Tensor) -> Tensor:
    """The network's logits on normalized images, with its factors applied if it has any."""
    factors_M, factor = buffer(net, ATTENTION), buffer(net, LOGITS[ATTENTION])
    z_BK = net(pixels) if factors_M is None else _scaled(net, taps, pixels, factors_M)
    return z_BK if factor is None else z_BK * factor


# not traced by torch.compile, which could lose hooks and modes, and with them the factors. torch.compiler.disable does
# the same, but the decorator imports the compiler, which takes a second
@_disable_dynamo
def _scaled(net: nn.Module, taps: Taps, pixels: Tensor, factors_M: Tensor) -> Tensor:
    if is_compiled(net):
        raise UsageError(
            "the network has attention scaling factors, which compiled code does not apply. Do not compile it "
            "(in training: plan.compile=off)."
        )
    with taps.scale(factors_M):
        return net(pixels)
