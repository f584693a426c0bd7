"""Brightness, saturation and contrast, to the last bit of the original's float64.

The original goes to hue, saturation and value and back. Only V = max(RGB) and S = (V - min(RGB)) / V ever change: the
largest channel becomes the new V, the smallest V (1 - S), and the hue says how far between the two the third one lies.
8-bit images give values that end on whole gray levels, or next to them by rounding, and are cut there: the operations
are scikit-image's, in its order.
"""

import torch
from torch import Tensor

from vitadel.core.rng import RandomStreams
from vitadel.shifts.filters import divide


def brightness(x: Tensor, rng: RandomStreams, more: float) -> Tensor:
    """A higher value at the same hue and saturation; black becomes gray."""
    most, least = _extremes(x)
    return _colored(x, most, least, _saturation(most, least), most.add(more).clamp_max_(1))


def saturate(x: Tensor, rng: RandomStreams, times: float, plus: float) -> Tensor:
    """Another saturation at the same hue and value; a gray has hue 0, so it turns red where `plus` is above 0."""
    most, least = _extremes(x)
    return _colored(x, most, least, _saturation(most, least).mul_(times).add_(plus).clamp_(0, 1), most)


def _extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    """[B, 1, H, W] twice: the largest and the smallest channel."""
    red, green, blue = x.split(1, 1)
    return torch.maximum(red, green).max(blue), torch.minimum(red, green).min(blue)


def _saturation(most: Tensor, least: Tensor) -> Tensor:
    return (most - least).div_(most).masked_fill_(most == least, 0)


def _colored(x: Tensor, most: Tensor, least: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """The hues of x with another saturation and value [B, 1, H, W]."""
    gray, sixths = most == least, _sixths(x, most, most - least)
    sector = sixths.floor()
    share = sixths.sub_(sector)
    share = torch.where(sector.mul_(0.5).frac_() > 0, share, 1 - share)
    low, middle = value * (1 - saturation), value * share.mul_(saturation).neg_().add_(1)
    out = torch.where(x == most, value, torch.where(x == least, low, middle))
    out[:, 1:].copy_(torch.where(gray, low, out[:, 1:]))  # hue 0: red is the largest channel, the others the smallest
    return out


def _sixths(x: Tensor, most: Tensor, span: Tensor) -> Tensor:
    """The hue [B, 1, H, W] in [0, 6); of two equal channels the later one decides. Gray gives NaN, unused."""
    red, green, blue = x.split(1, 1)
    hue = torch.where(green == most, (blue - red).div_(span).add_(2), (green - blue).div_(span))
    hue = divide(torch.where(blue == most, (red - green).div_(span).add_(4), hue), 6)
    return hue.add_(hue < 0).mul_(6)


def contrast(x: Tensor, rng: RandomStreams, factor: float) -> Tensor:
    """Every channel drawn toward its own mean."""
    mean = _mean_in_order(x) if x.is_cpu else x.mean((2, 3), keepdim=True)
    return (x - mean).mul_(factor).add_(mean)


def _mean_in_order(x: Tensor) -> Tensor:
    """[B, C, 1, 1]: pixels added one after the other, as numpy does along two axes, for its last bits."""
    pixels = x.flatten(2)
    return (pixels.cumsum(2)[..., -1:] / pixels.shape[2])[..., None]
