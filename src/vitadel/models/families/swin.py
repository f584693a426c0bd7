"""Swin: attention inside shifted windows, in stages of falling resolution."""

import math
from collections.abc import Mapping, Sequence

from timm.layers import resize_rel_pos_bias_table
from timm.models.swin_transformer import SwinTransformer, WindowAttention
from torch import Tensor, nn

from vitadel.models.families.base import Geometry, Layer, PatchFamily, attention_blocks, differs_in, kernel_side

_TABLE = "relative_position_bias_table"
# timm's resampling overflows for windows of thousands of tokens a side
_MOST_WINDOW = 256


class Swin(PatchFamily):
    """timm's Swin (version 1). Blocks are numbered through all stages; attention is per window, batch first."""

    name = "swin"
    architectures = (SwinTransformer,)
    timm_files = ("swin_transformer",)

    def blocks(self, net: SwinTransformer) -> Sequence[Layer]:
        return attention_blocks("blocks", (block for stage in net.layers for block in stage.blocks))

    def geometry(self, state: Mapping[str, Tensor], net: SwinTransformer) -> Geometry:
        """The grid follows from the tables of stages where it is smaller than the window."""
        sides = [_window(state.get(f"layers.{stage}.blocks.0.attn.{_TABLE}")) for stage in range(len(net.layers))]
        window = max((side for side in sides if side is not None), default=None)
        grids = [side << stage for stage, side in enumerate(sides) if side is not None and side != window]
        return Geometry(kernel_side(state), grids[0] if grids else None, window)

    def convert_weights(self, state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
        fitted, wanted = super().convert_weights(state, net), net.state_dict()
        for name, module in net.named_modules():
            key = f"{name}.{_TABLE}"
            if isinstance(module, WindowAttention) and differs_in(fitted, wanted, key, (0,)) and _window(fitted[key]):
                fitted[key] = resize_rel_pos_bias_table(
                    fitted[key].float(), new_window_size=module.window_size, new_bias_shape=wanted[key].shape
                )
        return fitted


def _window(table: Tensor | None) -> int | None:
    """The side of a window from its table, which has (2 * side - 1)^2 rows, one per relative position."""
    if table is None or table.ndim != 2 or table.numel() == 0:
        return None
    distances = math.isqrt(len(table))
    side = (distances + 1) // 2
    return side if distances % 2 and distances**2 == len(table) and side <= _MOST_WINDOW else None
