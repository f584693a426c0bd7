"""Perturbations as pictures, and the attack of the studies of perturbations.

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
from vitadel.core.numeric import Range
from vitadel.threats import Threat, bounds_each_pixel

_LUMA = (0.299, 0.587, 0.114)


class Sign(enum.Enum):
    """Which way round a perturbation is shown: as papers write it, or as Debenedetti's code stores it."""

    ADDED = "adversarial-clean"
    REMOVED = "clean-adversarial"


class Stretch(enum.Enum):
    """What becomes black and white.

    `eps`: the radius (Debenedetti 2022), (d + eps) / (2 eps). `level`: one of 255 gray levels whatever the radius
    (Bhojanapalli et al. 2021), what is larger is cut off; at a radius of 1/255 both are the same.
    """

    EPS = "eps"
    LEVEL = "level"


StepSize = Annotated[float, Range(gt=0, hint="Leave it out for 1.5 eps / steps.")]


def pgd(steps: int, step_size: float | None, threat: Threat, *, random_start: bool = True) -> PGD:
    """The attack of Debenedetti (2022): from a random start, with steps of 1.5 eps / steps if no length is given."""
    return PGD(steps=steps, step_size=step_size or 1.5 * threat.eps / steps, random_start=random_start)


def as_bytes(delta: Tensor, threat: Threat, stretch: Stretch, sign: Sign) -> Tensor:
    """uint8 [B, C, H, W]: perturbations as images, 0 in the middle.

    Where a threat bounds no single pixel, every image is stretched to its own largest value.
    """
    turned = delta if sign is Sign.ADDED else -delta
    if stretch is Stretch.LEVEL:
        reach = torch.full((len(delta), 1, 1, 1), 1 / 255)
    elif bounds_each_pixel(threat):
        reach = torch.full((len(delta), 1, 1, 1), threat.eps)
    else:
        reach = delta.abs().amax((1, 2, 3), keepdim=True).clamp_min(torch.finfo(delta.dtype).tiny)
    return (255 * ((turned + reach) / (2 * reach)).clamp(0, 1)).round().byte()


def gray(x: Tensor) -> Tensor:
    """[B, 1, H, W]: the brightness of images in color."""
    weights = torch.tensor(_LUMA if x.shape[1] == 3 else [1 / x.shape[1]] * x.shape[1])
    return (x.float() * weights.view(1, -1, 1, 1)).sum(1, keepdim=True)


def how_stretched(threat: Threat, stretch: Stretch, sign: Sign) -> str:
    """A sentence for captions."""
    turned = "adversarial minus clean" if sign is Sign.ADDED else "clean minus adversarial, as the authors' code has it"
    if stretch is Stretch.LEVEL:
        reach = "one gray level in either direction is black or white, more is cut off"
    elif bounds_each_pixel(threat):
        reach = "black is -eps, white is +eps"
    else:
        reach = "black and white are the largest change in either direction of that image"
    return f"Perturbations are {turned}; mid-gray is no change, {reach}."


def finite_mean_interval(values: Sequence[float]) -> dict[str, float]:
    """The mean over images that have a value and its normal 95% interval, which a single image does not have."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return {"mean": known[0] if known else math.nan, "low": math.nan, "high": math.nan}
    return dict(zip(("mean", "low", "high"), stats.mean_interval(known), strict=True))
