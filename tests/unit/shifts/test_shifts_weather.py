"""Snow and fog against slow versions of themselves."""

import math

import numpy as np
import pytest
import torch

from vitadel.core.rng import RandomStreams
from vitadel.shifts import CORRUPTIONS
from vitadel.shifts.fast_rng import normal, uniform
from vitadel.shifts.filters import floor_levels
from vitadel.shifts.weather import fog, plasma, snow

RNG = RandomStreams.of(0, torch.arange(2))


def slow_plasma(size: int, decay: float, u: np.ndarray) -> np.ndarray:
    """Diamond-square point by point on a torus."""
    heights, wobble, step, used = np.zeros((size, size)), 100.0, size, 0
    while step >= 2:
        half, side = step // 2, size // step
        noise = (u[used : used + 3 * side * side].reshape(3, side, side) * 2 - 1) * wobble * wobble
        used += 3 * side * side
        points = [(row, col) for row in range(side) for col in range(side)]

        def mean(row: int, col: int, *offsets: tuple[int, int]) -> float:
            return float(np.mean([heights[(row + down) % size, (col + right) % size] for down, right in offsets]))

        h = half
        for row, col in points:
            y, x = row * step + h, col * step + h
            heights[y, x] = mean(y, x, (-h, -h), (-h, h), (h, -h), (h, h)) + noise[0, row, col]
        for row, col in points:
            y, x = row * step, col * step + h
            heights[y, x] = mean(y, x, (-h, 0), (h, 0), (0, -h), (0, h)) + noise[1, row, col]
            y, x = row * step + h, col * step
            heights[y, x] = mean(y, x, (-h, 0), (h, 0), (0, -h), (0, h)) + noise[2, row, col]
        step, wobble = half, wobble / decay
    assert used == len(u)
    heights -= heights.min()
    return heights / heights.max()


@pytest.mark.parametrize("decay", [1.4, 2, 3])
def test_plasma_matches_diamond_square(decay: float) -> None:
    u = uniform(RNG, 32 * 32 - 1)
    ours = plasma(32, decay, u)
    for image in range(2):
        slow = slow_plasma(32, decay, u[image].double().numpy())
        torch.testing.assert_close(ours[image].double(), torch.from_numpy(slow), rtol=0, atol=2e-6)


def test_fog_keeps_the_maximum() -> None:
    x = torch.rand(2, 3, 40, 57)
    cloud = plasma(64, 2, uniform(RNG, 64 * 64 - 1))[:, None, :40, :57]
    brightest = x.flatten(1).amax(1)[:, None, None, None]
    expected = (x + 1.5 * cloud) * brightest / (brightest + 1.5)
    torch.testing.assert_close(fog(x, RNG, 1.5, 2), expected, rtol=0, atol=1e-6)
    assert (fog(x, RNG, 1.5, 2).flatten(1).amax(1) <= brightest.flatten() + 1e-6).all()
    assert not fog(torch.zeros(1, 3, 32, 32), RandomStreams.of(0, torch.tensor([0])), 1.5, 2).any()  # black stays black


def test_snow_over_a_constant_image() -> None:
    """A single tap and a high threshold leave the paler image; with flakes, the sum is symmetric about the center."""
    x = torch.full((2, 3, 32, 48), 0.2)
    bare = snow(x, RNG, 0.1, 0.3, 2, 9.0, 10, 4, 0.8)
    paler = torch.full_like(bare, 0.8 * 0.2 + 0.2 * (0.2 * 1.5 + 0.5))
    torch.testing.assert_close(bare, paler, rtol=0, atol=1e-6)
    flakes = snow(x, RNG, *CORRUPTIONS["snow"].imagenet[0]) - bare  # type: ignore[arg-type]
    torch.testing.assert_close(flakes, flakes.flip(-2, -1), rtol=0, atol=1e-6)
    assert flakes.min() >= -1e-6
    assert ((flakes * 255).round() / 255 - flakes < 1e-5).all()


def test_snow_has_the_share_of_flakes_of_its_threshold() -> None:
    rng = RandomStreams.of(0, torch.arange(40))
    x = torch.zeros(40, 3, 64, 64)
    rung = (0.1, 0.3, 1, 0.5, 0, 1, 1.0)  # no zoom, no motion, no fading: the map itself, twice
    y = snow(x, rng, *rung)[:, 0]
    values = normal(rng.fold(0), 64, 64) * 0.3 + 0.1
    flakes = floor_levels(values.masked_fill(values < 0.5, 0))
    torch.testing.assert_close(y.float(), flakes + flakes.flip(-2, -1), rtol=0, atol=1e-6)
    share = 0.5 * math.erfc((0.5 - 0.1) / 0.3 / math.sqrt(2))
    error = math.sqrt(share * (1 - share) / flakes.numel())
    assert abs((flakes > 0).double().mean().item() - share) < 4 * error
