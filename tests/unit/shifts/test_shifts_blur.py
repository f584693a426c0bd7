"""Blurs against slow loops."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from vitadel.core.rng import RandomStreams
from vitadel.shifts import CORRUPTIONS, SEVERITIES
from vitadel.shifts import filters as filters
from vitadel.shifts.blur import (
    copied,
    defocus_blur,
    disk,
    glass_blur,
    magnified,
    motion_blur,
    offsets,
    smear,
    smear_by_index,
    zoom_blur,
    zoom_factors,
)

RNG = RandomStreams.of(0, torch.arange(2))


def images(*shape: int) -> Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 255).round() / 255


@pytest.mark.parametrize(("sigma", "truncate", "edge", "mode"), [
    (0.05, 4, filters.nearest, "nearest"),
    (0.7, 4, filters.nearest, "nearest"),
    (6, 4, filters.nearest, "nearest"),
    (2.44, 3, filters.mirrored, "reflect"),
    (170.8, 3, filters.mirrored, "reflect"),
])  # fmt: skip
def test_gaussian_blur_matches_scipy(sigma: float, truncate: float, edge: filters.Edge, mode: str) -> None:
    x = images(2, 3, 120, 70)
    ours = filters.gaussian_filter(x, sigma, truncate, edge)
    theirs = ndimage.gaussian_filter(x.double().numpy(), (0, 0, sigma, sigma), mode=mode, truncate=truncate)
    torch.testing.assert_close(ours.double(), torch.from_numpy(theirs), rtol=0, atol=2e-6)


def test_disk_kernels() -> None:
    for (radius, softness), weight in zip(
        CORRUPTIONS["defocus_blur"].imagenet, (1, 1, 1, 1.012975, 1.010786), strict=True
    ):
        kernel = disk(radius, softness)
        assert kernel.sum().item() == pytest.approx(weight, abs=1e-6)  # the last two are OpenCV's, border and all
        torch.testing.assert_close(kernel, kernel.T, rtol=0, atol=1e-9)
        torch.testing.assert_close(kernel, kernel.flip(0), rtol=0, atol=1e-9)
    sharp = disk(3, 0.1)
    assert (sharp > 1e-6).sum() == 29  # whole points with x^2 + y^2 <= 9
    assert sharp[8, 8].item() == pytest.approx(1 / 29)
    w = math.exp(-0.5 / 0.4**2)
    center = 1 / (1 + 2 * w)
    assert disk(0.3, 0.4)[8, 8].item() == pytest.approx(center**2)  # a point, smoothed
    assert disk(0.3, 0.4)[8, 9].item() == pytest.approx(center**2 * w)


@pytest.mark.parametrize("shape", [(20, 31), (32, 32)])
@pytest.mark.parametrize("rung", [(3, 0.1), (10, 0.5), (1.5, 0.1)])
def test_defocus_blur_matches_a_direct_sum(shape: tuple[int, int], rung: tuple[float, float]) -> None:
    x = images(1, 3, *shape)
    slow = ndimage.correlate(x.double().numpy(), disk(*rung).double().numpy()[None, None], mode="mirror")  # reflect-101
    torch.testing.assert_close(defocus_blur(x, RNG, *rung).double(), torch.from_numpy(slow), rtol=0, atol=2e-6)


def scan(values: list[list[int]], down: Tensor, right: Tensor, reach: int) -> list[list[int]]:
    """The original's loop, with the copy that its swap amounts to."""
    height, width = down.shape
    for row in range(height - reach, reach, -1):
        for col in range(width - reach, reach, -1):
            values[row][col] = values[row + int(down[row, col])][col + int(right[row, col])]
    return values


@pytest.mark.parametrize("reach", [1, 2, 3, 4])
def test_copies_follow_the_scan(reach: int) -> None:
    rng = torch.Generator().manual_seed(reach)
    down, right = torch.randint(-reach, reach, (2, 3, 40, 33), generator=rng)
    ours = copied(down, right, reach).view(3, 40, 33)
    for image in range(3):
        places = torch.arange(40 * 33).view(40, 33).tolist()
        assert ours[image].tolist() == scan(places, down[image], right[image], reach)


@pytest.mark.parametrize("reach", [1, 2, 3, 4])
def test_pairs_of_offsets_are_uniform(reach: int) -> None:
    down, right = offsets(RandomStreams.of(0, torch.arange(3)), reach, 150, 160)
    pairs = (((down + reach) * 2 * reach) + right + reach).long().flatten()
    counts = pairs.bincount(minlength=4 * reach**2).double()
    assert len(counts) == 4 * reach**2
    expected = len(pairs) / len(counts)
    chi2, freedom = ((counts - expected).square() / expected).sum().item(), len(counts) - 1
    assert abs(chi2 - freedom) < 4 * math.sqrt(2 * freedom)


def test_copies_follow_chains_to_their_end() -> None:
    down, right = torch.zeros(2, 1, 9, 40, dtype=torch.long)
    right[:] = 1  # every pixel copies its right neighbor, which has copied its own
    places = torch.arange(9 * 40).view(9, 40).tolist()
    assert copied(down, right, 2).view(9, 40).tolist() == scan(places, down[0], right[0], 2)


def test_glass_blur_composes_its_passes() -> None:
    x = images(2, 3, 24, 24)
    y = glass_blur(x, RNG, 0.05, 2, 3)  # too narrow a Gaussian to blur: pixels are moved and nothing else
    for image in range(2):
        whole = {tuple(pixel) for pixel in (x[image].flatten(1).T * 255).round().int().tolist()}
        assert {tuple(pixel) for pixel in (y[image].flatten(1).T * 255).round().int().tolist()} <= whole
        assert torch.equal(y[image, :, :3], x[image, :, :3])  # a border of `reach` and one more at the top is unchanged
        assert torch.equal(y[image, :, -1], x[image, :, -1])
        assert not torch.equal(y[image], x[image])


def slow_smear(image: np.ndarray, degrees: float, radius: int, sigma: float) -> np.ndarray:
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    height, width = image.shape[-2:]
    out = np.zeros(image.shape)
    for step, weight in enumerate(weights):
        down = math.ceil(step * math.sin(math.radians(degrees)) - 0.5)
        right = math.ceil(step * math.cos(math.radians(degrees)) - 0.5)
        rows = np.clip(np.arange(height) + down, 0, height - 1)
        cols = np.clip(np.arange(width) + right, 0, width - 1)
        out += weight * image[:, rows][:, :, cols]
    return out


@pytest.mark.parametrize("degrees", [-135.0, -100.0, -45.0, -13.7, 0.0, 31.0, 44.9])
def test_smear_matches_a_slow_loop(degrees: float) -> None:
    x = images(2, 3, 18, 29)
    ours = smear(x, torch.tensor([degrees, 0.5 * degrees]), 10, 3)
    for image, angle in enumerate((degrees, 0.5 * degrees)):
        slow = slow_smear(x[image].double().numpy(), angle, 10, 3)
        torch.testing.assert_close(ours[image].double(), torch.from_numpy(slow), rtol=0, atol=1e-6)


def test_smearing_by_index_matches_slices() -> None:
    x = images(2, 3, 21, 16)
    down, right = torch.tensor([[0, 1, -2, 3], [0, -1, -1, 5]]), torch.tensor([[0, 1, 2, 3], [0, 1, 1, 30]])
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1])
    slow = torch.zeros_like(x)
    for image in range(2):
        for tap in range(4):
            rows = (torch.arange(21) + down[image, tap]).clamp(0, 20)
            cols = (torch.arange(16) + right[image, tap]).clamp(0, 15)
            slow[image] += weights[tap] * x[image][:, rows][:, :, cols]
    torch.testing.assert_close(smear_by_index(x, down, right, weights), slow, rtol=0, atol=1e-6)


def test_motion_blur_angles_are_within_45_degrees() -> None:
    x = torch.zeros(400, 3, 33, 33)
    x[:, :, 16, 16] = 1
    y = motion_blur(x, RandomStreams.of(0, torch.arange(400)), 10, 3)
    peak = torch.exp(-torch.arange(21.0).square() / 18)
    assert y[:, :, 16, 16].unique().item() * 255 == pytest.approx((peak[0] / peak.sum() * 255).round().item())
    hit = y[:, 0] > 0
    rows, cols = hit.any(2), hit.any(1)
    assert not cols[:, 17:].any()  # a pixel takes from those to its right, so a point is smeared to the left
    assert rows[:, :16].any()
    assert rows[:, 17:].any()
    assert (rows.sum(1) <= cols.sum(1)).all()


def test_zoom_blur_counts_and_factors() -> None:
    counts = [len(zoom_factors(*rung)) for rung in CORRUPTIONS["zoom_blur"].imagenet]
    assert counts == [12, 16, 11, 13, 11]
    assert zoom_factors(1.11, 0.01)[-1] == pytest.approx(1.11)
    assert zoom_factors(1.31, 0.03)[-1] == pytest.approx(1.3)


def slow_zoom(plane: np.ndarray, factor: float) -> np.ndarray:
    size = len(plane)
    crop = math.ceil(size / factor)
    top = (size - crop) // 2
    large = ndimage.zoom(plane[top : top + crop, top : top + crop], factor, order=1)
    trim = (len(large) - size) // 2
    return large[trim : trim + size, trim : trim + size]


@pytest.mark.parametrize("size", [32, 97, 224])
@pytest.mark.parametrize("factor", [1.0, 1.01, 1.12, 1.3, 1.75, 2.25, 3, 4.5])
def test_magnification_matches_scipy_zoom(size: int, factor: float) -> None:
    x = images(1, size, size)
    slow = slow_zoom(x[0].double().numpy(), factor)
    torch.testing.assert_close(magnified(x, factor)[0].double(), torch.from_numpy(slow), rtol=0, atol=2e-5)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_zoom_blur_is_the_mean_of_its_zooms(severity: int) -> None:
    x = images(1, 3, 64, 64)
    rung = CORRUPTIONS["zoom_blur"].imagenet[severity - 1]
    factors = zoom_factors(*rung)
    planes = x[0].double().numpy()
    total = planes + sum(np.stack([slow_zoom(plane, factor) for plane in planes]) for factor in factors)
    slow = torch.from_numpy(total / (len(factors) + 1))
    torch.testing.assert_close(zoom_blur(x, RNG, *rung)[0].double(), slow, rtol=0, atol=2e-5)
