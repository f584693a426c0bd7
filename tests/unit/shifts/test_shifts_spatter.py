"""The steps of spatter against slow versions, and the whole on images with known results."""

import heapq
import math

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from vitadel.core.rng import RandomStreams
from vitadel.shifts import CORRUPTIONS
from vitadel.shifts.fast_rng import normal
from vitadel.shifts.spatter import box, distances, edges, equalized, relief, spatter

RNG = RandomStreams.of(0, torch.arange(2))
MASK = [(0, 1, 1.0), (1, 0, 1.0), (1, 1, 1.4), (1, 2, 2.1969), (2, 1, 2.1969)]


def slow_distances(marked: np.ndarray, farthest: float) -> np.ndarray:
    """Dijkstra over the steps of the mask."""
    field = np.where(marked, 0.0, farthest)
    queue = [(0.0, int(row), int(col)) for row, col in np.argwhere(marked)]
    steps = {(a * s, b * t, length) for a, b, length in MASK for s in (1, -1) for t in (1, -1)}
    while queue:
        far, row, col = heapq.heappop(queue)
        for down, right, length in steps:
            y, x = row + down, col + right
            if 0 <= y < field.shape[0] and 0 <= x < field.shape[1] and far + length < field[y, x] - 1e-12:
                field[y, x] = far + length
                heapq.heappush(queue, (far + length, y, x))
    return field


def test_distances_are_shortest_paths() -> None:
    u = torch.rand(3, 37, 52, generator=torch.Generator().manual_seed(0))
    marked = u < torch.tensor([0.001, 0.01, 0.1]).view(3, 1, 1)
    ours = distances(marked, 20)
    for image in range(3):
        slow = slow_distances(marked[image].numpy(), 20)
        torch.testing.assert_close(ours[image].double(), torch.from_numpy(slow), rtol=0, atol=2e-5)
    assert (distances(torch.zeros(1, 20, 20, dtype=torch.bool), 20) == 20).all()


def slow_edges(plane: np.ndarray, low: float, high: float) -> np.ndarray:
    """Canny by loops: integer Sobel, suppression by sector, hysteresis by connected parts."""
    wide = np.pad(plane.astype(np.int64), 1, mode="edge")
    height, width = plane.shape
    sobel = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    dx, dy = (ndimage.correlate(wide, kernel)[1:-1, 1:-1] for kernel in (sobel, sobel.T))
    size = np.pad(np.abs(dx) + np.abs(dy), 1)
    thin = np.zeros((height, width), dtype=bool)
    for y in range(height):
        for x in range(width):
            here, across, down = size[y + 1, x + 1], dx[y, x], dy[y, x]
            angle = math.degrees(math.atan2(abs(down), abs(across)))
            if here <= low:
                continue
            if angle < 22.5:
                thin[y, x] = here > size[y + 1, x] and here >= size[y + 1, x + 2]
            elif angle > 67.5:
                thin[y, x] = here > size[y, x + 1] and here >= size[y + 2, x + 1]
            else:
                s = -1 if (across < 0) != (down < 0) else 1
                thin[y, x] = here > size[y, x + 1 - s] and here > size[y + 2, x + 1 + s]
    parts, _ = ndimage.label(thin, np.ones((3, 3)))
    strong = np.unique(parts[thin & (size[1:-1, 1:-1] > high)])
    return thin & np.isin(parts, strong)


def drops(count: int, side: int, sigma: float) -> Tensor:
    noise = torch.rand(count, side, side, generator=torch.Generator().manual_seed(3)).double().numpy()
    smooth = np.stack([ndimage.gaussian_filter(plane, sigma) for plane in noise])
    smooth = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    return torch.from_numpy(np.floor(np.where(smooth < 0.6, 0, smooth) * 255)).float()


def test_edges_match_canny() -> None:
    plane = torch.cat([drops(2, 48, 2), drops(1, 48, 0.8), drops(1, 48, 6)])
    ours = edges(plane, 50, 150)
    assert ours.any((1, 2)).all()
    for image in range(len(plane)):
        assert np.array_equal(ours[image].numpy(), slow_edges(plane[image].numpy(), 50, 150))


def test_weak_edges_are_kept_if_connected_to_strong_ones() -> None:
    ramp = torch.linspace(90, 15, 60).round()  # a step that fades along its length, from strong to weak
    plane = torch.zeros(2, 20, 60)
    plane[:, 10:] = torch.stack([ramp, ramp.clamp_max(30)])[:, None]
    result = edges(plane, 50, 150)
    assert result[0, 8:12].any(0).all()
    assert not result[1].any()


def test_equalization_matches_counting() -> None:
    plane = torch.randint(3, 40, (2, 16, 17), generator=torch.Generator().manual_seed(4)).float()
    plane[0] = 7
    ours = equalized(plane)
    assert torch.equal(ours[0], plane[0])  # one level has nowhere to go
    values = plane[1].flatten()
    lowest = (values == values.min()).sum()
    for value in values.unique():
        rank = (values <= value).sum() - lowest
        assert ours[1].flatten()[values == value].unique().item() == round(255 * rank.item() / (272 - lowest.item()))
    assert ours[1].min() == 0
    assert ours[1].max() == 255


@pytest.mark.parametrize("rest", [14, 90, 180, 510])
def test_equalization_rounds_halves_as_opencv(rest: int) -> None:
    """One rounding in 255 / rest, one in the product: where that ends on a half, the even level is taken."""
    scale = np.float32(255) / np.float32(rest)
    for rank in range(1, rest):
        plane = torch.cat([torch.zeros(2), torch.ones(rank), torch.full((rest - rank,), 2.0)])[None, None]
        assert equalized(plane)[0, 0, 2].item() == np.rint(np.float32(rank) * scale), rank


def test_box_mirrors_about_the_outermost_pixels() -> None:
    plane = torch.rand(1, 9, 12)
    slow = ndimage.uniform_filter(plane[0].double().numpy(), 3, mode="mirror")
    torch.testing.assert_close(box(plane)[0].double(), torch.from_numpy(slow), rtol=0, atol=1e-6)


def test_relief_matches_a_direct_computation() -> None:
    plane = drops(2, 40, 3)
    ours = relief(plane)
    for image in range(2):
        near = slow_distances(slow_edges(plane[image].numpy(), 50, 150), 20)
        soft = np.floor(np.round(ndimage.uniform_filter(near, 3, mode="mirror"), 6))
        even = equalized(torch.from_numpy(soft)[None].float())[0].double().numpy()
        kernel = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
        lit = ndimage.correlate(even, kernel, mode="mirror").clip(0, 255)
        assert np.array_equal(ours[image].numpy(), np.round(ndimage.uniform_filter(lit, 3, mode="mirror")))


def test_mud_covers_pixels_of_high_noise() -> None:
    rung = CORRUPTIONS["spatter"].imagenet[3]
    mean, spread, sigma, threshold, amount, _ = rung
    x = torch.ones(2, 3, 40, 40)
    y = spatter(x, RNG, *rung)  # type: ignore[arg-type]
    noise = (normal(RNG, 40, 40) * spread + mean).double().numpy()
    for image in range(2):
        liquid = ndimage.gaussian_filter(noise[image], sigma, mode="nearest")
        cover = ndimage.gaussian_filter((liquid > threshold).astype(float), amount, mode="nearest")
        cover = torch.from_numpy(np.where(cover < 0.8, 0, cover))
        for channel, brown in enumerate((63, 42, 20)):
            expected = 1 - cover + cover * brown / 255
            torch.testing.assert_close(y[image, channel].double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("severity", [1, 2, 3])
def test_water_adds_its_color(severity: int) -> None:
    rung = CORRUPTIONS["spatter"].imagenet[severity - 1]
    y = spatter(torch.zeros(2, 3, 64, 64), RNG, *rung)  # type: ignore[arg-type]
    depth = y / (torch.tensor([175, 238, 238]).view(3, 1, 1) / 255)
    torch.testing.assert_close(depth[:, 0], depth[:, 2], rtol=0, atol=1e-6)
    torch.testing.assert_close(depth.amax((1, 2, 3)), torch.full((2,), rung[4]), rtol=0, atol=1e-6)
    assert depth.min() == 0


def test_without_drops_the_image_is_unchanged() -> None:
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(spatter(x, RNG, 0.0, 0.01, 4, 0.69, 0.6, False), x)
