"""Random numbers that belong to an image: the algorithm bit for bit, the distributions, the same in every batch.

Shape letters: B images.
"""

import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from vitadel.core.rng import RandomStreams, fold_seed, seeded_generators, splitmix64, splitmix64_int

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
# the published sequence for seed 1234567
REFERENCE = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]


def mixed(word: int) -> int:
    """The finalizer of SplitMix64 on Python's unbounded integers."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


def published_sequence(seed: int, count: int) -> list[int]:
    return [mixed((seed + number * GOLDEN) & WORD) for number in range(1, count + 1)]


def signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def images(count: int) -> Tensor:
    return torch.arange(count)


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]).double())[0, 1])


def test_the_reference_is_the_published_sequence() -> None:
    assert published_sequence(1234567, 5) == REFERENCE


def test_words_of_a_stream_match_the_published_sequence() -> None:
    result = RandomStreams(torch.tensor([1234567])).uniform(5, dtype=torch.float64)[0]
    assert result.tolist() == [(word >> 11) * 2.0**-53 for word in REFERENCE]
    narrow = RandomStreams(torch.tensor([1234567])).uniform(5)[0]
    assert narrow.tolist() == [(word >> 40) * 2.0**-24 for word in REFERENCE]


@pytest.mark.parametrize("seed", [0, 1, WORD, 1 << 63, 0xDEADBEEF << 24])
def test_mixing_matches_unbounded_integers(seed: int) -> None:
    states = [(seed + number * GOLDEN) & WORD for number in range(100)]
    result = splitmix64(torch.tensor([signed(state) for state in states]))
    assert result.tolist() == [signed(mixed(state)) for state in states]
    assert [splitmix64_int(state) for state in states] == [mixed((state + GOLDEN) & WORD) for state in states]


def test_stream_of_an_image_is_a_function_of_seed_and_index() -> None:
    key = mixed(41 ^ mixed((7 + GOLDEN) & WORD))
    folded = mixed(key ^ mixed((3 + GOLDEN) & WORD))
    rng = RandomStreams.of(7, torch.tensor([40, 41]))
    assert rng.key_B.tolist()[1] == signed(key)
    assert rng.fold(3).key_B.tolist()[1] == signed(folded)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_do_not_depend_on_the_batch(dtype: torch.dtype) -> None:
    index_B = torch.tensor([9, 0, 123456789, 4, 5, 6, 7])
    for kind in ("uniform", "normal"):
        whole = getattr(RandomStreams.of(3, index_B).fold(2), kind)(2, 5, dtype=dtype)
        assert whole.shape == (7, 2, 5)
        assert whole.dtype == dtype
        for row in range(7):
            alone = getattr(RandomStreams.of(3, index_B[row : row + 1]).fold(2), kind)(2, 5, dtype=dtype)
            assert torch.equal(alone[0], whole[row])


def test_at_selects_streams() -> None:
    rng, rows = RandomStreams.of(3, images(7)), torch.tensor([6, 1, 1])
    assert torch.equal(rng.at(rows).uniform(4), rng.uniform(4)[rows])
    assert torch.equal(rng.at(rows).fold(5).randint(100, 4), rng.fold(5).randint(100, 4)[rows])


def test_repeated_calls_give_the_same_numbers() -> None:
    rng = RandomStreams.of(3, images(2))
    assert torch.equal(rng.normal(6), rng.normal(6))
    assert torch.equal(rng.uniform(12)[:, :6], rng.uniform(6))


def test_another_seed_index_or_fold_gives_uncorrelated_numbers() -> None:
    size = 20_000
    base = RandomStreams.of(0, images(1))
    others = {
        "seed": RandomStreams.of(1, images(1)),
        "index": RandomStreams.of(0, torch.tensor([1])),
        "seed and index": RandomStreams.of(1, torch.tensor([1])),
        "fold": base.fold(0),
        "another fold": base.fold(1),
        "folded twice": base.fold(0).fold(0),
    }
    drawn = {name: rng.uniform(size, dtype=torch.float64) for name, rng in {"base": base, **others}.items()}
    names = list(drawn)
    pairs = [(one, other) for place, one in enumerate(names) for other in names[:place]]
    # five standard errors of a correlation of independent numbers
    related = [pair for pair in pairs if abs(correlation(drawn[pair[0]], drawn[pair[1]])) > 0.035]
    assert related == []


def test_neighboring_streams_are_uncorrelated() -> None:
    drawn = RandomStreams.of(0, images(20_000)).uniform(3, dtype=torch.float64)
    for one, other in (
        (drawn[:-1, 0], drawn[1:, 0]),  # the next image
        (drawn[:, 0], drawn[:, 1]),  # the next number
        (drawn[:-1, 1], drawn[1:, 0]),
    ):
        assert abs(correlation(one, other)) < 0.035


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_numbers_are_uniform(dtype: torch.dtype) -> None:
    drawn = RandomStreams.of(11, images(200)).uniform(500, dtype=dtype).double().flatten()
    assert 0 <= drawn.min().item() < drawn.max().item() < 1
    assert drawn.mean().item() == pytest.approx(1 / 2, abs=5 * (1 / 12 / 1e5) ** 0.5)
    assert drawn.var().item() == pytest.approx(1 / 12, abs=1e-3)
    counts = torch.histc(drawn, bins=16, min=0, max=1)
    assert 0.001 < stats.chisquare(counts.numpy()).pvalue < 0.999


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_float32_uniforms_are_below_one(dtype: torch.dtype) -> None:
    rng = RandomStreams.of(0, images(100))
    drawn = rng.uniform(1000, dtype=dtype)
    assert drawn.dtype == dtype
    assert drawn.max().item() < 1
    assert drawn.double().mean().item() == pytest.approx(0.5, abs=0.01)
    assert bool(rng.normal(1000, dtype=dtype).isfinite().all())


def test_normal_numbers_are_normal() -> None:
    drawn = RandomStreams.of(12, images(200)).normal(500, dtype=torch.float64).flatten().numpy()
    assert drawn.mean() == pytest.approx(0, abs=5 * 1e5**-0.5)
    assert drawn.var() == pytest.approx(1, abs=5 * (2 / 1e5) ** 0.5)
    assert stats.skew(drawn) == pytest.approx(0, abs=5 * (6 / 1e5) ** 0.5)
    assert stats.kurtosis(drawn) == pytest.approx(0, abs=5 * (24 / 1e5) ** 0.5)
    assert stats.kstest(drawn, "norm").pvalue > 0.001


@pytest.mark.parametrize("limit", [1, 2, 10, 1000])
def test_whole_numbers_cover_their_range_evenly(limit: int) -> None:
    drawn = RandomStreams.of(13, images(100)).randint(limit, 10 * limit)
    assert drawn.shape == (100, 10 * limit)
    counts = torch.bincount(drawn.flatten(), minlength=limit)
    assert len(counts) == limit
    assert limit == 1 or 0.001 < stats.chisquare(counts.numpy()).pvalue < 0.9999


def test_an_empty_shape_gives_one_number_per_image() -> None:
    rng = RandomStreams.of(0, images(7))
    assert rng.uniform().shape == (7,)
    assert rng.randint(3).shape == (7,)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((0,), 8147104208329303767),
        ((0, 0), 6017775124710473527),
        ((1, 2, 3), 7510213797696614745),
        ((2**63 - 1, -1), 7407288250793917914),
    ],
)
def test_folded_seeds_are_pinned(numbers: tuple[int, ...], expected: int) -> None:
    """A change of these changes every recorded run."""
    assert fold_seed(*numbers) == expected


def test_seed_and_fold_are_not_interchangeable() -> None:
    """Otherwise epoch 1 of seed 0 would be epoch 0 of seed 1, and epoch 5 of seed 5 that of all seeds."""
    grid = [fold_seed(seed, part) for seed in range(30) for part in range(30)]
    assert len(set(grid)) == 900


def test_folded_seeds_fit_every_generator_and_differ() -> None:
    seeds = [
        fold_seed(seed, *rest) for seed in (0, 1, 2**63 - 1, 2**64 - 1) for rest in ((), (0,), (1,), (0, 1), (1, 0))
    ]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert len(set(seeds)) == len(seeds)
    torch.Generator().manual_seed(max(seeds))


def test_each_stream_can_be_folded_with_its_own_number() -> None:
    numbers_B = torch.tensor([0, 1, 2, 99, 5000, 2**40, 0])
    rng = RandomStreams.of(3, images(7))
    whole = rng.fold(numbers_B)
    for row, number in enumerate(numbers_B.tolist()):
        assert torch.equal(whole.key_B[row], rng.fold(number).key_B[row])
    assert len(set(whole.key_B.tolist())) == 7
    assert torch.equal(rng.fold(torch.full((7,), 4)).key_B, rng.fold(4).key_B)


def test_each_stream_can_have_its_own_limit() -> None:
    limit_B = torch.tensor([1, 2, 3, 10, 1000, 7, 7])
    rng = RandomStreams.of(3, images(7))
    whole = rng.randint(limit_B, 500)
    assert whole.shape == (7, 500)
    assert whole.dtype == torch.int64
    for row, limit in enumerate(limit_B.tolist()):
        assert torch.equal(whole[row], rng.randint(limit, 500)[row])
        assert whole[row].min().item() >= 0
        assert limit - 1 - limit // 100 <= whole[row].max().item() <= limit - 1
    assert rng.randint(limit_B).shape == (7,)
    assert torch.equal(rng.randint(limit_B), torch.stack([rng.randint(n)[i] for i, n in enumerate(limit_B.tolist())]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_signs_are_balanced(dtype: torch.dtype) -> None:
    drawn = RandomStreams.of(14, images(200)).signs(5, 100, dtype=dtype)
    assert drawn.shape == (200, 5, 100)
    assert drawn.dtype == dtype
    assert set(drawn.unique().tolist()) == {-1.0, 1.0}
    drawn = drawn.double()
    # five standard errors: of all, of neighbors in a stream, of neighboring streams
    assert drawn.mean().item() == pytest.approx(0, abs=5 * 1e5**-0.5)
    assert (drawn[:, :, 1:] * drawn[:, :, :-1]).mean().item() == pytest.approx(0, abs=5 * 1e5**-0.5)
    assert (drawn[1:] * drawn[:-1]).mean().item() == pytest.approx(0, abs=5 * 1e5**-0.5)


def test_random_numbers_of_an_image_are_pinned() -> None:
    """Recorded: results depend on them, on every machine and in every version."""
    rng = RandomStreams.of(3, torch.tensor([5, 6]))
    normal = torch.tensor([[-0.037048, -1.945699], [1.212173, -0.41305]], dtype=torch.float64)
    assert torch.allclose(rng.normal(2, dtype=torch.float64), normal, atol=1e-5)
    assert rng.randint(1000, 2).tolist() == [[190, 855], [308, 36]]
    assert rng.signs(3).tolist() == [[-1.0, 1.0, 1.0], [-1.0, -1.0, 1.0]]


@pytest.mark.parametrize(("device", "seeded"), [("cuda", 1), ("cuda:0", 0), ("cuda:2", 2)])
def test_the_generator_of_the_device_is_seeded(device: str, seeded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an index, that of the current device, which is number 1 here."""
    generators = [torch.Generator() for _ in range(3)]
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    before = torch.get_rng_state()
    with seeded_generators(77, torch.device(device)):
        assert [one.initial_seed() == 77 for one in generators] == [number == seeded for number in range(3)]
    torch.set_rng_state(before)


def test_seeded_generators_are_restored() -> None:
    """Also after an error; inside, the same seed gives the same numbers."""

    def numbers() -> tuple[float, float, float]:
        return random.gauss(), float(np.random.rand()), float(torch.rand(()))

    def state() -> tuple[object, ...]:
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()

    before = state()
    with seeded_generators(-3):
        first = numbers()
    with seeded_generators(-3):
        assert numbers() == first
    with pytest.raises(ZeroDivisionError), seeded_generators(-3):
        assert numbers()[0] == 1 // 0
    assert state() == before
    with seeded_generators(4):
        assert numbers() != first
