"""Fast random numbers: the right distributions, and a function of image and position alone."""

import math

import pytest
import torch
from torch import Tensor

from vitadel.core.rng import RandomStreams
from vitadel.shifts.fast_rng import normal, uniform, words_by_numpy, words_by_torch

COUNT = 200_001  # odd: the last pair is used by half


def rng(*index: int) -> RandomStreams:
    return RandomStreams.of(3, torch.tensor(index))


def z(values: Tensor, mean: float, variance: float) -> float:
    """By how many standard errors the sample mean is off."""
    return float((values.double().mean() - mean) / math.sqrt(variance / values.numel()))


def test_uniform_moments_and_grid() -> None:
    u = uniform(rng(0, 1), COUNT)
    assert u.min() >= 0
    assert u.max() < 1
    assert torch.equal(u * 2**24, (u * 2**24).round())
    assert abs(z(u, 1 / 2, 1 / 12)) < 4
    assert abs(z((u.double() - 0.5).square(), 1 / 12, 1 / 180)) < 4
    shares = torch.histc(u, 64, 0, 1) / u.numel()
    chi2 = float((u.numel() * 64 * (shares - 1 / 64).square()).sum())
    assert abs(chi2 - 63) < 4 * math.sqrt(2 * 63)


def test_normal_moments_and_tails() -> None:
    n = normal(rng(0, 1), COUNT)
    assert abs(z(n, 0, 1)) < 4
    assert abs(z(n.double().square(), 1, 2)) < 4
    assert abs(z(n.double() ** 3, 0, 15)) < 4
    assert abs(z(n.double() ** 4, 3, 96)) < 4
    for limit in (1.0, 2.0, 3.0, 4.0):
        share = math.erfc(limit / math.sqrt(2))
        assert abs(z((n.abs() > limit).float(), share, share * (1 - share))) < 4


def test_the_two_numbers_of_a_pair_are_independent() -> None:
    n = normal(rng(0), 2 * 100_000)[0].double()
    first, second = n[:100_000], n[100_000:]
    assert abs(z(first * second, 0, 1)) < 4
    assert abs(z(first.square() * second.square(), 1, 8)) < 4
    u = uniform(rng(0), 2 * 100_000)[0].double() - 0.5
    assert abs(z(u[::2] * u[1::2], 0, 1 / 144)) < 4  # two halves of one word


def test_words_are_splitmix64_on_every_device() -> None:
    key = torch.tensor([0, 1234567, -1, -(2**63)])
    words = words_by_numpy(key, 1000)
    assert torch.equal(words, words_by_torch(key, 1000))
    # the first three words that the published generator gives for seed 1234567
    first = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [word % 2**64 for word in words[1, :3].tolist()] == first


@pytest.mark.parametrize("draw", [uniform, normal])
def test_numbers_depend_on_image_and_position_alone(draw) -> None:  # type: ignore[no-untyped-def]
    together, alone = draw(rng(5, 9), 3, 7, 5), draw(rng(9), 3, 7, 5)
    assert together.shape == (2, 3, 7, 5)
    assert torch.equal(together[1], alone[0])
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(draw(rng(9).fold(1), 3, 7, 5), alone)
