"""ViT, DeiT and CaiT."""

from collections.abc import Sequence
from dataclasses import replace

from timm.models.cait import Cait
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitadel.models.families.base import Layer, PatchFamily, attention_blocks
from vitadel.models.kernels import PackedAttention, has_kernel


class ViT(PatchFamily):
    """Stock timm Vision Transformers, distilled DeiT among them."""

    name = "vit"
    architectures = (VisionTransformer,)
    timm_files: tuple[str, ...] = ("vision_transformer", "deit")

    def blocks(self, net: VisionTransformer) -> Sequence[Layer]:
        # timm also has parallel blocks with several attentions, for which there are no tap names
        if not all(hasattr(block, "attn") for block in net.blocks):
            return ()
        has_class_token = net.cls_token is not None
        return attention_blocks(
            "blocks", net.blocks, prefix=net.num_prefix_tokens, class_token=has_class_token, all_to_all=True
        )

    def prune_unused_tokens(self, net: nn.Module) -> None:
        """A head on the class token reads no other: after the last attention only that one is computed."""
        if not isinstance(net, VisionTransformer):  # a network with adapters, which read all tokens
            return
        last = net.blocks[-1]
        reads_one = net.global_pool == "token" and net.num_prefix_tokens == 1 and net.attn_pool is None
        if reads_one and type(last) is TimmBlock:
            # the attention branch of one token is broadcast to all; only the first, where that is right, is read later
            for module in (last.attn.proj, last.norm2, net.norm):
                module.register_forward_pre_hook(_first_token)

    def use_fused_kernels(self, net: nn.Module) -> None:
        if not isinstance(net, VisionTransformer) or net.cls_token is None or net.num_prefix_tokens != 1:
            return
        for block in net.blocks:
            if has_kernel(block.attn, net.patch_embed.num_patches):
                block.attn = PackedAttention(block.attn)

    def prefix_tokens(self, net: VisionTransformer) -> int:
        return 0 if net.no_embed_class else int(net.num_prefix_tokens)


class CaiT(PatchFamily):
    """timm's CaiT: talking-heads attention; its two class-attention blocks are the taps `class_blocks.i`."""

    name = "cait"
    architectures = (Cait,)
    timm_files = ("cait",)

    def blocks(self, net: Cait) -> Sequence[Layer]:
        patch_blocks = attention_blocks("blocks", net.blocks, prefix=0, all_to_all=True)
        # a class-attention block is called with (tokens, class token) and adds to the second
        return [
            *(replace(block, head_mixing=block.module.get_submodule("attn.proj_w")) for block in patch_blocks),
            *attention_blocks("class_blocks", net.blocks_token_only, residual_argument=1, class_token=True),
        ]


def _first_token(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (args[0][:, :1], *args[1:])
