"""timm's attention through kernels for few tokens, where there are any."""

import importlib
import importlib.util

import torch
from timm.layers.attention import Attention
from torch import Tensor, nn


class PackedAttention(nn.Module):
    """The same function of the same weights, under the same names, on a GPU in half precision."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        importlib.import_module("vitadel.models.class_attention")  # makes its kernels known to torch
        self.heads, self.scale = attention.num_heads, attention.scale
        self.qkv, self.norm, self.proj = attention.qkv, attention.norm, attention.proj

    def forward(self, x: Tensor, attn_mask: None = None, is_causal: bool = False) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        out: Tensor = torch.ops.vitadel.class_attention(qkv, self.scale)
        answer: Tensor = self.proj(self.norm(out.flatten(2)))
        return answer


def suits(attention: nn.Module, patches: int) -> bool:
    """Whether there is a kernel for this attention among a class token and so many patches."""
    if type(attention) is not Attention or importlib.util.find_spec("triton") is None:
        return False
    weight = next(attention.parameters())
    if not weight.is_cuda or weight.dtype not in (torch.bfloat16, torch.float16):
        return False
    kernels = importlib.import_module("vitadel.models.class_attention")
    plain = isinstance(attention.q_norm, nn.Identity) and isinstance(attention.k_norm, nn.Identity)
    ungated = getattr(attention, "gate", None) is None  # younger than the oldest timm we take
    return plain and ungated and patches in kernels.TILES and attention.head_dim in kernels.CHANNELS
