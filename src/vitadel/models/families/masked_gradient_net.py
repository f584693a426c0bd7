"""Vitadel's own network that masks its gradient."""

from collections.abc import Sequence

from torch import nn

from vitadel.models.families.base import Family, Layer, numbered
from vitadel.models.masked_gradient_net import MaskedGradientNet


class MaskedGradientFamily(Family):
    """A block takes the image's tokens and the residual stream, in this order."""

    name = "pointer"
    architectures = (MaskedGradientNet,)

    def blocks(self, net: nn.Module) -> Sequence[Layer]:
        assert isinstance(net, MaskedGradientNet)
        return numbered("blocks", net.blocks, stream=1)
