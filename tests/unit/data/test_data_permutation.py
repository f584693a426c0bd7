"""A pseudorandom permutation: every number once, another order per epoch, no pattern, the same on every machine."""

import itertools
import re
import time

import pytest
import torch
from scipy import stats

from vitadel.core.errors import UsageError
from vitadel.data import Permutation

COUNTS = [1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 1000, 1023, 1024, 1025, 99_999]


@pytest.mark.parametrize("seed", [0, 1, -7, 2**63 - 1])
@pytest.mark.parametrize("count", COUNTS)
def test_every_epoch_holds_every_number_once(count: int, seed: int) -> None:
    result = Permutation(count, seed).at(torch.arange(3 * count)).view(3, count)
    assert result.dtype == torch.int64
    assert torch.equal(result.sort(1).values, torch.arange(count).expand(3, -1))


def test_epochs_and_seeds_differ() -> None:
    count = 1000
    orders = [
        Permutation(count, seed).at(torch.arange(first * count, (first + 1) * count))
        for seed in (0, 1, 2)
        for first in (0, 1, 2, 10**9)
    ]
    for one, other in itertools.combinations(orders, 2):
        assert (one == other).sum().item() < 10  # of two random orders one number in a thousand agrees


def test_a_position_can_be_computed_alone() -> None:
    shuffle = Permutation(1025, 3)
    positions = torch.tensor([5000, 0, 1024, 1025, 7, 7, 2**62])
    whole = shuffle.at(positions)
    assert whole[4] == whole[5]
    for place in range(len(positions)):
        assert torch.equal(shuffle.at(positions[place : place + 1])[0], whole[place])
    assert shuffle.at(positions[:0]).tolist() == []


@pytest.mark.parametrize(
    ("count", "seed", "first", "expected"),
    [
        (10, 0, 0, [5, 6, 2, 8, 0, 1, 7, 9, 3, 4]),
        (10, 0, 10, [2, 8, 5, 6, 0, 1, 3, 4, 7, 9]),
        (1000, 7, 0, [870, 227, 609, 185, 152, 327, 925, 641, 699, 920]),
        (
            50_000_000,
            1,
            49_999_990,
            [10889312, 39533646, 21204099, 23675827, 47703307, 33898314, 46646472, 25569866, 19283899, 35419602],
        ),
    ],
)
def test_orders_are_pinned(count: int, seed: int, first: int, expected: list[int]) -> None:
    """A change of these changes every recorded run."""
    assert Permutation(count, seed).at(torch.arange(first, first + 10)).tolist() == expected


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 16])
def test_pairs_of_a_short_order_are_uniform(count: int) -> None:
    """Each pass is one drawn order; every ordered pair of different numbers must be as likely at any two places."""
    orders = Permutation(count, 11).at(torch.arange(20_000 * count)).view(-1, count)
    pairs = list(itertools.combinations(range(count), 2))[:20]
    differ = ~torch.eye(count, dtype=torch.bool)
    for one, other in pairs:
        counts = torch.bincount(orders[:, one] * count + orders[:, other], minlength=count**2).view(count, count)
        assert not counts[~differ].any()
        assert stats.chisquare(counts[differ].numpy()).pvalue > 1e-3 / len(pairs)


@pytest.mark.parametrize("step", [1, 2, 64, 1000])
def test_neighbors_in_a_long_order_are_uncorrelated(step: int) -> None:
    count, cells = 1_000_003, 16
    result = Permutation(count, 5).at(torch.arange(200_000))
    cell = result * cells // count
    counts = torch.bincount(cell[:-step] * cells + cell[step:], minlength=cells**2)
    assert 0.001 < stats.chisquare(counts.numpy()).pvalue < 0.999
    assert abs(torch.corrcoef(torch.stack([result[:-step], result[step:]]).double())[0, 1].item()) < 5 * 200_000**-0.5


def test_a_million_positions_take_little_time() -> None:
    started = time.perf_counter()
    Permutation(50_000_000, 0).at(torch.arange(1_000_000))
    assert time.perf_counter() - started < 6  # measured: 0.7 s; the rest is for a busy machine


def test_invalid_arguments_are_named() -> None:
    with pytest.raises(
        UsageError, match=re.escape("must lie in [1, 1152921504606846976], got 0. Write how many images there are")
    ):
        Permutation(0, 0)
    with pytest.raises(UsageError, match=re.escape("got torch.int64 of shape (2,) with some below 0. Write torch.ar")):
        Permutation(5, 0).at(torch.tensor([0, -1]))
    with pytest.raises(UsageError, match=re.escape("positions must be a list of int64 numbers of at least 0, got tor")):
        Permutation(5, 0).at(torch.tensor([0.0]))
    with pytest.raises(UsageError, match=re.escape("got torch.int64 of shape (1, 2). Write torch.arange(first, last)")):
        Permutation(5, 0).at(torch.tensor([[0, 1]]))
