"""Leaving a model exactly as it was found."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from vitadel.errors import UsageError


def refuse_meta(model: object) -> None:
    """Refuse a model with weights on the meta device: they have shapes and no values, so it answers nothing."""
    if isinstance(model, nn.Module) and any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise UsageError(
            "the model has weights on the meta device, which have no values. Make it outside torch.device('meta')."
        )


@contextmanager
def frozen(model: object) -> Iterator[None]:
    """Evaluation mode and no weight gradients inside; every module's mode and every parameter's flag restored after.

    Modes are restored one by one: a user may keep single layers, such as BatchNorm, in evaluation mode.
    """
    if not isinstance(model, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        model.eval()
        for parameter in trainable:
            parameter.requires_grad_(False)
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter in trainable:
            parameter.requires_grad_(True)


@contextmanager
def undisturbed(model: object, seed: int, device: torch.device) -> Iterator[None]:
    """Inside, the model is frozen and draws from `seed` if it draws; outside, nothing has happened."""
    refuse_meta(model)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.inference_mode(False), frozen(model):
        # `torch.manual_seed` would reach every device there is, and fork_rng restores only these
        torch.default_generator.manual_seed(seed)
        for one in devices:
            torch.cuda.default_generators[one.index or 0].manual_seed(seed)
        yield
