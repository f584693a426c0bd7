"""Parameters and arithmetic of a model."""

from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitadel.models.model import Model


@dataclass(frozen=True, slots=True)
class Cost:
    """Parameters, and multiply-accumulates (MACs) of one image's forward pass in matrix products and convolutions.

    The products inside attention are counted, also when a fused kernel computes them; most published figures omit
    them. One MAC is two FLOPs; the literature often calls it one.
    """

    parameters: int
    macs: int

    @property
    def gflops(self) -> float:
        """Billions of FLOPs, two per multiply-accumulate."""
        return 2 * self.macs / 1e9


def cost(model: Model, image_size: int) -> Cost:
    """The cost of a model for one image of this size, measured by a forward pass."""
    first = next(model.parameters())
    image = torch.zeros(1, 3, image_size, image_size, device=first.device, dtype=first.dtype)
    training = [module for module in model.modules() if module.training]
    model.eval()  # or BatchNorm would update its statistics
    try:
        # not under no_grad: the counter follows modules by the graph, and loses CaiT's class token without one;
        # attention in plain products, because torch before 2.12 does not count the CPU's fused kernel
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(image)
    finally:
        for module in training:
            module.training = True
    return Cost(sum(p.numel() for p in model.parameters()), counter.get_total_flops() // 2)
