"""A round trip through JPEG: Pillow's on the processor, the same arithmetic in torch on a GPU.

Both give the same pixels, bit for bit (tests/unit/shifts/test_shifts_jpeg.py). What libjpeg does is integer arithmetic
in every step: color conversion in 16-bit fixed point, chroma halved both ways, the accurate integer DCT, division by
the quality's table, and back, with chroma doubled by a triangle filter. Planes are [B, H, W] whole numbers in float64,
which holds every intermediate sum exactly and which a GPU can multiply as matrices.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from io import BytesIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from vitadel.shifts.filters import divide

# ITU T.81, tables K.1 and K.2
_LUMA = """
16 11 10 16  24  40  51  61   12 12 14 19  26  58  60  55   14 13 16 24  40  57  69  56   14 17 22 29  51  87  80  62
18 22 37 56  68 109 103  77   24 35 55 64  81 104 113  92   49 64 78 87 103 121 120 101   72 92 95 98 112 100 103  99
"""
_CHROMA = """
17 18 24 47 99 99 99 99   18 21 26 66 99 99 99 99   24 26 56 99 99 99 99 99   47 66 99 99 99 99 99 99
99 99 99 99 99 99 99 99   99 99 99 99 99 99 99 99   99 99 99 99 99 99 99 99   99 99 99 99 99 99 99 99
"""
# the cosines of the accurate integer DCT times sqrt(8) 2**13, each made of rounded constants as libjpeg makes it
_COSINES = (
    (8192, 8192, 8192, 8192),
    (11363, 9633, 6437, 2260),
    (10703, 4433, -4433, -10703),
    (9633, -2259, -11362, -6436),
    (8192, -8192, -8192, 8192),
    (6437, -11362, 2261, 9633),
    (4433, -10704, 10704, -4433),
    (2260, -6436, 9633, -11363),
)
_TO_YCC = ((19595, 38470, 7471), (-11059, -21709, 32768), (32768, -27439, -5329))
# images in float64 at a time, to limit memory
_AT_A_TIME = 128


def jpeg(x: Tensor, quality: int) -> Tensor:
    """Images in [0, 1] on the 8-bit grid after a round trip through JPEG of this quality, chroma halved (4:2:0)."""
    return by_pillow(x, quality) if x.is_cpu else by_torch(x, quality)


def by_pillow(x: Tensor, quality: int) -> Tensor:
    pixels = (x * 255).round_().byte().numpy()
    threads = min(torch.get_num_threads(), len(pixels))
    if threads > 1:  # Pillow lets go of the interpreter's lock
        with ThreadPoolExecutor(threads) as pool:
            stored = list(pool.map(_stored, pixels, [quality] * len(pixels)))
    else:
        stored = [_stored(image, quality) for image in pixels]
    return torch.from_numpy(np.stack(stored)).to(x.dtype).div_(255)


def _stored(planes: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    file = BytesIO()
    Image.merge("RGB", [Image.fromarray(plane) for plane in planes]).save(file, "JPEG", quality=quality)
    return np.stack([np.asarray(plane) for plane in Image.open(file).split()])


def by_torch(x: Tensor, quality: int) -> Tensor:
    return torch.cat([_round_trip(part, quality) for part in x.split(_AT_A_TIME)])


def _round_trip(x: Tensor, quality: int) -> Tensor:
    height, width = x.shape[-2:]
    luma, *chroma = _to_ycc((x * 255).round_().double())
    planes = [_quantized(luma, _table(_LUMA, quality, x.device))]
    for plane in chroma:
        halved = _quantized(_halved(plane), _table(_CHROMA, quality, x.device))
        planes.append(_doubled(halved[:, : (height + 1) // 2, : (width + 1) // 2]))
    y, blue, red = (plane[:, :height, :width] for plane in planes)
    return divide(_to_rgb(y, blue - 128, red - 128).to(x.dtype), 255)


def _fixed(value: Tensor, bits: int) -> Tensor:
    """Divided by 2**bits, rounded down, as a shift to the right does it."""
    return (value * 2.0**-bits).floor_()


def _to_ycc(rgb: Tensor) -> list[Tensor]:
    half, middle = 1 << 15, 128 << 16
    offsets = (half, middle + half - 1, middle + half - 1)
    r, g, b = rgb.unbind(1)
    return [
        _fixed(r * of_r + g * of_g + b * of_b + offset, 16)
        for (of_r, of_g, of_b), offset in zip(_TO_YCC, offsets, strict=True)
    ]


def _to_rgb(y: Tensor, blue: Tensor, red: Tensor) -> Tensor:
    half = 1 << 15
    r = y + _fixed(red * 91881 + half, 16)
    g = y + _fixed(half - blue * 22554 - red * 46802, 16)
    b = y + _fixed(blue * 116130 + half, 16)
    return torch.stack([r, g, b], 1).clamp_(0, 255)


def _padded(plane: Tensor, rows: int, cols: int) -> Tensor:
    """Repeat the last row and column until the sides are multiples of `rows` and `cols`."""
    down, right = -plane.shape[1] % rows, -plane.shape[2] % cols
    return pad(plane[:, None], (0, right, 0, down), mode="replicate")[:, 0] if down or right else plane


def _halved(plane: Tensor) -> Tensor:
    """Means of 2 x 2 pixels; halves are rounded down and up in turn."""
    whole = _padded(plane, 2, 16)
    total = whole[:, ::2, ::2] + whole[:, ::2, 1::2] + whole[:, 1::2, ::2] + whole[:, 1::2, 1::2]
    bias = torch.arange(total.shape[2], device=plane.device) % 2 + 1
    return _fixed(total + bias, 2)


def _doubled(plane: Tensor) -> Tensor:
    """Twice as many rows and columns; each new pixel is 3/4 of the nearest old one and 1/4 of the next, both ways."""
    padded = pad(plane[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    near = 3 * padded[:, 1:-1]
    tall = torch.stack([near + padded[:, :-2], near + padded[:, 2:]], 2).flatten(1, 2)
    near = 3 * tall[:, :, 1:-1]
    left, right = _fixed(near + tall[:, :, :-2] + 8, 4), _fixed(near + tall[:, :, 2:] + 7, 4)
    return torch.stack([left, right], 3).flatten(2)


def _quantized(plane: Tensor, table: Tensor) -> Tensor:
    """Into 8 x 8 blocks, to frequencies, to multiples of the table, and back."""
    whole = _padded(plane, 8, 8)
    batch, height, width = whole.shape
    blocks = whole.view(batch, height // 8, 8, width // 8, 8).transpose(2, 3) - 128
    cosines = _cosines(plane.device)
    rows = _fixed(blocks @ cosines.T + (1 << 10), 11)
    frequencies = _fixed(cosines @ rows + (1 << 14), 15)  # 8 times too large, as libjpeg leaves them
    kept = frequencies.sign() * ((frequencies.abs() + 4 * table) / (8 * table)).floor_() * table
    cols = _fixed(cosines.T @ kept + (1 << 10), 11)
    back = _fixed(cols @ cosines + (1 << 17), 18) + 128
    return back.clamp_(0, 255).transpose(2, 3).reshape(batch, height, width)


@cache
def _cosines(device: torch.device) -> Tensor:
    left = torch.tensor(_COSINES, dtype=torch.float64)
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(4)[
        :, None
    ]  # even cosines are symmetric, odd ones antisymmetric
    return torch.cat([left, sign * left.flip(1)], 1).to(device)


@cache
def _table(base: str, quality: int, device: torch.device) -> Tensor:
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    steps = (torch.tensor([int(word) for word in base.split()]) * scale + 50) // 100
    return steps.clamp(1, 255).double().view(8, 8).to(device)
