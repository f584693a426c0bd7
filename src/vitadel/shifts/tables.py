"""The 19 corruptions of Hendrycks & Dietterich 2019 (arXiv:1903.12261) and their parameters at severities 1 to 5.

`imagenet` is the table behind ImageNet-C, made for 224 px, `cifar` the one behind CIFAR-10-C and CIFAR-100-C, made
for 32 px. Lengths are in pixels, so a severity means another strength at another size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vitadel.shifts import blur, color, digital, frost, noise, spatter, weather
from vitadel.shifts.jpeg import jpeg

Parameters = tuple[float, ...]
GROUPS = ("noise", "blur", "weather", "digital", "extra")
TABLES = ("imagenet", "cifar")


@dataclass(frozen=True, slots=True)
class CorruptionKind:
    """One corruption: its group, what it does, the function, and that function's parameters per severity.

    `dtype` is what the function gets its pixels in: float64 where the original calculates in it, so that values that
    end on or next to a whole gray level are cut as the original cuts them.
    """

    group: str
    about: str
    apply: Callable[..., Tensor]
    imagenet: tuple[Parameters, ...]
    cifar: tuple[Parameters, ...]
    dtype: torch.dtype = torch.float64

    def parameters(self, table: str, severity: int) -> Parameters:
        return (self.imagenet if table == "imagenet" else self.cifar)[severity - 1]


def _each(*values: float) -> tuple[Parameters, ...]:
    return tuple((value,) for value in values)


def _jpeg(x: Tensor, rng: object, quality: int) -> Tensor:
    return jpeg(x, quality)


CORRUPTIONS: dict[str, CorruptionKind] = {
    "gaussian_noise": CorruptionKind(
        "noise",
        "normal noise on every pixel value",
        noise.gaussian_noise,
        _each(0.08, 0.12, 0.18, 0.26, 0.38),
        _each(0.04, 0.06, 0.08, 0.09, 0.10),
    ),
    "shot_noise": CorruptionKind(
        "noise",
        "Poisson noise, as of few photons",
        noise.shot_noise,
        _each(60, 25, 12, 5, 3),
        _each(500, 250, 100, 75, 50),
        torch.float32,
    ),
    "impulse_noise": CorruptionKind(
        "noise",
        "pixel values turned black or white",
        noise.impulse_noise,
        _each(0.03, 0.06, 0.09, 0.17, 0.27),
        _each(0.01, 0.02, 0.03, 0.05, 0.07),
        torch.float32,
    ),
    "defocus_blur": CorruptionKind(  # radius, softness
        "blur",
        "every point a disk, as out of focus",
        blur.defocus_blur,
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    ),
    "glass_blur": CorruptionKind(  # sigma, reach, passes
        "blur",
        "pixels copied from random neighbors, as through frosted glass",
        blur.glass_blur,
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    ),
    "motion_blur": CorruptionKind(  # radius, sigma
        "blur",
        "smeared along a random direction",
        blur.motion_blur,
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        torch.float32,
    ),
    "zoom_blur": CorruptionKind(  # end of the zoom, step
        "blur",
        "the mean of magnifications, as zooming while exposing",
        blur.zoom_blur,
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        torch.float32,
    ),
    "snow": CorruptionKind(  # mean, spread, zoom, threshold, radius, sigma, share of the image kept
        "weather",
        "driven snow over a paler image",
        weather.snow,
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        torch.float32,
    ),
    "frost": CorruptionKind(  # share of the image, share of the ice
        "weather",
        "ice on the window",
        frost.frost,
        ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
        ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    ),
    "fog": CorruptionKind(  # thickness, decay of the plasma
        "weather",
        "drifting plasma, the image fainter",
        weather.fog,
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    ),
    "brightness": CorruptionKind(
        "weather",
        "a higher value in hue, saturation, value",
        color.brightness,
        _each(0.1, 0.2, 0.3, 0.4, 0.5),
        _each(0.05, 0.1, 0.15, 0.2, 0.3),
    ),
    "contrast": CorruptionKind(
        "digital",
        "channels drawn toward their means",
        color.contrast,
        _each(0.4, 0.3, 0.2, 0.1, 0.05),
        _each(0.75, 0.5, 0.4, 0.3, 0.15),
    ),
    "elastic_transform": CorruptionKind(  # strength, sigma, jitter of the affine map
        "digital",
        "a random affine map and a smooth displacement",
        digital.elastic_transform,
        ((488, 170.8, 24.4), (488, 19.52, 48.8), (12.2, 2.44, 4.88), (17.08, 2.44, 4.88), (29.28, 2.44, 4.88)),
        ((0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96)),
        torch.float32,
    ),
    "pixelate": CorruptionKind(
        "digital",
        "coarse pixels",
        digital.pixelate,
        _each(0.6, 0.5, 0.4, 0.3, 0.25),
        _each(0.95, 0.9, 0.85, 0.75, 0.65),
        torch.float32,
    ),
    "jpeg_compression": CorruptionKind(
        "digital",
        "a round trip through JPEG of low quality",
        _jpeg,
        _each(25, 18, 15, 10, 7),
        _each(80, 65, 58, 50, 40),
        torch.float32,
    ),
    "speckle_noise": CorruptionKind(
        "extra",
        "normal noise in proportion to the pixel value",
        noise.speckle_noise,
        _each(0.15, 0.2, 0.35, 0.45, 0.6),
        _each(0.06, 0.1, 0.12, 0.16, 0.2),
    ),
    "gaussian_blur": CorruptionKind(
        "extra", "every point a Gaussian", blur.gaussian_blur, _each(1, 2, 3, 4, 6), _each(0.4, 0.6, 0.7, 0.8, 1)
    ),
    "spatter": CorruptionKind(  # mean, spread, sigma, threshold, amount, mud rather than water
        "extra",
        "water, then mud, on the lens",
        spatter.spatter,
        (
            (0.65, 0.3, 4, 0.69, 0.6, False),
            (0.65, 0.3, 3, 0.68, 0.6, False),
            (0.65, 0.3, 2, 0.68, 0.5, False),
            (0.65, 0.3, 1, 0.65, 1.5, True),
            (0.67, 0.4, 1, 0.65, 1.5, True),
        ),
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, False),
            (0.65, 0.1, 0.8, 0.7, 0.5, False),
            (0.65, 0.3, 1, 0.69, 0.5, False),
            (0.65, 0.1, 0.7, 0.69, 0.6, True),
            (0.65, 0.1, 0.5, 0.68, 0.6, True),
        ),
        torch.float32,
    ),
    "saturate": CorruptionKind(  # saturation times, plus
        "extra",
        "another saturation, lower and then higher",
        color.saturate,
        ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
        ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    ),
}
