"""Random images of a threat: uniform in the ball, and the same for an image in every batch."""

from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

from vitadel.core.rng import RandomStreams
from vitadel.threats import L1, L2, Linf, Threat

THREATS: dict[str, Threat] = {"linf": Linf(0.2), "l2": L2(0.3), "l1": L1(0.4)}
IMAGES = 40_000

every_threat = pytest.mark.parametrize("threat", THREATS.values(), ids=THREATS)


def moves(threat: Threat, values: int, *, seed: int = 0) -> Tensor:
    """Noise around gray, where the box is out of reach."""
    x0 = torch.full((IMAGES, values), 0.5, dtype=torch.float64)
    return threat.sample(x0, RandomStreams.of(seed, torch.arange(IMAGES))) - 0.5


@every_threat
@pytest.mark.parametrize("values", [1, 2, 5])
def test_noise_has_no_preferred_direction(threat: Threat, values: int) -> None:
    drawn = moves(threat, values)
    spread = drawn.std(0)
    assert bool((drawn.mean(0).abs() < 5 * spread / IMAGES**0.5).all())
    positive = (drawn > 0).double().mean(0)
    assert bool(((positive - 0.5).abs() < 5 * 0.5 / IMAGES**0.5).all())
    assert spread.max().item() == pytest.approx(spread.min().item(), rel=0.03)
    if values > 1:
        assert abs(torch.corrcoef(drawn.T)[0, 1].item()) < 5 / IMAGES**0.5


@every_threat
@pytest.mark.parametrize("values", [1, 2, 5])
def test_noise_is_uniform_in_the_ball(threat: Threat, values: int) -> None:
    """The ball of half the volume holds half of the images: (size / eps)**d is uniform, with mean 1/2."""
    size_B = threat.distance(moves(threat, values) + 0.5, torch.full((IMAGES, values), 0.5, dtype=torch.float64))
    volume_B = (size_B / threat.eps) ** values
    assert volume_B.max().item() <= 1 + 1e-9
    assert volume_B.mean().item() == pytest.approx(1 / 2, abs=5 * (1 / 12 / IMAGES) ** 0.5)
    assert stats.kstest(volume_B.numpy(), "uniform").pvalue > 0.001


@pytest.mark.parametrize(
    ("threat", "variance"),
    [
        (Linf(0.2), lambda eps, d: eps**2 / 3),
        (L2(0.3), lambda eps, d: eps**2 / (d + 2)),
        (L1(0.4), lambda eps, d: 2 * eps**2 / ((d + 1) * (d + 2))),
    ],
    ids=["linf", "l2", "l1"],
)
@pytest.mark.parametrize("values", [2, 5])
def test_variance_is_that_of_the_uniform_distribution(
    threat: Threat, variance: Callable[[float, int], float], values: int
) -> None:
    result = moves(threat, values).var().item()
    assert result == pytest.approx(variance(threat.eps, values), rel=0.03)


def test_l1_noise_is_uniform_in_the_diamond() -> None:
    """In two dimensions the share of the first value in the size is uniform for a uniform diamond."""
    drawn = moves(L1(0.4), 2).abs()
    assert stats.kstest((drawn[:, 0] / drawn.sum(1)).numpy(), "uniform").pvalue > 0.001


def test_l2_noise_has_uniform_angles() -> None:
    drawn = moves(L2(0.3), 2)
    turn = torch.atan2(drawn[:, 0], drawn[:, 1]) / (2 * torch.pi) + 0.5
    assert stats.kstest(turn.numpy(), "uniform").pvalue > 0.001


@every_threat
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_image_gets_the_same_noise_in_every_batch(threat: Threat, dtype: torch.dtype) -> None:
    x0 = torch.rand(7, 3, 5, 7, dtype=dtype, generator=torch.Generator().manual_seed(0))
    index_B = torch.tensor([5, 0, 99, 7, 1, 2, 3])
    whole = threat.sample(x0, RandomStreams.of(0, index_B))
    for rows in ([0], [6], [3, 1], [6, 5, 4, 3, 2, 1, 0]):
        part = threat.sample(x0[rows], RandomStreams.of(0, index_B[rows]))
        torch.testing.assert_close(part, whole[rows], rtol=0, atol=10 * torch.finfo(dtype).eps)


@every_threat
def test_another_seed_image_or_fold_gives_other_noise(threat: Threat) -> None:
    x0 = torch.full((1, 3, 5, 7), 0.5, dtype=torch.float64)
    base = RandomStreams.of(0, torch.tensor([0]))
    streams = [
        base,
        RandomStreams.of(1, torch.tensor([0])),
        RandomStreams.of(0, torch.tensor([1])),
        base.fold(0),
        base.fold(1),
    ]
    noise = torch.cat([threat.sample(x0, one) - x0 for one in streams]).flatten(1)
    related = torch.corrcoef(noise) - torch.eye(len(streams), dtype=torch.float64)
    assert related.abs().max().item() < 0.5


@every_threat
def test_noise_depends_on_the_original_through_the_box_alone(threat: Threat) -> None:
    one, other = (torch.full((2, 3, 5, 7), value, dtype=torch.float64) for value in (0.45, 0.55))
    rng = RandomStreams.of(0, torch.arange(2))
    torch.testing.assert_close(threat.sample(one, rng) - one, threat.sample(other, rng) - other, rtol=0, atol=1e-12)
