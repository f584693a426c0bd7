"""CaiT: talking-heads attention, then two blocks that only feed the class token."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from timm.models.cait import Cait
from torch import Tensor, nn

from vitadel.models.families.base import Block, Geometry, Patched, numbered
from vitadel.models.families.vit import embedding_geometry, fit_embedding


class CaiT(Patched):
    """timm's CaiT. Its class-attention blocks are the taps `class_blocks.i`."""

    name = "cait"
    architectures = (Cait,)
    timm_files = ("cait",)

    def blocks(self, net: nn.Module) -> Sequence[Block]:
        assert isinstance(net, Cait)
        talking = numbered("blocks", net.blocks, prefix=0, pairs=True)
        # a class block is called with (tokens, class token) and adds to the second
        return [
            *(replace(block, mixing=block.attention.get_submodule("proj_w")) for block in talking),
            *numbered("class_blocks", net.blocks_token_only, stream=1, class_token=True),
        ]

    def geometry(self, state: Mapping[str, Tensor], net: nn.Module) -> Geometry:
        return embedding_geometry(state, prefix_tokens=0)

    def fit(self, state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
        return fit_embedding(state, net, prefix_tokens=0)
