"""Rotations and translations by a handful of numbers per image, instead of one per pixel.

Shape letters: B images, M transformations.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, Degrees, NonNegative, check_ranges
from vitadel.core.rng import RandomStreams

# a grid that memory holds: the published ones have up to 2511 transformations
_LARGEST_GRID = 1_000_000


@dataclass(frozen=True, slots=True)
class RotateTranslate:
    """Every rotation about the center, followed by every translation, up to a largest angle and length.

    A transformation is three numbers (down, right, degrees), the translation in pixels. What comes in from outside is
    black. As a grid (Engstrom et al. 2019, arXiv:1712.02779), angles and lengths are evenly spaced from end to end.

    Args:
        max_translation: The longest translation down and to the right, in pixels.
        max_rotation: The largest angle in degrees.
        translations: Lengths of the grid in either direction, an odd number.
        rotations: Angles of the grid, an odd number.
    """

    max_translation: NonNegative
    max_rotation: Degrees = 30.0
    translations: Count = 9
    rotations: Count = 31

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.translations % 2 == 0 or self.rotations % 2 == 0:
            raise UsageError(
                "RotateTranslate.translations and rotations are odd, so that the identity is among them, got "
                f"{self.translations} and {self.rotations}. Write odd numbers."
            )
        if (size := self.translations**2 * self.rotations) > _LARGEST_GRID:
            raise UsageError(
                f"RotateTranslate has {self.translations} x {self.translations} translations and {self.rotations} "
                f"rotations: {size} transformations, more than {_LARGEST_GRID}. Write for example "
                "translations=9,rotations=31."
            )

    def grid(self) -> Tensor:
        """[M, 3]: all transformations, angle by angle; the identity is in the middle."""
        lengths = _evenly(self.max_translation, self.translations)
        angles = _evenly(self.max_rotation, self.rotations)
        angle, down, right = torch.meshgrid(angles, lengths, lengths, indexing="ij")
        return torch.stack([down, right, angle], -1).flatten(0, 2)

    def sample(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        """Each image [B, 3, H, W] under its own random transformation, uniform in all three numbers."""
        limits = (self.max_translation, self.max_translation, self.max_rotation)
        ends = torch.tensor(limits, dtype=torch.float64, device=x0.device)
        return rotated_translated(x0, (2 * rng.uniform(3, dtype=torch.float64) - 1) * ends)


def rotated_translated(x: Tensor, transform_B3: Tensor) -> Tensor:
    r"""Each image rotated counter-clockwise about its center, then translated, by its own (down, right, degrees).

    One bilinear interpolation for both: a pixel at :math:`p`, measured from the center, is read at
    :math:`R^{-1}(p - t)`. The identity returns an image bit for bit.

    Args:
        x: [B, 3, H, W] in [0, 1].
        transform_B3: [B, 3] the transformation of each.
    """
    height, width = x.shape[-2:]
    down, right, degrees = transform_B3.to(device=x.device, dtype=torch.float64).unbind(1)
    # rows of an image grow downwards, so a counter-clockwise rotation is a clockwise one in their coordinates
    cos, sin = torch.cos(torch.deg2rad(degrees)), torch.sin(torch.deg2rad(degrees))
    theta = torch.stack(
        [
            torch.stack([cos, -sin * height / width, (-cos * right + sin * down) * 2 / width], 1),
            torch.stack([sin * width / height, cos, (-sin * right - cos * down) * 2 / height], 1),
        ],
        1,
    )
    grid = affine_grid(theta.to(x.dtype), list(x.shape), align_corners=False)
    rotated = grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    identity_B = (transform_B3 == 0).all(1).to(x.device)
    # an interpolation may end outside the box by a rounding error
    return torch.where(identity_B.view(-1, 1, 1, 1), x, rotated.clamp(0, 1))


def _evenly(end: float, count: int) -> Tensor:
    return torch.linspace(-end, end, count, dtype=torch.float64) if count > 1 else torch.zeros(1, dtype=torch.float64)
