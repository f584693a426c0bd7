"""A frozen ViT with adapters: its blocks are the frozen network's."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from vitadel.models.families.base import Geometry, Layer
from vitadel.models.families.vit import ViT
from vitadel.models.tora import Adapted, Adapter

_FROZEN = "backbone."


class TORAFamily(ViT):
    """`blocks.i.out` is the output of the frozen block i, before adapters and fusion."""

    name = "adapted vit"
    architectures = (Adapted,)
    timm_files = ()

    def blocks(self, net: nn.Module) -> Sequence[Layer]:
        assert isinstance(net, Adapted)
        return super().blocks(net.backbone)

    def compile_units(self, net: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(net, Adapted)
        if not net.fused:
            return [*super().compile_units(net), *(one for one in net.modules() if isinstance(one, Adapter))]
        *all_but, last = net.fused
        # the last fusion gets no gradient; compiled together with its adapters it would get zeros instead of None
        return [*super().compile_units(net), *all_but, *last.adapters.values(), last.fusion]

    def use_fused_kernels(self, net: nn.Module) -> None:
        assert isinstance(net, Adapted)
        super().use_fused_kernels(net.backbone)

    def patch_size(self, net: nn.Module) -> int | None:
        assert isinstance(net, Adapted)
        return super().patch_size(net.backbone)

    def grid(self, net: nn.Module, image_size: int) -> tuple[int, int] | None:
        assert isinstance(net, Adapted)
        return super().grid(net.backbone, image_size)

    def geometry(self, state: Mapping[str, Tensor], net: nn.Module) -> Geometry:
        assert isinstance(net, Adapted)
        return super().geometry(_frozen(state), net.backbone)

    def fit(self, state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
        assert isinstance(net, Adapted)
        fitted = super().fit(_frozen(state), net.backbone)
        rest = {key: value for key, value in state.items() if not key.startswith(_FROZEN)}
        return {**rest, **{f"{_FROZEN}{key}": value for key, value in fitted.items()}}


def _frozen(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(_FROZEN): value for key, value in state.items() if key.startswith(_FROZEN)}
