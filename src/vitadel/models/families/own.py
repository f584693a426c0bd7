"""Vitadel's own networks with attention: a frozen ViT with adapters, and the network with masked gradients."""

from collections.abc import Mapping, Sequence

from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitadel.models.families.base import Family, Geometry, Layer, attention_blocks
from vitadel.models.families.vit import ViT
from vitadel.models.masked_gradient_net import MaskedGradientNet
from vitadel.models.tora import AdaptedViT, Adapter

_FROZEN = "backbone."


class TORAFamily(ViT):
    """A frozen ViT with adapters. `blocks.i.out` is the output of its block i, before adapters and fusion."""

    name = "adapted vit"
    architectures = (AdaptedViT,)
    timm_files = ()

    def blocks(self, net: nn.Module) -> Sequence[Layer]:
        return super().blocks(_backbone(net))

    def compile_units(self, net: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(net, AdaptedViT)
        if not net.fused:
            return [*super().compile_units(net), *(one for one in net.modules() if isinstance(one, Adapter))]
        *all_but, last = net.fused
        # the last fusion gets no gradient; compiled together with its adapters it would get zeros instead of None
        return [*super().compile_units(net), *all_but, *last.adapters.values(), last.fusion]

    def use_fused_kernels(self, net: nn.Module) -> None:
        super().use_fused_kernels(_backbone(net))

    def patch_size(self, net: nn.Module) -> int | None:
        return super().patch_size(_backbone(net))

    def grid(self, net: nn.Module, image_size: int) -> tuple[int, int] | None:
        return super().grid(_backbone(net), image_size)

    def geometry(self, state: Mapping[str, Tensor], net: nn.Module) -> Geometry:
        return super().geometry(_frozen(state), _backbone(net))

    def convert_weights(self, state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
        fitted = super().convert_weights(_frozen(state), _backbone(net))
        rest = {key: value for key, value in state.items() if not key.startswith(_FROZEN)}
        return {**rest, **{f"{_FROZEN}{key}": value for key, value in fitted.items()}}


def _backbone(net: nn.Module) -> VisionTransformer:
    return net.backbone


def _frozen(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(_FROZEN): value for key, value in state.items() if key.startswith(_FROZEN)}


class MaskedGradientFamily(Family):
    """A block takes the image's tokens and the residual stream, in this order."""

    name = "masked_gradient_net"
    architectures = (MaskedGradientNet,)

    def blocks(self, net: nn.Module) -> Sequence[Layer]:
        assert isinstance(net, MaskedGradientNet)
        return attention_blocks("blocks", net.blocks, residual_argument=1)
