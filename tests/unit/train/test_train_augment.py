"""Augmentation on the device: the distributions of torchvision and timm, per image."""

import math
import random
from collections.abc import Sequence

import pytest
import torch
import torchvision.transforms.functional as peer
from timm.data.random_erasing import RandomErasing
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandomResizedCrop

from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.data import Interpolation
from vitadel.train import PadCrop
from vitadel.train.input.augment import (
    Augment,
    Chain,
    ColorJitter,
    Erase,
    Fill,
    Flip,
    ResizedCrop,
    Rotate,
    hue_shifted,
    rotated,
)

EVERY: dict[str, Augment] = {
    "flip": Flip(),
    "pad-crop": PadCrop(pad=2, fill=0.5),
    "crop": ResizedCrop(),
    "crop-bilinear": ResizedCrop(interpolation=Interpolation.BILINEAR),
    "jitter": ColorJitter(hue=0.3),
    "erase": Erase(probability=0.7),
    "erase-black": Erase(probability=0.7, fill=Fill.ZERO),
    "rotate": Rotate(degrees=40),
    "chain": Chain((ResizedCrop(), ColorJitter(), Erase(probability=1.0), Rotate())),
}


def images(count: int, height: int = 9, width: int = 12) -> Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(count))


def streams(count: int, seed: int = 0) -> RandomStreams:
    return RandomStreams.of(seed, torch.arange(count))


@pytest.mark.parametrize("augment", EVERY.values(), ids=EVERY)
def test_results_do_not_depend_on_the_batch(augment: Augment) -> None:
    x = images(40)
    before = x.clone()
    whole = augment(x, streams(40))
    assert torch.equal(x, before)
    assert whole.shape == x.shape
    assert whole.dtype == torch.float32
    assert whole.min() >= 0
    assert whole.max() <= 1
    assert not torch.equal(whole, x)
    assert torch.equal(whole, augment(x, streams(40)))
    assert not torch.equal(whole, augment(x, streams(40, seed=1)))
    for rows in ([7], [3, 39, 20], list(range(39, 9, -1))):
        part = augment(x[rows], RandomStreams.of(0, torch.tensor(rows)))
        assert torch.equal(part, whole[rows])


@pytest.mark.parametrize("augment", EVERY.values(), ids=EVERY)
def test_black_and_white_stay_inside_the_box(augment: Augment) -> None:
    x = (images(30, 8, 8) > 0.5).float()
    out = augment(x, streams(30))
    assert out.min() >= 0
    assert out.max() <= 1
    assert out.isfinite().all()


@pytest.mark.parametrize("augment", EVERY.values(), ids=EVERY)
def test_augmentation_does_not_synchronize_with_the_device(augment: Augment) -> None:
    # tensors on "meta" have no values: reading one, or making one elsewhere and mixing the two, is an error
    x = torch.empty(5, 3, 8, 9, device="meta")
    out = augment(x, RandomStreams.of(0, torch.arange(5, device="meta")))
    assert (out.shape, out.device) == (x.shape, x.device)


def test_steps_of_a_chain_have_independent_random_numbers() -> None:
    x, rng = images(64), streams(64)
    assert torch.equal(Chain(())(x, rng), x)
    expected = Flip()(Flip()(x, rng.fold(0)), rng.fold(1))
    assert torch.equal(Chain((Flip(), Flip()))(x, rng), expected)
    assert not torch.equal(expected, x)  # with the same random numbers, the second would undo the first


def test_flips_have_the_given_probability() -> None:
    x = images(1).expand(4000, -1, -1, -1)
    out = Flip(probability=0.25)(x, streams(4000))
    mirrored = (out == x.flip(-1)).flatten(1).all(1)
    assert ((out == x).flatten(1).all(1) ^ mirrored).all()
    assert mirrored.float().mean().item() == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 4000))
    assert torch.equal(Flip(0.0)(x, streams(4000)), x)
    assert torch.equal(Flip(1.0)(x, streams(4000)), x.flip(-1))


# Resized crops


@pytest.mark.parametrize("interpolation", Interpolation)
def test_a_crop_matches_torchvision(interpolation: Interpolation) -> None:
    x, rng = images(60, 12, 17), streams(60)
    augment = ResizedCrop(flip=False, interpolation=interpolation)
    boxes = torch.stack(augment.boxes(12, 17, rng), dim=1).tolist()
    assert len({tuple(box) for box in boxes}) > 40
    out = augment(x, rng)
    mode = InterpolationMode(interpolation.value)
    for image, (top, left, height, width), got in zip(x, boxes, out, strict=True):
        # antialias=True only chooses the kernel here: torch has a = -3/4 without it, Pillow's -1/2 with it
        expected = peer.resized_crop(image, top, left, height, width, [12, 17], mode, antialias=True)
        torch.testing.assert_close(got, expected.clamp(0, 1), rtol=0, atol=2e-6)


def test_a_crop_matches_pillow_up_to_rounding() -> None:
    # of medium contrast, for Pillow clips between its two passes
    x, rng = (80 + images(20, 16, 16) * 95).round() / 255, streams(20)
    augment = ResizedCrop(flip=False)
    for image, box, got in zip(x, torch.stack(augment.boxes(16, 16, rng), 1).tolist(), augment(x, rng), strict=True):
        picture = peer.resized_crop(peer.to_pil_image(image), *box, [16, 16], InterpolationMode.BICUBIC)
        torch.testing.assert_close(got, peer.to_tensor(picture), rtol=0, atol=1.6 / 255)


def moments(seen: Tensor) -> tuple[Tensor, Tensor]:
    """Means of all columns and of the products of every two of them, and the errors of these means."""
    products = (seen[:, :, None] * seen[:, None, :]).flatten(1)
    seen = torch.cat([seen, products], 1)
    return seen.mean(0), seen.std(0) / math.sqrt(len(seen))


def assert_one_law(ours: Tensor, theirs: Tensor) -> None:
    """[N, columns] each: that chance explains how they differ."""
    (our_mean, our_error), (their_mean, their_error) = moments(ours), moments(theirs)
    assert ((our_mean - their_mean).abs() <= 4.5 * (our_error.square() + their_error.square()).sqrt() + 1e-9).all()


def described(boxes: Tensor, height: int, width: int) -> Tensor:
    """The relative position of a box, its sides, its shape, and whether it is the whole image."""
    top, left, h, w = boxes.double().unbind(1)
    whole = (h == height) & (w == width)
    down, right = top / (height - h).clamp_min(1) - 0.5, left / (width - w).clamp_min(1) - 0.5
    return torch.stack([down, right, h / height, w / width, (w / h).log(), whole.double()], 1)


@pytest.mark.parametrize(
    ("scale", "ratio", "height", "width"),
    [
        ((0.08, 1.0), (3 / 4, 4 / 3), 32, 32),
        ((0.08, 1.0), (3 / 4, 4 / 3), 20, 31),
        ((0.8, 1.2), (0.95, 1.05), 32, 32),  # the thesis's; more than the image never fits
        ((0.1, 0.4), (1.5, 2.0), 32, 32),  # wider than high
        ((0.9, 1.0), (3 / 4, 4 / 3), 16, 64),  # never fits: the fallback, too wide
        ((0.9, 1.0), (3 / 4, 4 / 3), 64, 16),  # too high
        ((1.5, 2.0), (3 / 4, 4 / 3), 10, 12),  # the whole image
    ],
)
def test_boxes_have_the_distribution_of_torchvision(
    scale: tuple[float, float], ratio: tuple[float, float], height: int, width: int
) -> None:
    ours = torch.stack(ResizedCrop(scale, ratio).boxes(height, width, streams(20000)), dim=1)
    image = torch.empty(3, height, width)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = torch.tensor([RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(3000)])
    assert (ours >= 0).all()
    assert (ours[:, 0] + ours[:, 2] <= height).all()
    assert (ours[:, 1] + ours[:, 3] <= width).all()
    assert_one_law(described(ours, height, width), described(theirs, height, width))


def test_without_a_fitting_box_the_crop_is_central() -> None:
    top, left, height, width = ResizedCrop((0.9, 1.0)).boxes(16, 64, streams(5))
    assert [top.unique().tolist(), left.unique().tolist()] == [[0], [(64 - 21) // 2]]
    assert [height.unique().tolist(), width.unique().tolist()] == [[16], [21]]


def test_the_whole_image_is_unchanged() -> None:
    x = images(6)
    out = ResizedCrop((1.0, 1.0), (12 / 9, 12 / 9), flip=False)(x, streams(6))
    torch.testing.assert_close(out, x, rtol=0, atol=1e-6)


def test_crops_are_flipped_half_the_time() -> None:
    x = images(1, 6, 6).expand(1000, -1, -1, -1)
    plain, flipped = (ResizedCrop(flip=flip)(x, streams(1000)) for flip in (False, True))
    mirrored = (flipped == plain.flip(-1)).flatten(1).all(1)
    assert ((flipped == plain).flatten(1).all(1) | mirrored).all()
    assert 430 < mirrored.sum() < 570


# Color


def adjusted(image: Tensor, order: Sequence[int], factors: Sequence[float], turn: float) -> Tensor:
    """The result of torchvision for an image."""
    for change in order:
        if change == 3:
            image = peer.adjust_hue(image, turn)
        else:
            adjust = (peer.adjust_brightness, peer.adjust_contrast, peer.adjust_saturation)[change]
            image = adjust(image, factors[change])
    return image


@pytest.mark.parametrize("which", range(3))
def test_each_color_change_matches_torchvision(which: int) -> None:
    sizes = [0.0, 0.0, 0.0]
    sizes[which] = 0.6
    x, rng = images(30), streams(30)
    out = ColorJitter(*sizes)(x, rng)
    factor_B = 0.4 + 1.2 * rng.fold(1 + which).uniform()
    assert factor_B.min() < 0.6
    assert factor_B.max() > 1.4
    for image, factor, got in zip(x, factor_B.tolist(), out, strict=True):
        torch.testing.assert_close(got, adjusted(image, [which], [factor] * 3, 0), rtol=0, atol=1e-5)


def test_hue_matches_torchvision_for_grays_and_pure_colors() -> None:
    pure = torch.tensor([[r, g, b] for r in (0.0, 1.0) for g in (0.0, 1.0) for b in (0.0, 1.0)])
    twins = torch.tensor([[0.2, 0.7, 0.7], [0.7, 0.2, 0.7], [0.7, 0.7, 0.2], [0.4, 0.4, 0.4]])
    some = torch.rand(20, 3, generator=torch.Generator().manual_seed(0))
    pixels = torch.cat([pure, twins, some]).T[None, :, :, None]
    for turn in (-0.5, -0.2, 0.0, 0.1, 0.34, 0.5):
        expected = peer.adjust_hue(pixels, turn)
        torch.testing.assert_close(hue_shifted(pixels, torch.tensor([turn])), expected, rtol=0, atol=2e-6)


def test_color_changes_are_applied_in_the_drawn_order() -> None:
    x, rng = images(200, 4, 4), streams(200)
    out = ColorJitter(0.4, 0.5, 1.5, 0.2)(x, rng)
    order_BT = rng.fold(0).uniform(4).argsort(dim=1)
    assert len({tuple(order) for order in order_BT.tolist()}) == 24
    lows, highs = (0.6, 0.5, 0.0), (1.4, 1.5, 2.5)
    factors = [
        low + (high - low) * rng.fold(1 + n).uniform() for n, (low, high) in enumerate(zip(lows, highs, strict=True))
    ]
    turn_B = 0.4 * rng.fold(4).uniform() - 0.2
    for row, got in enumerate(out):
        expected = adjusted(x[row], order_BT[row].tolist(), [float(f[row]) for f in factors], float(turn_B[row]))
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)


def test_zero_jitter_changes_nothing() -> None:
    x = images(5)
    assert torch.equal(ColorJitter(0, 0, 0, 0)(x, streams(5)), x)


# Erasing


@pytest.mark.parametrize("ratio", [(0.3, 1 / 0.3), (2.0, 3.0)])
def test_erased_boxes_have_the_distribution_of_timm(ratio: tuple[float, float]) -> None:
    height, width = 20, 32
    ours = Erase(probability=0.6, ratio=ratio).erased(height, width, streams(20000))
    state = random.getstate()
    random.seed(0)
    timm = RandomErasing(0.6, min_aspect=ratio[0], max_aspect=ratio[1], mode="const", device="cpu")
    theirs = timm(torch.ones(4000, 1, height, width))[:, 0] == 0
    random.setstate(state)
    lost, their_lost = (boxes.flatten(1).any(1) for boxes in (ours, theirs))
    assert_one_law(lost[:, None].double(), their_lost[:, None].double())
    our_boxes, their_boxes = bounds(ours[lost]), bounds(theirs[their_lost])
    assert_one_law(described(our_boxes, height, width), described(their_boxes, height, width))


def bounds(lost: Tensor) -> Tensor:
    """[B, 4]: top, left, height and width of the one box in each."""
    rows, columns = lost.any(2), lost.any(1)
    assert torch.equal(rows[:, :, None] & columns[:, None, :], lost)
    return torch.stack([rows.int().argmax(1), columns.int().argmax(1), rows.sum(1), columns.sum(1)], 1)


def test_erasing_fills_boxes_with_uniform_noise() -> None:
    x = images(300)
    rng = streams(300)
    augment = Erase(probability=1.0)
    lost = augment.erased(9, 12, rng)[:, None].expand_as(x)
    out = augment(x, rng)
    assert torch.equal(out[~lost], x[~lost])
    noise = out[lost]
    assert noise.mean().item() == pytest.approx(0.5, abs=4 / math.sqrt(12 * len(noise)))
    assert noise.square().mean().item() == pytest.approx(1 / 3, abs=4 * 0.3 / math.sqrt(len(noise)))
    assert (Erase(1.0, fill=Fill.ZERO)(x, rng)[lost] == 0).all()
    assert torch.equal(Erase(0.0)(x, rng), x)


def test_a_box_as_large_as_the_image_is_never_erased() -> None:
    x = images(10, 8, 8)
    assert torch.equal(Erase(1.0, area=(1.0, 1.0), ratio=(1.0, 1.0))(x, streams(10)), x)


# Rotation


@pytest.mark.parametrize("degrees", [-170.0, -30.0, -2.0, 0.0, 1.5, 90.0])
def test_rotation_matches_torchvision(degrees: float) -> None:
    x = images(2, 9, 14)
    expected = peer.rotate(x, degrees, InterpolationMode.BILINEAR)
    torch.testing.assert_close(rotated(x, torch.full((2,), degrees)), expected, rtol=0, atol=2e-5)


def test_rotation_angles_are_uniform() -> None:
    x = images(1).expand(500, -1, -1, -1)
    out = Rotate(degrees=5.0)(x, streams(500))
    assert len(out.flatten(1).unique(dim=0)) == 500
    angles = 10 * streams(500).uniform() - 5
    torch.testing.assert_close(out, rotated(x, angles))
    assert angles.min() < -4.9
    assert angles.max() > 4.9


@pytest.mark.parametrize("ratio", [(100.0, 100.0), (0.01, 0.01), (1e-38, 1e-38), (3e38, 3e38)])
def test_a_box_of_any_shape_has_a_pixel_on_each_side(ratio: tuple[float, float]) -> None:
    _, _, h_B, w_B = ResizedCrop(ratio=ratio).boxes(8, 8, streams(4))
    assert min(int(h_B.min()), int(w_B.min())) == 1
    assert ResizedCrop(ratio=ratio)(images(4), streams(4)).isfinite().all()


# Invalid settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Flip(1.5), r"Flip.probability must lie in \[0, 1\], got 1.5. Write for example 0.5"),
        (lambda: Erase(-0.1), r"Erase.probability must lie in \[0, 1\], got -0.1"),
        (lambda: Erase(area=(0.3, 0.1)), r"Erase.area must be two positive numbers.*got \(0.3, 0.1\)"),
        (lambda: Erase(ratio=(0.0, 1.0)), r"Erase.ratio\[0\] must be positive, got 0.0"),
        (lambda: ResizedCrop(scale=(0.0, 1.0)), r"ResizedCrop.scale\[0\] must be positive, got 0.0"),
        (lambda: ResizedCrop(ratio=(2.0, 1.0)), r"ResizedCrop.ratio must be two positive numbers"),
        (lambda: ColorJitter(brightness=-1), "ColorJitter.brightness must not be negative, got -1"),
        (lambda: ColorJitter(hue=0.6), r"ColorJitter.hue must lie in \[0, 0.5\], got 0.6"),
        (lambda: Rotate(200), r"Rotate.degrees must lie in \[0, 180\], got 200"),
    ],
)
def test_invalid_settings_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(UsageError, match=message):
        make()
