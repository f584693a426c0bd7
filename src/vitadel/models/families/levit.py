"""LeViT: attention with position biases after a convolutional stem; between stages, attention downsamples."""

from collections.abc import Mapping, Sequence

import torch
from timm.models.levit import Attention, AttentionDownsample, Levit, LevitBlock, LevitDownsample
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.models.families.base import Family, Layer


class LeViT(Family):
    """timm's LeViT. Blocks are numbered through all stages, those between two stages among them.

    A block between two stages has fewer queries than keys, and no residual connection around its attention.
    """

    name = "levit"
    architectures = (Levit,)
    timm_files = ("levit",)

    def blocks(self, net: Levit) -> Sequence[Layer]:
        if net.use_conv:  # its product is of values and probabilities, an order that taps do not recognize
            return ()
        modules = (module for module in net.stages.modules() if isinstance(module, LevitBlock | LevitDownsample))
        return [_block(f"blocks.{i}", module) for i, module in enumerate(modules)]

    def size_options(self, image_size: int | None, patch_size: int | None) -> dict[str, int]:
        return {} if image_size is None else {"img_size": image_size}

    def set_patch(self, net: nn.Module, patch_size: int) -> None:
        raise UsageError(
            f"the stem of this LeViT makes patches of {self.patch_size(net)}, got patch_size={patch_size}. "
            "Leave it out, or choose a stem of 8 or 16: options={'stem_type': 's8'}."
        )

    def patch_size(self, net: Levit) -> int | None:
        return int(net.feature_info[0]["reduction"])

    def grid(self, net: Levit, image_size: int) -> tuple[int, int] | None:
        rows, columns = next(m for m in net.modules() if isinstance(m, Attention | AttentionDownsample)).resolution
        return (int(rows), int(columns))

    def apply_workarounds(self, net: nn.Module) -> None:
        super().apply_workarounds(net)
        for module in net.modules():
            if type(module) in _WITHOUT_CACHE:
                module.__class__ = _WITHOUT_CACHE[type(module)]

    def convert_weights(self, state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
        # old files hold these indices, which follow from the size of the image
        return {key: value for key, value in state.items() if not key.endswith(".attention_bias_idxs")}


def _block(name: str, module: nn.Module) -> Layer:
    downsamples = isinstance(module, LevitDownsample)
    attention = module.get_submodule("attn_downsample" if downsamples else "attn")
    return Layer(name, module, attention, module.get_submodule("mlp"), changes_shape=downsamples)


# In evaluation mode timm caches the biases of the first call, with their graph, until `train` or `eval` is called: a
# second backward pass and a deepcopy fail, and weights changed in place or in dtype are ignored.


class _Attention(Attention):
    def get_attention_biases(self, device: torch.device) -> Tensor:
        return self.attention_biases[:, self.attention_bias_idxs]


class _AttentionDownsample(AttentionDownsample):
    def get_attention_biases(self, device: torch.device) -> Tensor:
        return self.attention_biases[:, self.attention_bias_idxs]


_WITHOUT_CACHE: dict[type[nn.Module], type[nn.Module]] = {
    Attention: _Attention,
    AttentionDownsample: _AttentionDownsample,
}
