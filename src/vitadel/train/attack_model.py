"""A copy of the model in bfloat16 for the attacks of training."""

import copy

import torch
from torch import Tensor, nn

from vitadel.core.cuda_graph import GraphedForward
from vitadel.models import AdaptedViT, Model, Taps, attention_scales, family_of
from vitadel.train.config import Compile


class AttackModel(nn.Module):
    """A copy of the model entirely in bfloat16, without the casts and float32 layers of autocast.

    The weights are copied before every update, which takes little time compared with an attack. Pixels are normalized
    in float32 first. The model itself is trained on the adversarial examples, so the only difference is a slightly
    different gradient in the attack. Tokens that the head never reads are not computed, unless attention scaling
    factors are searched on the features of the blocks.

    Args:
        model: The model that is trained.
        compile: How the copy is compiled.
        cuda_graphs: Whether its passes are captured on the GPU.
    """

    def __init__(self, model: Model, compile: Compile = Compile.OFF, *, cuda_graphs: bool = False) -> None:
        super().__init__()
        self._normalized = model.normalized  # the bound method, so that the model is not a submodule of this one
        self.net = copy.deepcopy(model.net).to(torch.bfloat16).eval().requires_grad_(False)
        self.taps = Taps(self, self.net)
        if not attention_scales.has_factors(model.net):
            family_of(self.net).prune_unused_tokens(self.net)
            family_of(self.net).use_fused_kernels(self.net)
        self._pairs = _pairs(model.net, self.net)
        compile.apply(self.net)
        self._cuda_graphs = cuda_graphs
        self._graphed: dict[str, GraphedForward] = {}

    @torch.no_grad()
    def copy_weights(self) -> None:
        """Copy the current weights of the model."""
        for theirs, own in self._pairs:
            torch._foreach_copy_(own, theirs)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            pixels = self._normalized(x).to(torch.bfloat16)
            return self._forward(pixels).float()

    def _forward(self, pixels: Tensor) -> Tensor:
        if not self._cuda_graphs:
            return self._logits(pixels)
        head = self.net.tuning.head if isinstance(self.net, AdaptedViT) else ""  # one graph for each of several heads
        return self._graphed.setdefault(head, GraphedForward(self._logits))(pixels)

    def _logits(self, pixels: Tensor) -> Tensor:
        return attention_scales.scaled_logits(self.net, self.taps, pixels)


def _pairs(model: nn.Module, copied: nn.Module) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Corresponding tensors of both: weights and running statistics.

    Tensors of different strides are in a separate group, because a single one would slow down the copying of all.
    """
    theirs, own = model.state_dict(keep_vars=True), copied.state_dict(keep_vars=True)
    names = [name for name, value in own.items() if value.is_floating_point()]
    same_layout = [name for name in names if own[name].stride() == theirs[name].stride()]
    groups = same_layout, [name for name in names if name not in same_layout]
    return [([theirs[n].detach() for n in group], [own[n].detach() for n in group]) for group in groups if group]
