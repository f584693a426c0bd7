"""Noise against its closed forms, within sampling error."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from vitadel.core.rng import RandomStreams
from vitadel.shifts import CORRUPTIONS
from vitadel.shifts.noise import (
    alias_tables,
    gaussian_noise,
    impulse_noise,
    shot_noise,
    speckle_noise,
    truncated_poisson,
)

RNG = RandomStreams.of(0, torch.arange(4))
COUNT = 4 * 3 * 64 * 64


def flat(level: int) -> Tensor:
    return torch.full((4, 3, 64, 64), level / 255)


def z(values: Tensor, mean: float, variance: float) -> float:
    return float((values.double().mean() - mean) / math.sqrt(variance / values.numel()))


def table_values(name: str) -> list[float]:
    return [rung[0] for rung in CORRUPTIONS[name].imagenet + CORRUPTIONS[name].cifar]


@pytest.mark.parametrize("sigma", table_values("gaussian_noise"))
def test_gaussian_noise_has_the_standard_deviation_of_the_table(sigma: float) -> None:
    noise = gaussian_noise(flat(51), RNG, sigma) - 0.2
    assert abs(z(noise, 0, sigma**2)) < 4
    assert abs(z(noise.double().square(), sigma**2, 2 * sigma**4)) < 4


@pytest.mark.parametrize("sigma", table_values("speckle_noise"))
def test_speckle_noise_grows_with_the_pixel(sigma: float) -> None:
    for level in (51, 204):
        noise = speckle_noise(flat(level), RNG, sigma) - level / 255
        assert abs(z(noise.double().square(), (sigma * level / 255) ** 2, 2 * (sigma * level / 255) ** 4)) < 4
    assert not speckle_noise(flat(0), RNG, sigma).any()


@pytest.mark.parametrize("amount", table_values("impulse_noise"))
def test_impulse_noise_is_half_salt_half_pepper(amount: float) -> None:
    y = impulse_noise(flat(51), RNG, amount)
    for share, expected in (((y == 1), amount / 2), ((y == 0), amount / 2), ((y == 51 / 255), 1 - amount)):
        assert abs(z(share.float(), expected, expected * (1 - expected))) < 4
    assert not torch.equal(y[:, 0] == 1, y[:, 1] == 1)  # channels on their own


@pytest.mark.parametrize("count", table_values("shot_noise"))
def test_alias_tables_give_the_exact_poisson_distribution(count: float) -> None:
    most = int(count)
    own, alias = (table.view(256, most + 1).double() for table in alias_tables(most, torch.device("cpu")))
    columns = torch.zeros(256, most + 1, dtype=torch.float64)
    columns.scatter_add_(1, alias.long(), 1 - own)
    columns = (columns + own) / (most + 1)
    for level in (0, 1, 100, 255):
        exact = stats.poisson.pmf(range(most + 1), level / 255 * count)
        exact[-1] = stats.poisson.sf(most - 1, level / 255 * count)
        assert float((columns[level] - torch.from_numpy(exact)).abs().max()) < 1e-7
    assert torch.allclose(truncated_poisson(torch.tensor([0.0]), 3)[0], torch.tensor([1.0, 0, 0, 0]).double())


@pytest.mark.parametrize("count", table_values("shot_noise"))
def test_shot_noise_has_the_mean_and_variance_of_poisson(count: float) -> None:
    rate = 85 / 255 * count  # far enough below white for the cut there to be known exactly
    counts = torch.arange(int(count) + 1, dtype=torch.float64)
    chances = truncated_poisson(torch.tensor([rate], dtype=torch.float64), int(count))[0]
    mean = float((chances * counts).sum())
    variance = float((chances * (counts - mean).square()).sum())
    fourth = float((chances * (counts - mean) ** 4).sum())
    drawn = shot_noise(flat(85), RNG, count).double() * count
    assert abs(z(drawn, mean, variance)) < 4
    assert abs(z((drawn - mean).square(), variance, fourth - variance**2)) < 4
    assert not shot_noise(flat(0), RNG, count).any()


def test_each_pixel_is_drawn_from_its_own_level() -> None:
    x = flat(0)
    x[:, :, ::2] = 1.0
    y = shot_noise(x, RNG, 3)
    assert not y[:, :, 1::2].any()
    chances = truncated_poisson(torch.tensor([3.0], dtype=torch.float64), 3)[0]
    mean = float((chances * torch.arange(4)).sum()) / 3
    variance = float((chances * (torch.arange(4) / 3 - mean).square()).sum())
    assert abs(z(y[:, :, ::2], mean, variance)) < 4
