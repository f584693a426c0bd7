"""Models that studies are tried on, and what a study might leave behind on them."""

from typing import TypeVar

import torch
from torch import nn

Net = TypeVar("Net", bound=nn.Module)


def stirred(model: Net, amount: float) -> Net:
    """The model with noise on every weight, so that all of them matter, layer scales too."""
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(amount * torch.randn(weight.shape, generator=rng))
    return model.eval()


def hooks(model: nn.Module) -> list[int]:
    """How many hooks each module has; those that fix BatchNorm are there before any study."""
    return [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
