"""Vitadel's own network with a hidden gradient."""

from collections.abc import Sequence

from torch import nn

from vitadel.models.families.base import Block, Family, numbered
from vitadel.models.masked_gradient_net import MaskedGradientNet


class MaskedGradientFamily(Family):
    """Blocks whose first argument is the image's tokens, and whose second is what they add to."""

    name = "pointer"
    architectures = (MaskedGradientNet,)

    def blocks(self, net: nn.Module) -> Sequence[Block]:
        assert isinstance(net, MaskedGradientNet)
        return numbered("blocks", net.blocks, stream=1)
