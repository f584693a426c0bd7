"""A copy of the model in bfloat16 for the attacks of training."""

import copy

import torch
from torch import Tensor, nn

from vitadel.core.cuda_graph import GraphedForward
from vitadel.models import AdaptedViT, Model, Taps, attention_scales, family_of
from vitadel.train.config import Compile


class AttackModel(nn.Module):
    """The model in plain bfloat16: no casts and no float32 between its layers, unlike under autocast.

    The weights are copied before every update, which costs next to nothing compared with an attack. Pixels are
    normalized in float32 first. Adversarial examples are trained on in the model itself, so all it costs is a slightly
    different gradient. Tokens that the head never reads are left out, unless factors for attention are searched on the
    features of the blocks.

    Args:
        model: The model that is trained.
        compile: How the copy is compiled.
        cuda_graphs: Whether its passes are captured on the GPU.
    """

    def __init__(self, model: Model, compile: Compile = Compile.OFF, *, cuda_graphs: bool = False) -> None:
        super().__init__()
        self._normalized = model.normalized  # no module of this one, whose parameters are the copy's alone
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
        """Take over the model's weights as they are now."""
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
    """The tensors of both, side by side: weights, and running statistics where there are any.

    Those with other strides are apart: one of them would slow down the copying of all.
    """
    theirs, own = model.state_dict(keep_vars=True), copied.state_dict(keep_vars=True)
    names = [name for name, value in own.items() if value.is_floating_point()]
    same_layout = [name for name in names if own[name].stride() == theirs[name].stride()]
    groups = same_layout, [name for name in names if name not in same_layout]
    return [([theirs[n].detach() for n in group], [own[n].detach() for n in group]) for group in groups if group]
