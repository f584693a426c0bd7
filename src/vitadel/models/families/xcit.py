"""XCiT: attention between channels, a convolutional stem, and two class-attention blocks."""

import math
from collections.abc import Sequence

import torch
from timm.models.xcit import Xcit
from torch import nn

from vitadel.core.errors import UsageError
from vitadel.models.families.base import Layer, PatchFamily, attention_blocks
from vitadel.models.kernels import PackedChannelAttention, has_channel_kernel


class XCiT(PatchFamily):
    """timm's XCiT. `logits` and `probs` of `blocks.i` relate channels; those of `class_blocks.i` relate tokens."""

    name = "xcit"
    architectures = (Xcit,)
    timm_files = ("xcit",)

    def blocks(self, net: Xcit) -> Sequence[Layer]:
        return [
            *attention_blocks("blocks", net.blocks, prefix=0),
            *attention_blocks("class_blocks", net.cls_attn_blocks, prefix=1, class_token=True),
        ]

    def compile_units(self, net: Xcit) -> Sequence[nn.Module]:
        return [net.patch_embed, *super().compile_units(net)]

    def use_fused_kernels(self, net: Xcit) -> None:
        if not all(has_channel_kernel(block.attn) for block in net.blocks):
            return
        # channels last, because otherwise tokens are not contiguous in memory and their norms are slow
        net.patch_embed.to(memory_format=torch.channels_last)
        for block in net.blocks:
            block.attn = PackedChannelAttention(block.attn)

    def size_options(self, image_size: int | None, patch_size: int | None) -> dict[str, int]:
        return {}  # positions are sinusoids of any grid, and the stem's strides are set after building

    def set_patch(self, net: Xcit, patch_size: int) -> None:
        """Give the first log2(old / new) stem convolutions stride 1; no weight changes its shape."""
        old = int(net.patch_embed.patch_size)
        stem = [layer for layer in net.patch_embed.proj.modules() if isinstance(layer, nn.Conv2d)]
        halvings = math.log2(old / patch_size) if 0 < patch_size <= old else -1.0
        if halvings not in range(len(stem) + 1):
            sizes = ", ".join(str(old >> i) for i in range(len(stem) + 1))
            raise UsageError(f"this XCiT can have patches of {sizes}, got patch_size={patch_size}. Write one of these.")
        for layer in stem[: int(halvings)]:
            layer.stride = (1, 1)
        net.patch_embed.patch_size = patch_size
