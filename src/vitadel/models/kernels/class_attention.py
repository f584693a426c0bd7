r"""Attention among the patches of a small image and one class token: one kernel forward, one backward.

General kernels work in tiles of 64 or 128 tokens. The 65 of a 32-pixel image in patches of 4 need a second tile for a
single token, so most of the arithmetic is wasted. Here the M patches are one tile, on the tensor cores, and the class
token is a separate vector; one program computes one head of one image, and only :math:`q, k, v` and the result pass
through the device's memory. The backward kernel recomputes the attention.

With :math:`P = \mathrm{softmax}(s\,qk^\top)` and the gradient :math:`\dot o` of the output:

.. math:: \dot v = P^\top \dot o, \qquad \dot P = \dot o v^\top, \qquad
          \dot S = s\, P \odot (\dot P - (P \odot \dot P) 1), \qquad \dot q = \dot S k, \qquad \dot k = \dot S^\top q

Shape letters: B images, N = 1 + M tokens, H heads, D channels of a head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# a tile is a power of two that fits into the registers of four warps
TILES = (16, 32, 64)
CHANNELS = (16, 32, 64)


@triton.jit
def _weights(q, k, q_class, k_class, scale):  # type: ignore[no-untyped-def]
    """Attention from patches to patches [M, M] and to the class token [M], from that to patches [M] and to itself."""
    s = tl.dot(q, tl.trans(k)) * scale
    s_to = tl.sum(q.to(tl.float32) * k_class[None, :], 1) * scale
    top = tl.maximum(tl.max(s, 1), s_to)
    p, p_to = tl.exp(s - top[:, None]), tl.exp(s_to - top)
    total = tl.sum(p, 1) + p_to
    s_from = tl.sum(k.to(tl.float32) * q_class[None, :], 1) * scale
    s_self = tl.sum(q_class * k_class, 0) * scale
    top_class = tl.maximum(tl.max(s_from, 0), s_self)
    p_from, p_self = tl.exp(s_from - top_class), tl.exp(s_self - top_class)
    total_class = tl.sum(p_from, 0) + p_self
    return p / total[:, None], p_to / total, p_from / total_class, p_self / total_class


@triton.jit
def _forward(qkv_ptr, out_ptr, scale, H: tl.constexpr, M: tl.constexpr, D: tl.constexpr):  # type: ignore[no-untyped-def]
    image, head = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    patch, channel = tl.arange(0, M) + 1, tl.arange(0, D)
    packed = qkv_ptr + image * (M + 1) * 3 * H * D + head * D
    rows = patch[:, None] * (3 * H * D) + channel[None, :]
    q, k, v = tl.load(packed + rows), tl.load(packed + H * D + rows), tl.load(packed + 2 * H * D + rows)
    q_class = tl.load(packed + channel).to(tl.float32)
    k_class = tl.load(packed + H * D + channel).to(tl.float32)
    v_class = tl.load(packed + 2 * H * D + channel).to(tl.float32)
    p, p_to, p_from, p_self = _weights(q, k, q_class, k_class, scale)
    out = tl.dot(p.to(v.dtype), v) + p_to[:, None] * v_class[None, :]
    out_class = tl.sum(p_from[:, None] * v.to(tl.float32), 0) + p_self * v_class
    out_base = out_ptr + image * (M + 1) * H * D + head * D
    tl.store(out_base + patch[:, None] * (H * D) + channel[None, :], out.to(v.dtype))
    tl.store(out_base + channel, out_class.to(v.dtype))


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    qkv_ptr, grad_ptr, back_ptr, scale, H: tl.constexpr, M: tl.constexpr, D: tl.constexpr
):
    image, head = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    patch, channel = tl.arange(0, M) + 1, tl.arange(0, D)
    begin = image * (M + 1) * 3 * H * D + head * D
    packed, back = qkv_ptr + begin, back_ptr + begin
    rows = patch[:, None] * (3 * H * D) + channel[None, :]
    q, k, v = tl.load(packed + rows), tl.load(packed + H * D + rows), tl.load(packed + 2 * H * D + rows)
    q_class = tl.load(packed + channel).to(tl.float32)
    k_class = tl.load(packed + H * D + channel).to(tl.float32)
    v_class = tl.load(packed + 2 * H * D + channel).to(tl.float32)
    grads = grad_ptr + image * (M + 1) * H * D + head * D
    o = tl.load(grads + patch[:, None] * (H * D) + channel[None, :])
    o_class = tl.load(grads + channel).to(tl.float32)
    p, p_to, p_from, p_self = _weights(q, k, q_class, k_class, scale)

    v_back = tl.dot(tl.trans(p.to(o.dtype)), o) + p_from[:, None] * o_class[None, :]
    tl.store(back + 2 * H * D + rows, v_back.to(q.dtype))
    tl.store(back + 2 * H * D + channel, (tl.sum(p_to[:, None] * o.to(tl.float32), 0) + p_self * o_class).to(q.dtype))

    p_back, to_back = tl.dot(o, tl.trans(v)), tl.sum(o.to(tl.float32) * v_class[None, :], 1)
    mean = tl.sum(p * p_back, 1) + p_to * to_back
    s, s_to = p * (p_back - mean[:, None]) * scale, p_to * (to_back - mean) * scale
    from_back, self_back = tl.sum(v.to(tl.float32) * o_class[None, :], 1), tl.sum(v_class * o_class, 0)
    mean_class = tl.sum(p_from * from_back, 0) + p_self * self_back
    s_from, s_self = p_from * (from_back - mean_class) * scale, p_self * (self_back - mean_class) * scale

    s_half = s.to(q.dtype)
    tl.store(back + rows, (tl.dot(s_half, k) + s_to[:, None] * k_class[None, :]).to(q.dtype))
    tl.store(back + channel, (tl.sum(s_from[:, None] * k.to(tl.float32), 0) + s_self * k_class).to(q.dtype))
    k_back = tl.dot(tl.trans(s_half), q) + s_from[:, None] * q_class[None, :]
    tl.store(back + H * D + rows, k_back.to(q.dtype))
    tl.store(back + H * D + channel, (tl.sum(s_to[:, None] * q.to(tl.float32), 0) + s_self * q_class).to(q.dtype))


@torch.library.custom_op("vitadel::class_attention", mutates_args=())
def class_attention(qkv_BN3HD: Tensor, scale: float) -> Tensor:
    """[B, N, H, D]: attention of queries, keys and values packed in one tensor."""
    images, tokens, _, heads, channels = qkv_BN3HD.shape
    out = qkv_BN3HD.new_empty(images, tokens, heads, channels)
    _forward[(images * heads,)](
        qkv_BN3HD.contiguous(), out, scale, H=heads, M=tokens - 1, D=channels, num_warps=4, num_stages=1
    )
    return out


@class_attention.register_fake
def _(qkv_BN3HD: Tensor, scale: float) -> Tensor:
    images, tokens, _, heads, channels = qkv_BN3HD.shape
    return qkv_BN3HD.new_empty(images, tokens, heads, channels)


@torch.library.custom_op("vitadel::class_attention_back", mutates_args=())
def _back(qkv_BN3HD: Tensor, grad_BNHD: Tensor, scale: float) -> Tensor:
    images, tokens, _, heads, channels = qkv_BN3HD.shape
    back = torch.empty_like(qkv_BN3HD, memory_format=torch.contiguous_format)
    _backward[(images * heads,)](
        *(qkv_BN3HD.contiguous(), grad_BNHD.contiguous(), back, scale),
        **{"H": heads, "M": tokens - 1, "D": channels, "num_warps": 4, "num_stages": 1},
    )
    return back


@_back.register_fake
def _(qkv_BN3HD: Tensor, grad_BNHD: Tensor, scale: float) -> Tensor:
    return torch.empty_like(qkv_BN3HD, memory_format=torch.contiguous_format)


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


def _backward_pass(ctx, grad_BNHD: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
    return _back(ctx.saved_tensors[0], grad_BNHD, ctx.scale), None


class_attention.register_autograd(_backward_pass, setup_context=_setup_context)
