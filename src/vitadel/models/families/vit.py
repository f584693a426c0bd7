"""ViT and DeiT."""

from collections.abc import Mapping, Sequence

from timm.layers import resample_abs_pos_embed, resample_patch_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitadel.models.families.base import Block, Patched, numbered

KERNEL = "patch_embed.proj.weight"
POSITIONS = "pos_embed"


class ViT(Patched):
    """Stock timm Vision Transformers, distilled DeiT among them."""

    name = "vit"
    architectures = (VisionTransformer,)

    def blocks(self, net: nn.Module) -> Sequence[Block]:
        assert isinstance(net, VisionTransformer)
        return numbered("blocks", net.blocks)

    def fit(self, state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
        prefix = 0 if getattr(net, "no_embed_class", False) else int(getattr(net, "num_prefix_tokens", 1))
        return fit_embedding(state, net, prefix_tokens=prefix)


def fit_embedding(state: Mapping[str, Tensor], net: nn.Module, *, prefix_tokens: int) -> dict[str, Tensor]:
    """Patch kernel and position embedding resampled to the shapes `net` has; all else untouched.

    The kernel is resampled so that it answers a resized patch as the old one answered the patch (Beyer et al. 2023,
    arXiv:2212.08013); positions are interpolated on the token grid, prefix tokens aside.
    """
    fitted, wanted = dict(state), net.state_dict()
    if KERNEL in fitted and fitted[KERNEL].shape[2:] != wanted[KERNEL].shape[2:]:
        fitted[KERNEL] = resample_patch_embed(fitted[KERNEL].float(), list(wanted[KERNEL].shape[2:]))
    if POSITIONS in fitted and fitted[POSITIONS].shape[1] != wanted[POSITIONS].shape[1]:
        side = round((wanted[POSITIONS].shape[1] - prefix_tokens) ** 0.5)
        fitted[POSITIONS] = resample_abs_pos_embed(
            fitted[POSITIONS].float(), [side, side], num_prefix_tokens=prefix_tokens
        )
    return fitted
