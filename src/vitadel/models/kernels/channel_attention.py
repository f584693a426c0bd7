r"""XCiT's attention between the channels of a head: one kernel forward, one back.

The products are of many tall, thin matrices, and between them queries and keys are normalized over tokens, against the
grain of the memory: done one after the other, most of the time goes into moving the same numbers. Here one program
does one head of one image; it reads queries and keys once to add up their products, and values once to mix them. With
:math:`A = q^\top k`, lengths :math:`\lVert q_i \rVert` taken over tokens, temperature t, and the slope
:math:`\dot o` of what comes out:

.. math:: P_{i\cdot} = \mathrm{softmax}_j\; t\, \hat A_{ij}, \qquad
          \hat A_{ij} = \frac{A_{ij}}{\lVert q_i \rVert \lVert k_j \rVert}, \qquad o = v P^\top

.. math:: \dot v = \dot o P, \qquad \dot P = \dot o^\top v, \qquad
          M = \frac{t\, P \odot (\dot P - (P \odot \dot P) 1)}{\lVert q \rVert \lVert k \rVert^\top}, \qquad
          \dot q = k M^\top - q\, \mathrm{diag} \frac{(M \odot A) 1}{\lVert q \rVert^2}

and :math:`\dot k` the same with both sides exchanged. The temperature is taken as given and gets no slope.

Shape letters: B images, N tokens, H heads, D channels of a head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# channels of a head that a tile has room for
MOST_CHANNELS = 64
_TOKENS, _WARPS = 64, 4
_SHORTEST = tl.constexpr(1e-12)  # below it a length counts as this, as in torch's normalize


@triton.jit
def _added(x_at, y_at, x_step, y_step, N, D: tl.constexpr, TILE: tl.constexpr, TOKENS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Summed over tokens: the products of all channels of x and y [TILE, TILE], and the squares of either [TILE]."""
    channel = tl.arange(0, TILE)
    products = tl.zeros([TILE, TILE], tl.float32)
    x_squares, y_squares = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
    for begin in range(0, N, TOKENS):
        token = begin + tl.arange(0, TOKENS)
        there = (token < N)[:, None] & (channel < D)[None, :]
        x = tl.load(x_at + token[:, None] * x_step + channel[None, :], mask=there, other=0.0)
        y = tl.load(y_at + token[:, None] * y_step + channel[None, :], mask=there, other=0.0)
        products += tl.dot(tl.trans(x), y)
        x_squares += tl.sum(x.to(tl.float32) * x.to(tl.float32), 0)
        y_squares += tl.sum(y.to(tl.float32) * y.to(tl.float32), 0)
    return products, x_squares, y_squares


@triton.jit
def _weights(products, q_squares, k_squares, temperature, D: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The attention [TILE, TILE], and the lengths of queries and keys by which it was divided."""
    q_length = tl.maximum(tl.sqrt(q_squares), _SHORTEST)
    k_length = tl.maximum(tl.sqrt(k_squares), _SHORTEST)
    s = products / q_length[:, None] / k_length[None, :] * temperature
    s = tl.where((tl.arange(0, TILE) < D)[None, :], s, float("-inf"))
    p = tl.exp(s - tl.max(s, 1)[:, None])
    return p / tl.sum(p, 1)[:, None], q_length, k_length


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    qkv_at, temperature_at, out_at, N, H: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, TOKENS: tl.constexpr
):
    image, head = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    q_at = qkv_at + image * N * 3 * H * D + head * D
    k_at, v_at = q_at + H * D, q_at + 2 * H * D
    products, q_squares, k_squares = _added(q_at, k_at, 3 * H * D, 3 * H * D, N, D, TILE, TOKENS)
    temperature = tl.load(temperature_at + head).to(tl.float32)
    p, _, _ = _weights(products, q_squares, k_squares, temperature, D, TILE)
    channel = tl.arange(0, TILE)
    for begin in range(0, N, TOKENS):
        token = begin + tl.arange(0, TOKENS)
        there = (token < N)[:, None] & (channel < D)[None, :]
        v = tl.load(v_at + token[:, None] * (3 * H * D) + channel[None, :], mask=there, other=0.0)
        out = tl.dot(v, tl.trans(p.to(v.dtype)))
        place = image * N * H * D + head * D + token[:, None] * (H * D) + channel[None, :]
        tl.store(out_at + place, out.to(v.dtype), mask=there)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    qkv_at,
    temperature_at,
    slope_at,
    back_at,
    N,
    H: tl.constexpr,
    D: tl.constexpr,
    TILE: tl.constexpr,
    TOKENS: tl.constexpr,
):
    image, head = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    packed, step = image * N * 3 * H * D + head * D, 3 * H * D
    q_at = qkv_at + packed
    k_at, v_at = q_at + H * D, q_at + 2 * H * D
    o_at = slope_at + image * N * H * D + head * D
    products, q_squares, k_squares = _added(q_at, k_at, step, step, N, D, TILE, TOKENS)
    temperature = tl.load(temperature_at + head).to(tl.float32)
    p, q_length, k_length = _weights(products, q_squares, k_squares, temperature, D, TILE)
    p_back, _, _ = _added(o_at, v_at, H * D, step, N, D, TILE, TOKENS)
    s_back = p * (p_back - tl.sum(p * p_back, 1)[:, None]) * temperature
    # rounded first: what is taken off below then is just what the product with it puts on along q and along k
    m = (s_back / q_length[:, None] / k_length[None, :]).to(qkv_at.dtype.element_ty)
    along = m.to(tl.float32) * products
    q_share, k_share = tl.sum(along, 1) / (q_length * q_length), tl.sum(along, 0) / (k_length * k_length)
    channel = tl.arange(0, TILE)
    for begin in range(0, N, TOKENS):
        token = begin + tl.arange(0, TOKENS)
        there = (token < N)[:, None] & (channel < D)[None, :]
        rows = token[:, None] * step + channel[None, :]
        q = tl.load(q_at + rows, mask=there, other=0.0)
        k = tl.load(k_at + rows, mask=there, other=0.0)
        o = tl.load(o_at + token[:, None] * (H * D) + channel[None, :], mask=there, other=0.0)
        q_back = tl.dot(k, tl.trans(m)) - q.to(tl.float32) * q_share[None, :]
        k_back = tl.dot(q, m) - k.to(tl.float32) * k_share[None, :]
        v_back = tl.dot(o, p.to(o.dtype))
        back = back_at + packed + rows
        tl.store(back, q_back.to(q.dtype), mask=there)
        tl.store(back + H * D, k_back.to(q.dtype), mask=there)
        tl.store(back + 2 * H * D, v_back.to(q.dtype), mask=there)


def _sizes(qkv_BN3HD: Tensor) -> dict[str, int]:
    _, _, _, heads, channels = qkv_BN3HD.shape
    tile = max(16, triton.next_power_of_2(channels))
    return {"H": heads, "D": channels, "TILE": tile, "TOKENS": _TOKENS, "num_warps": _WARPS}


@torch.library.custom_op("vitadel::channel_attention", mutates_args=())
def channel_attention(qkv_BN3HD: Tensor, temperature_H: Tensor) -> Tensor:
    """[B, N, H, D]: what attention between channels makes of queries, keys and values that lie side by side."""
    images, tokens, _, heads, channels = qkv_BN3HD.shape
    out = qkv_BN3HD.new_empty(images, tokens, heads, channels)
    _forward[(images * heads,)](qkv_BN3HD.contiguous(), temperature_H, out, tokens, **_sizes(qkv_BN3HD))
    return out


@channel_attention.register_fake
def _(qkv_BN3HD: Tensor, temperature_H: Tensor) -> Tensor:
    images, tokens, _, heads, channels = qkv_BN3HD.shape
    return qkv_BN3HD.new_empty(images, tokens, heads, channels)


@torch.library.custom_op("vitadel::channel_attention_back", mutates_args=())
def _back(qkv_BN3HD: Tensor, temperature_H: Tensor, slope_BNHD: Tensor) -> Tensor:
    images, tokens, _, heads, _ = qkv_BN3HD.shape
    back = torch.empty_like(qkv_BN3HD, memory_format=torch.contiguous_format)
    given = qkv_BN3HD.contiguous(), temperature_H, slope_BNHD.contiguous()
    _backward[(images * heads,)](*given, back, tokens, **_sizes(qkv_BN3HD))
    return back


@_back.register_fake
def _(qkv_BN3HD: Tensor, temperature_H: Tensor, slope_BNHD: Tensor) -> Tensor:
    return torch.empty_like(qkv_BN3HD, memory_format=torch.contiguous_format)


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


def _pull_back(ctx, slope_BNHD: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
    return _back(*ctx.saved_tensors, slope_BNHD), None


channel_attention.register_autograd(_pull_back, setup_context=_remember)
