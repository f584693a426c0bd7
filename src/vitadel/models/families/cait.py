"""CaiT: talking-heads attention, then two blocks that only feed the class token."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from timm.models.cait import Cait
from torch import Tensor, nn

from vitadel.models.families.base import Geometry, Layer, Patched, numbered
from vitadel.models.families.vit import embedding_geometry, fit_embedding


class CaiT(Patched):
    """timm's CaiT. Its class-attention blocks are the taps `class_blocks.i`."""

    name = "cait"
    architectures = (Cait,)
    timm_files = ("cait",)

    def blocks(self, net: nn.Module) -> Sequence[Layer]:
        assert isinstance(net, Cait)
        patch_blocks = numbered("blocks", net.blocks, prefix=0, pairs=True)
        # a class-attention block is called with (tokens, class token) and adds to the second
        return [
            *(replace(block, mixing=block.module.get_submodule("attn.proj_w")) for block in patch_blocks),
            *numbered("class_blocks", net.blocks_token_only, stream=1, class_token=True),
        ]

    def geometry(self, state: Mapping[str, Tensor], net: nn.Module) -> Geometry:
        return embedding_geometry(state, prefix_tokens=0)

    def fit(self, state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
        return fit_embedding(state, net, prefix_tokens=0)
