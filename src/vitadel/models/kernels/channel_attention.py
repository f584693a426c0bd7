r"""XCiT's attention between the channels of a head: one kernel forward, one backward.

The products are of many tall, thin matrices, and between them queries and keys are normalized over tokens, the strided
dimension: as separate operations, most of the time is memory traffic. Here one program computes one head of one image;
it reads queries and keys once to accumulate their products, and values once to mix them. With
:math:`A = q^\top k`, norms :math:`\lVert q_i \rVert` over tokens, temperature t, and the gradient
:math:`\dot o` of the output:

.. math:: P_{i\cdot} = \mathrm{softmax}_j\; t\, \hat A_{ij}, \qquad
          \hat A_{ij} = \frac{A_{ij}}{\lVert q_i \rVert \lVert k_j \rVert}, \qquad o = v P^\top

.. math:: \dot v = \dot o P, \qquad \dot P = \dot o^\top v, \qquad
          M = \frac{t\, P \odot (\dot P - (P \odot \dot P) 1)}{\lVert q \rVert \lVert k \rVert^\top}, \qquad
          \dot q = k M^\top - q\, \mathrm{diag} \frac{(M \odot A) 1}{\lVert q \rVert^2}

and :math:`\dot k` by symmetry. The temperature is a constant and gets no gradient.

Shape letters: B images, N tokens, H heads, D channels of a head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# the most channels of a head that fit a tile
MOST_CHANNELS = 64
_TOKENS, _WARPS = 64, 4
_LEAST_NORM = tl.constexpr(1e-12)  # the least norm, as eps of torch.nn.functional.normalize


@triton.jit
def _sums(x_ptr, y_ptr, x_step, y_step, N, D: tl.constexpr, TILE: tl.constexpr, TOKENS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums over tokens: products of all channels of x and y [TILE, TILE], and squares of each [TILE]."""
    channel = tl.arange(0, TILE)
    products = tl.zeros([TILE, TILE], tl.float32)
    x_squares, y_squares = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
    for begin in range(0, N, TOKENS):
        token = begin + tl.arange(0, TOKENS)
        valid = (token < N)[:, None] & (channel < D)[None, :]
        x = tl.load(x_ptr + token[:, None] * x_step + channel[None, :], mask=valid, other=0.0)
        y = tl.load(y_ptr + token[:, None] * y_step + channel[None, :], mask=valid, other=0.0)
        products += tl.dot(tl.trans(x), y)
        x_squares += tl.sum(x.to(tl.float32) * x.to(tl.float32), 0)
        y_squares += tl.sum(y.to(tl.float32) * y.to(tl.float32), 0)
    return products, x_squares, y_squares


@triton.jit
def _weights(products, q_squares, k_squares, temperature, D: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The attention [TILE, TILE], and the norms of queries and keys."""
    q_norm = tl.maximum(tl.sqrt(q_squares), _LEAST_NORM)
    k_norm = tl.maximum(tl.sqrt(k_squares), _LEAST_NORM)
    s = products / q_norm[:, None] / k_norm[None, :] * temperature
    s = tl.where((tl.arange(0, TILE) < D)[None, :], s, float("-inf"))
    p = tl.exp(s - tl.max(s, 1)[:, None])
    return p / tl.sum(p, 1)[:, None], q_norm, k_norm


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    qkv_ptr, temperature_ptr, out_ptr, N, H: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, TOKENS: tl.constexpr
):
    image, head = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    q_ptr = qkv_ptr + image * N * 3 * H * D + head * D
    k_ptr, v_ptr = q_ptr + H * D, q_ptr + 2 * H * D
    products, q_squares, k_squares = _sums(q_ptr, k_ptr, 3 * H * D, 3 * H * D, N, D, TILE, TOKENS)
    temperature = tl.load(temperature_ptr + head).to(tl.float32)
    p, _, _ = _weights(products, q_squares, k_squares, temperature, D, TILE)
    channel = tl.arange(0, TILE)
    for begin in range(0, N, TOKENS):
        token = begin + tl.arange(0, TOKENS)
        valid = (token < N)[:, None] & (channel < D)[None, :]
        v = tl.load(v_ptr + token[:, None] * (3 * H * D) + channel[None, :], mask=valid, other=0.0)
        out = tl.dot(v, tl.trans(p.to(v.dtype)))
        offset = image * N * H * D + head * D + token[:, None] * (H * D) + channel[None, :]
        tl.store(out_ptr + offset, out.to(v.dtype), mask=valid)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    qkv_ptr,
    temperature_ptr,
    grad_ptr,
    back_ptr,
    N,
    H: tl.constexpr,
    D: tl.constexpr,
    TILE: tl.constexpr,
    TOKENS: tl.constexpr,
):
    image, head = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    packed, step = image * N * 3 * H * D + head * D, 3 * H * D
    q_ptr = qkv_ptr + packed
    k_ptr, v_ptr = q_ptr + H * D, q_ptr + 2 * H * D
    o_ptr = grad_ptr + image * N * H * D + head * D
    products, q_squares, k_squares = _sums(q_ptr, k_ptr, step, step, N, D, TILE, TOKENS)
    temperature = tl.load(temperature_ptr + head).to(tl.float32)
    p, q_norm, k_norm = _weights(products, q_squares, k_squares, temperature, D, TILE)
    p_back, _, _ = _sums(o_ptr, v_ptr, H * D, step, N, D, TILE, TOKENS)
    s_back = p * (p_back - tl.sum(p * p_back, 1)[:, None]) * temperature
    # rounded first, so that the projection subtracted below matches the product computed with the rounded matrix
    m = (s_back / q_norm[:, None] / k_norm[None, :]).to(qkv_ptr.dtype.element_ty)
    along = m.to(tl.float32) * products
    q_share, k_share = tl.sum(along, 1) / (q_norm * q_norm), tl.sum(along, 0) / (k_norm * k_norm)
    channel = tl.arange(0, TILE)
    for begin in range(0, N, TOKENS):
        token = begin + tl.arange(0, TOKENS)
        valid = (token < N)[:, None] & (channel < D)[None, :]
        rows = token[:, None] * step + channel[None, :]
        q = tl.load(q_ptr + rows, mask=valid, other=0.0)
        k = tl.load(k_ptr + rows, mask=valid, other=0.0)
        o = tl.load(o_ptr + token[:, None] * (H * D) + channel[None, :], mask=valid, other=0.0)
        q_back = tl.dot(k, tl.trans(m)) - q.to(tl.float32) * q_share[None, :]
        k_back = tl.dot(q, m) - k.to(tl.float32) * k_share[None, :]
        v_back = tl.dot(o, p.to(o.dtype))
        back = back_ptr + packed + rows
        tl.store(back, q_back.to(q.dtype), mask=valid)
        tl.store(back + H * D, k_back.to(q.dtype), mask=valid)
        tl.store(back + 2 * H * D, v_back.to(q.dtype), mask=valid)


def _sizes(qkv_BN3HD: Tensor) -> dict[str, int]:
    _, _, _, heads, channels = qkv_BN3HD.shape
    tile = max(16, triton.next_power_of_2(channels))
    return {"H": heads, "D": channels, "TILE": tile, "TOKENS": _TOKENS, "num_warps": _WARPS}


@torch.library.custom_op("vitadel::channel_attention", mutates_args=())
def channel_attention(qkv_BN3HD: Tensor, temperature_H: Tensor) -> Tensor:
    """[B, N, H, D]: attention between channels, of queries, keys and values packed in one tensor."""
    images, tokens, _, heads, channels = qkv_BN3HD.shape
    out = qkv_BN3HD.new_empty(images, tokens, heads, channels)
    _forward[(images * heads,)](qkv_BN3HD.contiguous(), temperature_H, out, tokens, **_sizes(qkv_BN3HD))
    return out


@channel_attention.register_fake
def _(qkv_BN3HD: Tensor, temperature_H: Tensor) -> Tensor:
    images, tokens, _, heads, channels = qkv_BN3HD.shape
    return qkv_BN3HD.new_empty(images, tokens, heads, channels)


@torch.library.custom_op("vitadel::channel_attention_back", mutates_args=())
def _back(qkv_BN3HD: Tensor, temperature_H: Tensor, grad_BNHD: Tensor) -> Tensor:
    images, tokens, _, heads, _ = qkv_BN3HD.shape
    back = torch.empty_like(qkv_BN3HD, memory_format=torch.contiguous_format)
    inputs = qkv_BN3HD.contiguous(), temperature_H, grad_BNHD.contiguous()
    _backward[(images * heads,)](*inputs, back, tokens, **_sizes(qkv_BN3HD))
    return back


@_back.register_fake
def _(qkv_BN3HD: Tensor, temperature_H: Tensor, grad_BNHD: Tensor) -> Tensor:
    return torch.empty_like(qkv_BN3HD, memory_format=torch.contiguous_format)


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


def _backward_pass(ctx, grad_BNHD: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
    return _back(*ctx.saved_tensors, grad_BNHD), None


channel_attention.register_autograd(_backward_pass, setup_context=_setup_context)
