"""Isolation of a model and of random generators: everything is restored after an attack."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from vitadel.core.buffers import SavedBuffers
from vitadel.core.device import check_not_meta
from vitadel.core.rng import seeded_generators


@contextmanager
def eval_without_weight_gradients(model: object) -> Iterator[None]:
    """Context manager: evaluation mode and no weight gradients inside; modes, flags and buffers restored after.

    Modes are restored per module, since single layers such as BatchNorm may be in evaluation mode. Buffers that a
    forward pass changes in evaluation mode are restored too, except those of more than 4 MB and those that were
    replaced by others of another shape.
    """
    if not isinstance(model, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    buffers = SavedBuffers.of(model)
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
        buffers.restore()


@contextmanager
def isolated(model: object, seed: int, device: torch.device) -> Iterator[None]:
    """Context manager: inside, the model is frozen and random generators start from `seed`; both are restored after.

    The generators are torch's on the CPU and on `device`, Python's `random` and numpy's global one.
    """
    if isinstance(model, nn.Module):
        check_not_meta("weights of the model", *model.parameters(), *model.buffers())
    with seeded_generators(seed, device), torch.inference_mode(False), eval_without_weight_gradients(model):
        yield
