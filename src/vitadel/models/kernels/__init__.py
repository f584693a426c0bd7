"""timm's attention modules with Triton kernels, for sizes for which general kernels are slow.

They compute the same functions, with the same weights under the same names.
"""

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
        importlib.import_module("vitadel.models.kernels.class_attention")  # registers its kernels with torch
        self.heads, self.scale = attention.num_heads, attention.scale
        self.qkv, self.norm, self.proj = attention.qkv, attention.norm, attention.proj

    def forward(self, x: Tensor, attn_mask: None = None, is_causal: bool = False) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        out: Tensor = torch.ops.vitadel.class_attention(qkv, self.scale)
        projected: Tensor = self.proj(self.norm(out.flatten(2)))
        return projected


class PackedChannelAttention(nn.Module):
    """XCiT's attention between channels, on a GPU in half precision, for networks that are not trained."""

    def __init__(self, attention: XCA) -> None:
        super().__init__()
        importlib.import_module("vitadel.models.kernels.channel_attention")
        self.heads, self.temperature = attention.num_heads, attention.temperature
        self.qkv, self.proj = attention.qkv, attention.proj

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        out: Tensor = torch.ops.vitadel.channel_attention(qkv, self.temperature.flatten())
        projected: Tensor = self.proj(out.flatten(2))
        return projected


def has_kernel(attention: nn.Module, patches: int) -> bool:
    """Whether there is a kernel for this attention among a class token and this many patches."""
    if type(attention) is not Attention or not on_gpu_in_half(attention):
        return False
    kernels = importlib.import_module("vitadel.models.kernels.class_attention")
    no_norms = isinstance(attention.q_norm, nn.Identity) and isinstance(attention.k_norm, nn.Identity)
    ungated = getattr(attention, "gate", None) is None  # newer than the oldest timm we support
    return no_norms and ungated and patches in kernels.TILES and attention.head_dim in kernels.CHANNELS


def has_channel_kernel(attention: nn.Module) -> bool:
    """Whether there is a kernel for this attention between channels."""
    if not isinstance(attention, XCA) or not on_gpu_in_half(attention):
        return False
    kernels = importlib.import_module("vitadel.models.kernels.channel_attention")
    channels: int = attention.qkv.in_features // attention.num_heads
    is_bf16 = attention.qkv.weight.dtype is torch.bfloat16  # normalized gradients underflow in float16
    return is_bf16 and channels <= int(kernels.MOST_CHANNELS)


def on_gpu_in_half(module: nn.Module) -> bool:
    """Whether a module computes in half precision on a GPU that the kernels can be compiled for."""
    weight = next(module.parameters())
    half = weight.is_cuda and weight.dtype in (torch.bfloat16, torch.float16)
    return half and importlib.util.find_spec("triton") is not None
