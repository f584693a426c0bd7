"""Brightness, saturation and contrast, in closed form.

The original goes to hue, saturation and value and back. Only V = max(RGB) and S = (V - min(RGB)) / V ever change, and
RGB = V (1 - S k) with k fixed by the hue, so the way there and back is one multiplication.
"""

import torch
from torch import Tensor

from vitadel.draws import Draws

_TINY = 1e-8


def brightness(x: Tensor, draws: Draws, more: float) -> Tensor:
    """A higher value at the same hue and saturation; black becomes grey."""
    value = x.amax(1, keepdim=True)
    brighter = (value + more).clamp_max_(1)
    return torch.where(value > 0, x * (brighter / value.clamp_min(_TINY)), brighter)


def saturate(x: Tensor, draws: Draws, times: float, plus: float) -> Tensor:
    """Another saturation at the same hue and value; a grey has hue 0, so it turns red where `plus` is above 0."""
    value, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    span = value - least
    saturation = (span / value.clamp_min(_TINY) * times + plus).clamp_(0, 1)
    coloured = value - (value - x) * (value * saturation / span.clamp_min(_TINY))
    if not plus:
        return torch.where(span > 0, coloured, x)
    faded = value * (1 - saturation)
    return torch.where(span > 0, coloured, torch.cat([value, faded, faded], 1))


def contrast(x: Tensor, draws: Draws, factor: float) -> Tensor:
    """Every channel drawn towards its own mean."""
    return torch.lerp(x.mean((2, 3), keepdim=True), x, factor)
