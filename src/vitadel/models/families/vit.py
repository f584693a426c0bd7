"""ViT and DeiT."""

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from timm.layers import resample_abs_pos_embed, resample_patch_embed
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitadel.models.families.base import Geometry, Layer, Patched, numbered
from vitadel.models.families.fused_qkv import PackedAttention, has_kernel

KERNEL = "patch_embed.proj.weight"
POSITIONS = "pos_embed"
# resampling takes memory by the fourth power of the side
_MOST_KERNEL = 128


class ViT(Patched):
    """Stock timm Vision Transformers, distilled DeiT among them."""

    name = "vit"
    architectures = (VisionTransformer,)
    timm_files: tuple[str, ...] = ("vision_transformer", "deit")

    def blocks(self, net: nn.Module) -> Sequence[Layer]:
        assert isinstance(net, VisionTransformer)
        # timm also has parallel blocks with several attentions, for which there are no tap names
        if not all(hasattr(block, "attn") for block in net.blocks):
            return ()
        has_class_token = net.cls_token is not None
        return numbered("blocks", net.blocks, prefix=net.num_prefix_tokens, class_token=has_class_token, pairs=True)

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

    def geometry(self, state: Mapping[str, Tensor], net: nn.Module) -> Geometry:
        return embedding_geometry(state, prefix_tokens=_prefix_tokens(net))

    def fit(self, state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
        return fit_embedding(state, net, prefix_tokens=_prefix_tokens(net))


def _prefix_tokens(net: nn.Module) -> int:
    """How many tokens with a position embedding precede those of the patches."""
    return 0 if getattr(net, "no_embed_class", False) else int(getattr(net, "num_prefix_tokens", 1))


def _first_token(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (args[0][:, :1], *args[1:])


def fit_embedding(state: Mapping[str, Tensor], net: nn.Module, *, prefix_tokens: int) -> dict[str, Tensor]:
    """Patch kernel and position embedding resampled to the shapes `net` has; all else untouched.

    Positions are interpolated on the token grid, without prefix tokens. Weights without square patches or a square grid
    stay as they are; `check_keys` refuses them later.
    """
    fitted, wanted, seen = dict(state), net.state_dict(), embedding_geometry(state, prefix_tokens=prefix_tokens)
    if seen.kernel is not None and KERNEL in wanted:
        fitted[KERNEL] = fit_kernel(fitted[KERNEL], wanted[KERNEL].shape[2:])
    if seen.grid is not None and POSITIONS in wanted and fitted[POSITIONS].shape[1] != wanted[POSITIONS].shape[1]:
        side = round((wanted[POSITIONS].shape[1] - prefix_tokens) ** 0.5)
        fitted[POSITIONS] = resample_abs_pos_embed(
            fitted[POSITIONS].float(), [side, side], num_prefix_tokens=prefix_tokens
        )
    return fitted


def embedding_geometry(state: Mapping[str, Tensor], *, prefix_tokens: int) -> Geometry:
    """The sides of the patch kernel and of the token grid, where these are square."""
    tokens = state[POSITIONS].shape[1] - prefix_tokens if POSITIONS in state and state[POSITIONS].ndim == 3 else 0
    side = math.isqrt(max(tokens, 0))
    return Geometry(kernel_side(state), side if side and side**2 == tokens else None)


def kernel_side(state: Mapping[str, Tensor]) -> int | None:
    """The side of a square patch kernel that can be resampled; None without one."""
    shape = state[KERNEL].shape if KERNEL in state else torch.Size()
    square = len(shape) == 4 and shape[2] == shape[3] and 1 <= shape[2] <= _MOST_KERNEL and state[KERNEL].numel() > 0
    return int(shape[2]) if square else None


def fit_kernel(kernel: Tensor, size: torch.Size) -> Tensor:
    r"""A patch kernel of another size whose output on a patch is that of `kernel` on the same patch resized.

    Let :math:`U` enlarge the smaller patch to the larger (bicubic). Growing is the pseudo-inverse of Beyer et al. 2023
    (arXiv:2212.08013), with :math:`\langle Ux, w'\rangle = \langle x, w\rangle` for every patch. Shrinking is
    :math:`w' = U^\top w`, with :math:`\langle x, w'\rangle = \langle Ux, w\rangle` for every patch; the pseudo-inverse
    would not even keep the output on a constant one. Shrinking undoes growing
    (tests/unit/models/test_models_surgery.py).
    """
    old, new = kernel.shape[2:], size
    if old == new:
        return kernel
    if min(new) >= max(old):
        return resample_patch_embed(kernel.float(), list(new))
    units = torch.eye(new.numel(), device=kernel.device).view(-1, 1, *new)
    enlarged = F.interpolate(units, size=old, mode="bicubic", antialias=True)[:, 0]
    return torch.einsum("oihw,nhw->oin", kernel.float(), enlarged).unflatten(-1, new)
