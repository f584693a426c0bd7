"""timm's modules through our kernels, where there are any: the same functions of the same weights, named the same."""

import importlib
import importlib.util

import torch
from timm.layers.attention import Attention
from timm.models.xcit import LPI
from torch import Tensor, nn
from torch.nn.functional import batch_norm


class PackedAttention(nn.Module):
    """Attention among few patches and a class token, on a GPU in half precision."""

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


class PackedInteraction(nn.Module):
    """XCiT's exchange between neighbouring patches, on a GPU in half precision, in a network that is only asked."""

    def __init__(self, local: LPI) -> None:
        super().__init__()
        importlib.import_module("vitadel.models.neighbours")
        self.conv1, self.act, self.bn, self.conv2 = local.conv1, local.act, local.bn, local.conv2

    def forward(self, x: Tensor, H: int, W: int) -> Tensor:
        mix, bn = torch.ops.vitadel.neighbours, self.bn
        x = self.act(mix(x, self.conv1.weight, self.conv1.bias, W))
        x = batch_norm(x.mT, bn.running_mean, bn.running_var, bn.weight, bn.bias, eps=bn.eps).mT
        answer: Tensor = mix(x, self.conv2.weight, self.conv2.bias, W)
        return answer


def suits(attention: nn.Module, patches: int) -> bool:
    """Whether there is a kernel for this attention among a class token and so many patches."""
    if type(attention) is not Attention or not _has_kernels(attention):
        return False
    kernels = importlib.import_module("vitadel.models.class_attention")
    plain = isinstance(attention.q_norm, nn.Identity) and isinstance(attention.k_norm, nn.Identity)
    ungated = getattr(attention, "gate", None) is None  # younger than the oldest timm we take
    return plain and ungated and patches in kernels.TILES and attention.head_dim in kernels.CHANNELS


def suits_interaction(local: nn.Module) -> bool:
    """Whether there is a kernel for this exchange between neighbours."""
    return isinstance(local, LPI) and local.conv1.kernel_size == (3, 3) and _has_kernels(local)


def _has_kernels(module: nn.Module) -> bool:
    weight = next(module.parameters())
    half = weight.is_cuda and weight.dtype in (torch.bfloat16, torch.float16)
    return half and importlib.util.find_spec("triton") is not None
