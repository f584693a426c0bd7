r"""Every channel of a token mixed with that channel of its eight neighbours: a 3 x 3 convolution of tokens as they lie.

Libraries want channels first, and in half precision take many times as long as reading and writing the tokens once
would. Here one program does a strip of tokens and channels, and what it reads nine times comes from the cache. With
:math:`w` the kernel of a channel, :math:`x` the grid of its values, zero outside, and :math:`\dot y` the slope of what
comes out,

.. math:: y_{rs} = b + \sum_{i,j} w_{ij}\, x_{r+i,\,s+j}, \qquad
          \dot x_{rs} = \sum_{i,j} w_{-i,\,-j}\, \dot y_{r+i,\,s+j}, \qquad i, j \in \{-1, 0, 1\}:

the way back is the same walk with the kernel turned around. Weights are taken as given and get no slope.

Shape letters: B images, N tokens, row by row, C channels.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TOKENS, _CHANNELS = 32, 128


@triton.jit
def _mix(  # type: ignore[no-untyped-def]
    x_at,
    weight_at,
    bias_at,
    out_at,
    rows,
    columns,
    C: tl.constexpr,
    TURNED: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    there = channel < C
    image = tl.program_id(0).to(tl.int64) * rows * columns * C
    row, column = token // columns, token % columns
    total = tl.zeros([TOKENS, CHANNELS], tl.float32)
    if not TURNED:
        total += tl.load(bias_at + channel, mask=there, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(9):
        r, c = row + tap // 3 - 1, column + tap % 3 - 1
        inside = (r >= 0) & (r < rows) & (c >= 0) & (c < columns)
        place = image + (r * columns + c)[:, None] * C + channel[None, :]
        near = tl.load(x_at + place, mask=inside[:, None] & there[None, :], other=0.0)
        weight = tl.load(weight_at + channel * 9 + (8 - tap if TURNED else tap), mask=there, other=0.0)
        total += near.to(tl.float32) * weight.to(tl.float32)[None, :]
    kept = (token < rows * columns)[:, None] & there[None, :]
    place = image + token[:, None] * C + channel[None, :]
    tl.store(out_at + place, total.to(out_at.dtype.element_ty), mask=kept)


def _mixed(tokens_BNC: Tensor, weight: Tensor, bias: Tensor, columns: int, *, turned: bool) -> Tensor:
    images, tokens, channels = tokens_BNC.shape
    out = torch.empty_like(tokens_BNC, memory_format=torch.contiguous_format)
    programs = images, triton.cdiv(tokens, _TOKENS), triton.cdiv(channels, _CHANNELS)
    _mix[programs](
        *(tokens_BNC.contiguous(), weight.contiguous(), bias, out, tokens // columns, columns),
        **{"C": channels, "TURNED": turned, "TOKENS": _TOKENS, "CHANNELS": _CHANNELS},
    )
    return out


@torch.library.custom_op("vitadel::neighbours", mutates_args=())
def neighbours(tokens_BNC: Tensor, weight_C133: Tensor, bias_C: Tensor, columns: int) -> Tensor:
    """The tokens of a grid of so many columns, each mixed with its neighbours."""
    return _mixed(tokens_BNC, weight_C133, bias_C, columns, turned=False)


@torch.library.custom_op("vitadel::neighbours_back", mutates_args=())
def _back(slope_BNC: Tensor, weight_C133: Tensor, bias_C: Tensor, columns: int) -> Tensor:
    return _mixed(slope_BNC, weight_C133, bias_C, columns, turned=True)


@neighbours.register_fake
@_back.register_fake
def _(tokens_BNC: Tensor, weight_C133: Tensor, bias_C: Tensor, columns: int) -> Tensor:
    return torch.empty_like(tokens_BNC, memory_format=torch.contiguous_format)


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    _, weight, bias, ctx.columns = inputs
    ctx.save_for_backward(weight, bias)


def _pull_back(ctx, slope_BNC: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[no-untyped-def]
    return _back(slope_BNC, *ctx.saved_tensors, ctx.columns), None, None, None


neighbours.register_autograd(_pull_back, setup_context=_remember)
