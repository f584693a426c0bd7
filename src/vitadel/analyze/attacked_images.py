"""Perturbations as pictures, and the attack used by studies of perturbations.

Shape letters: B images, C channels, H rows, W columns.
"""

import enum
import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from vitadel.attacks import PGD
from vitadel.core import stats
from vitadel.core.numeric import LUMA, Range
from vitadel.threats import Threat, bounds_each_pixel


class Sign(enum.Enum):
    """The sign of a perturbation in pictures: as papers define it, or as Debenedetti's code stores it."""

    ADDED = "adversarial-clean"
    REMOVED = "clean-adversarial"


class Stretch(enum.Enum):
    """The change that is shown as black or white.

    `eps`: the radius (Debenedetti 2022), (d + eps) / (2 eps). `level`: one of 255 gray levels for any radius
    (Bhojanapalli et al. 2021), where larger changes are clipped. At a radius of 1/255 both are the same.
    """

    EPS = "eps"
    LEVEL = "level"


StepSize = Annotated[float, Range(gt=0, hint="Leave it out for 1.5 eps / steps.")]


def pgd(steps: int, step_size: float | None, threat: Threat, *, random_start: bool = True) -> PGD:
    """The attack of Debenedetti (2022): PGD from a random start, with a step size of 1.5 eps / steps by default."""
    return PGD(steps=steps, step_size=step_size or 1.5 * threat.eps / steps, random_start=random_start)


def as_bytes(delta: Tensor, threat: Threat, stretch: Stretch, sign: Sign) -> Tensor:
    """uint8 [B, C, H, W]: perturbations as images; zero is mid-gray.

    If the threat does not bound single pixels, each image is scaled by its own largest value.
    """
    signed = delta if sign is Sign.ADDED else -delta
    if stretch is Stretch.LEVEL:
        largest = torch.full((len(delta), 1, 1, 1), 1 / 255)
    elif bounds_each_pixel(threat):
        largest = torch.full((len(delta), 1, 1, 1), threat.eps)
    else:
        largest = delta.abs().amax((1, 2, 3), keepdim=True).clamp_min(torch.finfo(delta.dtype).tiny)
    return (255 * ((signed + largest) / (2 * largest)).clamp(0, 1)).round().byte()


def gray(x: Tensor) -> Tensor:
    """[B, 1, H, W]: images in gray; the channel mean if they are not RGB."""
    weights = torch.tensor(LUMA if x.shape[1] == 3 else [1 / x.shape[1]] * x.shape[1])
    return (x.float() * weights.view(1, -1, 1, 1)).sum(1, keepdim=True)


def how_stretched(threat: Threat, stretch: Stretch, sign: Sign) -> str:
    """The sentence of captions that explains `as_bytes`."""
    order = "adversarial minus clean" if sign is Sign.ADDED else "clean minus adversarial, as the authors' code has it"
    if stretch is Stretch.LEVEL:
        scale = "one gray level in either direction is black or white, more is cut off"
    elif bounds_each_pixel(threat):
        scale = "black is -eps, white is +eps"
    else:
        scale = "black and white are the largest change in either direction of that image"
    return f"Perturbations are {order}; mid-gray is no change, {scale}."


def finite_mean_interval(values: Sequence[float]) -> dict[str, float]:
    """The mean of the finite values and its normal 95% interval, which is NaN for a single value."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return {"mean": known[0] if known else math.nan, "low": math.nan, "high": math.nan}
    return dict(zip(("mean", "low", "high"), stats.mean_interval(known), strict=True))
