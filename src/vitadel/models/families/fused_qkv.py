"""timm's modules through our kernels, where there are any: the same functions of the same weights, named the same."""

import importlib
import importlib.util

import torch
from timm.layers.attention import Attention
from timm.models.xcit import XCA
from torch import Tensor, nn


class PackedAttention(nn.Module):
    """Attention among few patches and a class token, on a GPU in half precision."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        importlib.import_module("vitadel.models.kernels.class_attention")  # makes its kernels known to torch
        self.heads, self.scale = attention.num_heads, attention.scale
        self.qkv, self.norm, self.proj = attention.qkv, attention.norm, attention.proj

    def forward(self, x: Tensor, attn_mask: None = None, is_causal: bool = False) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        out: Tensor = torch.ops.vitadel.class_attention(qkv, self.scale)
        answer: Tensor = self.proj(self.norm(out.flatten(2)))
        return answer


class PackedChannelAttention(nn.Module):
    """XCiT's attention between channels, on a GPU in half precision, in a network that is only asked."""

    def __init__(self, attention: XCA) -> None:
        super().__init__()
        importlib.import_module("vitadel.models.kernels.channel_attention")
        self.heads, self.temperature = attention.num_heads, attention.temperature
        self.qkv, self.proj = attention.qkv, attention.proj

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        out: Tensor = torch.ops.vitadel.channel_attention(qkv, self.temperature.flatten())
        answer: Tensor = self.proj(out.flatten(2))
        return answer


def suits(attention: nn.Module, patches: int) -> bool:
    """Whether there is a kernel for this attention among a class token and so many patches."""
    if type(attention) is not Attention or not _has_kernels(attention):
        return False
    kernels = importlib.import_module("vitadel.models.kernels.class_attention")
    plain = isinstance(attention.q_norm, nn.Identity) and isinstance(attention.k_norm, nn.Identity)
    ungated = getattr(attention, "gate", None) is None  # younger than the oldest timm we take
    return plain and ungated and patches in kernels.TILES and attention.head_dim in kernels.CHANNELS


def suits_channels(attention: nn.Module) -> bool:
    """Whether there is a kernel for this attention between channels."""
    if not isinstance(attention, XCA) or not _has_kernels(attention):
        return False
    kernels = importlib.import_module("vitadel.models.kernels.channel_attention")
    channels: int = attention.qkv.in_features // attention.num_heads
    wide = attention.qkv.weight.dtype is torch.bfloat16  # slopes divided by lengths are too small for float16
    return wide and channels <= int(kernels.MOST_CHANNELS)


def _has_kernels(module: nn.Module) -> bool:
    weight = next(module.parameters())
    half = weight.is_cuda and weight.dtype in (torch.bfloat16, torch.float16)
    return half and importlib.util.find_spec("triton") is not None
