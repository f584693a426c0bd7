"""Leaving a model exactly as it was found."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


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
