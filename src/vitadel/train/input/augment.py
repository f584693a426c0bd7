"""Augmentation on the device, random per image.

No transform synchronizes with the device, and none sums over a batch, so that an image is augmented the same in any
batch. Docstrings state the differences from torchvision and timm.

Shape letters: B images, T attempts, H and W pixels.
"""

import enum
import math
from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Degrees, Positive, Probability, Range, check_ranges
from vitadel.core.rng import RandomStreams
from vitadel.data import Interpolation

# the ends of an interval
Pair = tuple[Positive, Positive]
Jitter = Annotated[float, Range(ge=0, hint="Write 0 for none, or 0.4.")]

# attempts to find a box that fits, as in torchvision and timm
_TRIES = 10


class Augment(Protocol):
    """Pixels in [0, 1] to pixels in [0, 1] of the same shape."""

    def __call__(self, x: Tensor, rng: RandomStreams) -> Tensor:
        """The augmented images; the result for an image does not depend on the batch."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Several transforms, each with its own random numbers."""

    steps: tuple[Augment, ...]

    def __call__(self, x: Tensor, rng: RandomStreams) -> Tensor:
        for number, step in enumerate(self.steps):
            x = step(x, rng.fold(number))
        return x


@dataclass(frozen=True, slots=True)
class Flip:
    """A horizontal flip, with a probability.

    Args:
        probability: The probability of a flip.
    """

    probability: Probability = 0.5

    def __post_init__(self) -> None:
        check_ranges(self)

    def __call__(self, x: Tensor, rng: RandomStreams) -> Tensor:
        mirrored_B = rng.uniform() < self.probability
        return torch.where(_over_pixels(mirrored_B), x.flip(-1), x)


@dataclass(frozen=True, slots=True)
class PadCrop:
    """A random crop of the image padded by `pad` pixels of gray `fill`, flipped with probability 1/2.

    Args:
        pad: The width of the border in pixels.
        fill: The gray value of the border.
        flip: Whether half of the images are flipped horizontally.
    """

    pad: Annotated[int, Range(ge=0, le=256)] = 4
    fill: Annotated[float, Range(ge=0, le=1, hint="Pixels lie in [0, 1].")] = 0.0
    flip: bool = True

    def __post_init__(self) -> None:
        check_ranges(self)

    def __call__(self, x: Tensor, rng: RandomStreams) -> Tensor:
        height, width = x.shape[-2:]
        framed = F.pad(x, [self.pad] * 4, value=self.fill)
        offset = rng.fold(0).randint(2 * self.pad + 1, 2)
        rows = offset[:, 0, None] + torch.arange(height, device=x.device)
        columns = offset[:, 1, None] + torch.arange(width, device=x.device)
        if self.flip:
            mirrored = rng.fold(1).uniform() < 0.5
            columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        image = torch.arange(len(x), device=x.device)[:, None, None]
        return framed.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@dataclass(frozen=True, slots=True)
class ResizedCrop:
    """A box of random area and aspect ratio, resized to the image, and maybe flipped (Szegedy et al. 2015).

    As torchvision's RandomResizedCrop: of ten boxes, with the area uniform in `scale` times the image's and the
    logarithm of width over height uniform in that of `ratio`, the first that fits, anywhere in the image; if none does,
    the largest central box within `ratio`. A box larger than the image never fits, so a `scale` of (0.8, 1.2) draws
    areas of 0.8 to 1, and the whole image if all ten tries are larger.

    The box is cut from an image of the size that comes out, so it is only ever enlarged, where the antialiasing of
    torchvision and Pillow has nothing to average; the kernels are Pillow's (a cubic with a = -1/2, not torch's -3/4).
    Pillow also rounds and clips to 8 bits between its two passes and after them. A crop of a larger original, as
    `PILAugment` takes it, keeps detail that the resized image in memory has lost.

    Args:
        scale: The range of the box's area, as a share of the image's.
        ratio: The range of the box's width over its height.
        flip: Whether half of the images are flipped horizontally.
        interpolation: How the box is resized.
    """

    scale: Pair = (0.08, 1.0)
    ratio: Pair = (3 / 4, 4 / 3)
    flip: bool = True
    interpolation: Interpolation = Interpolation.BICUBIC

    def __post_init__(self) -> None:
        check_ranges(self)
        check_order("ResizedCrop.scale", self.scale)
        check_order("ResizedCrop.ratio", self.ratio)

    def boxes(self, height: int, width: int, rng: RandomStreams) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[B] whole numbers each: top, left, height and width of the image's box."""
        w_BT, h_BT = _sides(rng.fold(0), self.scale, self.ratio, height * width)
        fits_BT = (w_BT > 0) & (w_BT <= width) & (h_BT > 0) & (h_BT <= height)
        found_B, h_B, w_B = _first(fits_BT, h_BT, w_BT)
        whole_h, whole_w = self._fallback(height, width)
        h_B, w_B = torch.where(found_B, h_B, whole_h), torch.where(found_B, w_B, whole_w)
        top_B = torch.where(found_B, rng.fold(1).randint(height - h_B + 1), (height - whole_h) // 2)
        left_B = torch.where(found_B, rng.fold(2).randint(width - w_B + 1), (width - whole_w) // 2)
        return top_B, left_B, h_B, w_B

    def __call__(self, x: Tensor, rng: RandomStreams) -> Tensor:
        height, width = x.shape[-2:]
        top_B, left_B, h_B, w_B = self.boxes(height, width, rng)
        x = _resized(x, 3, left_B, w_B, self.interpolation)
        x = _resized(x, 2, top_B, h_B, self.interpolation).clamp(0, 1)
        return Flip()(x, rng.fold(3)) if self.flip else x

    def _fallback(self, height: int, width: int) -> tuple[int, int]:
        low, high = self.ratio
        if width / height < low:
            return max(1, round(width / low)), width
        return height, max(1, round(height * high)) if width / height > high else width


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue changed in an order drawn per image, as torchvision's ColorJitter does.

    A factor uniform in [max(0, 1 - value), 1 + value] blends the image with black, with its mean gray, or with its gray
    self; hue is shifted by up to `hue` of the color circle. timm's `color_jitter=0.4` is 0.4 three times and no hue.

    Args:
        brightness: The strength of the change of brightness.
        contrast: The strength of the change of contrast.
        saturation: The strength of the change of saturation.
        hue: The largest shift of the hue, as a share of the color circle.
    """

    brightness: Jitter = 0.4
    contrast: Jitter = 0.4
    saturation: Jitter = 0.4
    hue: Annotated[float, Range(ge=0, le=0.5, hint="0.5 is half the color circle.")] = 0.0

    def __post_init__(self) -> None:
        check_ranges(self)

    def __call__(self, x: Tensor, rng: RandomStreams) -> Tensor:
        # a change by 0 has no effect at any position in the order, so all four are always drawn
        order_BT = rng.fold(0).uniform(4).argsort(dim=1, stable=True)
        sizes = (self.brightness, self.contrast, self.saturation)
        factors = [_between(rng.fold(1 + n).uniform(), (max(0.0, 1 - s), 1 + s)) for n, s in enumerate(sizes)]
        shift_B = _between(rng.fold(4).uniform(), (-self.hue, self.hue))
        for position in range(4):
            x = self._changed(x, order_BT[:, position], factors, shift_B)
        return x

    def _changed(self, x: Tensor, which_B: Tensor, factors: list[Tensor], shift_B: Tensor) -> Tensor:
        """Each image with the change of number `which_B`."""
        gray = luminance(x)
        # in float64, a sum rounds to the same float32 in any order in which a batch of this size is summed
        mean = gray.mean((1, 2, 3), keepdim=True, dtype=torch.float64).to(x.dtype)
        which = _over_pixels(which_B)
        toward = torch.where(which == 0, torch.zeros_like(gray), torch.where(which == 1, mean, gray))
        factor_B = torch.where(which_B == 0, factors[0], torch.where(which_B == 1, factors[1], factors[2]))
        blended = _blend(x, toward, factor_B)
        return torch.where(which == 3, hue_shifted(x, shift_B) if self.hue else x, blended)


class Fill(enum.Enum):
    """The content of an erased box."""

    NOISE = "noise"
    ZERO = "zero"


@dataclass(frozen=True, slots=True)
class Erase:
    """A box of random area and aspect ratio filled with noise or black, with a probability (Zhong et al. 2020).

    As timm's RandomErasing: of ten boxes the first that is smaller than the image on both sides, anywhere in
    it; if none is, the image stays whole. `ratio` is height over width. timm fills with N(0, 1), for images that
    are normalized already; here images are pixels in [0, 1], and the noise is uniform in this interval.

    Args:
        probability: The probability that a box is erased.
        area: The range of the box's area, as a share of the image's.
        ratio: The range of the box's height over its width.
        fill: What the box is filled with.
    """

    probability: Probability = 0.25
    area: Pair = (0.02, 1 / 3)
    ratio: Pair = (0.3, 1 / 0.3)
    fill: Fill = Fill.NOISE

    def __post_init__(self) -> None:
        check_ranges(self)
        check_order("Erase.area", self.area)
        check_order("Erase.ratio", self.ratio)

    def __call__(self, x: Tensor, rng: RandomStreams) -> Tensor:
        channels, height, width = x.shape[1:]
        noise = self.fill is Fill.NOISE
        filling = rng.fold(4).uniform(channels, height, width).to(x.dtype) if noise else torch.zeros_like(x)
        return torch.where(self.erased(height, width, rng)[:, None], filling, x)

    def erased(self, height: int, width: int, rng: RandomStreams) -> Tensor:
        """[B, H, W], true where pixels are erased."""
        h_BT, w_BT = _sides(rng.fold(0), self.area, self.ratio, height * width)
        found_B, h_B, w_B = _first((h_BT < height) & (w_BT < width), h_BT, w_BT)
        found_B &= rng.fold(1).uniform() < self.probability
        rows_BH = _inside(rng.fold(2).randint(height - h_B + 1), h_B, height)
        columns_BW = _inside(rng.fold(3).randint(width - w_B + 1), w_B, width)
        return found_B[:, None, None] & rows_BH[:, :, None] & columns_BW[:, None, :]


@dataclass(frozen=True, slots=True)
class Rotate:
    """A rotation about the center by up to `degrees` either way; bilinear, black outside of the image.

    Args:
        degrees: The largest angle in degrees, in either direction.
    """

    degrees: Degrees = 2.0

    def __post_init__(self) -> None:
        check_ranges(self)

    def __call__(self, x: Tensor, rng: RandomStreams) -> Tensor:
        return rotated(x, _between(rng.uniform(), (-self.degrees, self.degrees)))


def rotated(x: Tensor, degrees_B: Tensor) -> Tensor:
    """Each image rotated counter-clockwise about its center by its own angle."""
    height, width = x.shape[-2:]
    angle = torch.deg2rad(degrees_B)[:, None, None].to(x.dtype)
    # pixel centers, counted from the center of the image
    down = (torch.arange(height, device=x.device, dtype=x.dtype) + 0.5 - height / 2)[:, None]
    right = torch.arange(width, device=x.device, dtype=x.dtype) + 0.5 - width / 2
    from_right = angle.cos() * right - angle.sin() * down
    from_down = angle.sin() * right + angle.cos() * down
    grid = torch.stack((from_right / (width / 2), from_down / (height / 2)), dim=-1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False).clamp(0, 1)


def luminance(x: Tensor) -> Tensor:
    """[B, 1, H, W] gray of RGB images, by the weights of ITU-R 601 as torchvision rounds them."""
    red, green, blue = x.split(1, dim=1)
    return 0.2989 * red + 0.587 * green + 0.114 * blue


def hue_shifted(x: Tensor, shift_B: Tensor) -> Tensor:
    """RGB images with each hue shifted by `shift_B` of the color circle; brightness and saturation in HSV stay."""
    red, green, blue = x.split(1, dim=1)
    value, chroma = x.amax(1, keepdim=True), x.amax(1, keepdim=True) - x.amin(1, keepdim=True)
    safe = torch.where(chroma == 0, 1.0, chroma)  # gray has no hue: any will do, but not a division by zero
    sixth = torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    sixth = torch.where(value == red, (green - blue) / safe, sixth)
    # each channel is a trapezium around the circle, in sixths of it: red's falls at 5, green's at 3, blue's at 1
    falls = torch.stack([torch.full_like(sixth[:, 0], fall) for fall in (5.0, 3.0, 1.0)], dim=1)
    position = (falls + sixth + 6 * _over_pixels(shift_B)) % 6
    return value - chroma * torch.minimum(position, 4 - position).clamp(0, 1)


def check_order(name: str, values: Pair) -> None:
    """Refuse an interval whose ends are in the wrong order."""
    low, high = values
    if low > high:
        raise UsageError(f"{name} must be two positive numbers, the smaller first, got ({low:g}, {high:g}). Swap them.")


def _over_pixels(values_B: Tensor) -> Tensor:
    return values_B[:, None, None, None]


def _between(uniform: Tensor, values: tuple[float, float]) -> Tensor:
    low, high = values
    return low + (high - low) * uniform


def _blend(x: Tensor, toward: Tensor, factor_B: Tensor) -> Tensor:
    factor = _over_pixels(factor_B).to(x.dtype)
    return (factor * x + (1 - factor) * toward).clamp(0, 1)


def _sides(rng: RandomStreams, areas: Pair, ratios: Pair, pixels: int) -> tuple[Tensor, Tensor]:
    """[B, T] sides of boxes, the first over the second in `ratios`, of areas in `areas` times `pixels`."""
    area_BT = pixels * _between(rng.fold(0).uniform(_TRIES), areas)
    ratio_BT = _between(rng.fold(1).uniform(_TRIES), (math.log(ratios[0]), math.log(ratios[1]))).exp()
    return (area_BT * ratio_BT).sqrt().round().long(), (area_BT / ratio_BT).sqrt().round().long()


def _first(fits_BT: Tensor, one_BT: Tensor, other_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether any attempt fits, and the sides of the first that does; sides of 1 where none does."""
    first_B1 = fits_BT.to(torch.uint8).argmax(1, keepdim=True)
    found_B = fits_BT.any(1)
    one_B, other_B = (torch.where(found_B, sides.gather(1, first_B1).squeeze(1), 1) for sides in (one_BT, other_BT))
    return found_B, one_B, other_B


def _inside(start_B: Tensor, length_B: Tensor, size: int) -> Tensor:
    """[B, size], true for `length_B` positions from `start_B` on."""
    position = torch.arange(size, device=start_B.device)
    return (position >= start_B[:, None]) & (position < (start_B + length_B)[:, None])


def _resized(x: Tensor, dim: int, start_B: Tensor, length_B: Tensor, interpolation: Interpolation) -> Tensor:
    """`length_B` positions from `start_B` on, resized to the whole of `dim`; pixels outside have no weight."""
    size = x.shape[dim]
    step_B1 = (length_B.to(x.dtype) / size)[:, None]
    center_BN = start_B[:, None] + (torch.arange(size, device=x.device) + 0.5) * step_B1
    reach = 2 if interpolation is Interpolation.BICUBIC else 1
    nearest = torch.floor(center_BN - 0.5).long()
    low, high = start_B[:, None], (start_B + length_B)[:, None] - 1
    shape = [len(x), 1, size, 1] if dim == 2 else [len(x), 1, 1, size]
    total, weights = torch.zeros_like(x), torch.zeros_like(center_BN)
    # taps one by one, not a matrix product: the rounding of a product may change with the size of the batch
    for tap in range(1 - reach, reach + 1):
        position = nearest + tap
        weight = _kernel(position + 0.5 - center_BN, interpolation) * ((position >= low) & (position <= high))
        index = position.clamp(low, high).view(shape).expand(x.shape)
        total = total + weight.view(shape) * x.gather(dim, index)
        weights = weights + weight
    return total / weights.view(shape)


def _kernel(distance: Tensor, interpolation: Interpolation) -> Tensor:
    """The weight of a pixel at this distance (Keys 1981 with a = -1/2, or a triangle)."""
    d = distance.abs()
    if interpolation is Interpolation.BILINEAR:
        return (1 - d).clamp_min(0)
    near = (1.5 * d - 2.5) * d * d + 1
    far = ((-0.5 * d + 2.5) * d - 4) * d + 2
    return torch.where(d < 1, near, torch.where(d < 2, far, 0.0))
