"""Swin: attention inside shifted windows, in stages of falling resolution."""

from collections.abc import Mapping, Sequence

from timm.layers import resize_rel_pos_bias_table
from timm.models.swin_transformer import SwinTransformer, WindowAttention
from torch import Tensor, nn

from vitadel.models.families.base import Block, Patched, numbered
from vitadel.models.families.vit import KERNEL, fit_kernel


class Swin(Patched):
    """timm's Swin (version 1). Blocks are numbered through all stages; attention is per window, batch first."""

    name = "swin"
    architectures = (SwinTransformer,)
    timm_files = ("swin_transformer",)

    def blocks(self, net: nn.Module) -> Sequence[Block]:
        assert isinstance(net, SwinTransformer)
        return numbered("blocks", (block for stage in net.layers for block in stage.blocks))

    def fit(self, state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
        fitted, wanted = dict(state), net.state_dict()
        if KERNEL in fitted:
            fitted[KERNEL] = fit_kernel(fitted[KERNEL], wanted[KERNEL].shape[2:])
        for name, module in net.named_modules():
            key = f"{name}.relative_position_bias_table"
            if isinstance(module, WindowAttention) and key in fitted and fitted[key].shape != wanted[key].shape:
                fitted[key] = resize_rel_pos_bias_table(
                    fitted[key].float(), new_window_size=module.window_size, new_bias_shape=wanted[key].shape
                )
        return fitted
