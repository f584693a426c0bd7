"""Similarity of representations against slow implementations of its definitions.

Shape letters: L layers, B images, T tokens, D features, n images of a Gram matrix.
"""

import functools
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from vitadel.analyze import similarity
from vitadel.analyze.similarity import Grouping, Moments, cka, dependence, gram
from vitadel.runs import ResultFolder


def outputs(seed: int = 0, offset: float = 0.0) -> list[Tensor]:
    """Four correlated layers [B, T, D]."""
    rng = torch.Generator().manual_seed(seed)
    draw = functools.partial(torch.randn, 7, 3, 5, generator=rng, dtype=torch.float64)
    first = draw()
    later = [first + 0.5 * draw(), -2 * first + draw(), draw().cumsum(1)]
    return [one + offset * (1 + place) for place, one in enumerate([first, *later])]


def slow(values: list[Tensor], per: Grouping) -> np.ndarray:
    """Every coefficient by numpy, one pair of columns at a time."""
    x_LBTD = np.stack([one.numpy() for one in values])
    if per is Grouping.ALL:
        groups = [x_LBTD.reshape(len(values), -1)]
    elif per is Grouping.TOKEN:
        groups = [x_LBTD[:, :, token].reshape(len(values), -1) for token in range(x_LBTD.shape[2])]
    else:
        groups = [x_LBTD[..., feature].reshape(len(values), -1) for feature in range(x_LBTD.shape[3])]
    return np.mean([np.abs(np.corrcoef(group)) for group in groups], axis=0)


@pytest.mark.parametrize("per", Grouping)
@pytest.mark.parametrize("cuts", [[7], [1, 6], [3, 3, 1], [1] * 7])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_moments_give_the_coefficients_for_any_batches(per: Grouping, cuts: list[int], offset: float) -> None:
    values = outputs(offset=offset)
    parts = [Moments.of(list(some), per) for some in zip(*(one.split(cuts) for one in values), strict=True)]
    result = functools.reduce(Moments.merge, parts).correlation()
    np.testing.assert_allclose(result.numpy(), slow(values, per), atol=1e-9 if offset else 1e-13)


def test_chunk_size_does_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    values = outputs()
    whole = Moments.of(values, Grouping.TOKEN).correlation()
    monkeypatch.setitem(similarity.VALUES_AT_ONCE, "cpu", 1)
    torch.testing.assert_close(Moments.of(values, Grouping.TOKEN).correlation(), whole, atol=1e-13, rtol=0)


def test_normed_tokens_have_mean_zero_and_variance_one() -> None:
    values = [one * torch.tensor([1.0, 30.0, 0.1])[:, None] + 4 for one in outputs()]
    normed = [
        (one - one.mean(-1, keepdim=True)) / (one.var(-1, correction=0, keepdim=True) + 1e-6).sqrt() for one in values
    ]
    result = Moments.of(values, Grouping.ALL, normed=True).correlation()
    np.testing.assert_allclose(result.numpy(), slow(normed, Grouping.ALL), atol=1e-12)
    assert not np.allclose(result.numpy(), slow(values, Grouping.ALL), atol=0.05)


def test_opposite_layers_are_similar_and_float32_input_suffices() -> None:
    first = outputs()[0].float()
    result = Moments.of([first, -3 * first + 1], Grouping.ALL).correlation()
    torch.testing.assert_close(result, torch.ones(2, 2, dtype=torch.float64), atol=1e-7, rtol=0)
    assert result.dtype == torch.float64


def test_constant_features_have_no_coefficient() -> None:
    first, second, *_ = outputs()
    second = second.clone()
    second[..., 2] = 0.1 + 1e5  # constant in one feature, though rounding may say otherwise
    result = Moments.of([first, second], Grouping.FEATURE).correlation()
    rest = [slow([first[..., [d]], second[..., [d]]], Grouping.ALL)[0, 1] for d in (0, 1, 3, 4)]
    assert float(result[0, 1]) == pytest.approx(np.mean(rest), abs=1e-12)
    for value in (0.7, 1e5 + 0.1):
        still = torch.full_like(first, value)
        halves = [Moments.of([first[rows], still[rows]], Grouping.ALL) for rows in (slice(0, 3), slice(3, 7))]
        joined = halves[0].merge(halves[1])
        assert float(joined.products_GLL[0, 1, 1]) > 0  # what rounding makes of a constant
        assert bool(joined.correlation()[0, 1].isnan())
    none = Moments.of([first, torch.full_like(first, 0.3)], Grouping.ALL).correlation()
    assert float(none[0, 0]) == pytest.approx(1)
    assert bool(none[0, 1].isnan())
    assert bool(none[1, 1].isnan())


def test_moments_are_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    written, odd = Moments.of(outputs(), Grouping.TOKEN), torch.tensor([[0.1, math.nan, math.inf, -0.0]]).double()
    for moments in (written, Moments(3, odd, odd[:, None] * odd[..., None])):
        ResultFolder(tmp_path).append("moments", {"index": [moments.count], "row": [moments.row()]})
        again = Moments.read(ResultFolder(tmp_path).read("moments")["row"][0])
        assert again.count == moments.count
        for one, other in ((again.mean_GL, moments.mean_GL), (again.products_GLL, moments.products_GLL)):
            assert one.numpy().tobytes() == other.contiguous().numpy().tobytes()


def features(n: int, *widths: int, seed: int = 1) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(n, width, generator=rng, dtype=torch.float64) for width in widths]


def test_the_unbiased_estimate_is_the_mean_over_quadruples_of_images() -> None:
    x, y = features(6, 4, 9)
    y[:, :4] += x
    k, m = (one @ one.T for one in (x, y))
    fours = list(itertools.permutations(range(6), 4))
    mean = sum(float(k[i, j] * (m[i, j] + m[q, r] - 2 * m[i, q])) for i, j, q, r in fours) / len(fours)
    result = dependence(torch.stack([k, m]))
    assert float(result[0, 1]) == pytest.approx(mean, rel=1e-12)
    assert float(result[1, 0]) == pytest.approx(mean, rel=1e-12)


def test_the_biased_estimate_is_the_norm_of_the_cross_covariance() -> None:
    x, y = features(8, 3, 5)
    y[:, :3] += x
    grams = torch.stack([gram(x), gram(y)])
    cross = (x - x.mean(0)).T @ (y - y.mean(0)) / 7
    assert float(dependence(grams, biased=True)[0, 1]) == pytest.approx(float(cross.square().sum()), rel=1e-12)


@pytest.mark.parametrize("biased", [False, True])
def test_cka_is_invariant_to_rotations_scales_and_shifts(biased: bool) -> None:
    x, other = features(12, 5, 5)
    turn = torch.linalg.qr(other[:5]).Q
    result = cka(dependence(torch.stack([gram(x), gram(-4 * x @ turn + 100), gram(other)]), biased=biased))
    torch.testing.assert_close(result.diagonal(), torch.ones(3, dtype=torch.float64))
    assert float(result[0, 1]) == pytest.approx(1, abs=1e-9)
    assert float(result[0, 2]) == pytest.approx(float(result[1, 2]), abs=1e-9)
    assert float(result[0, 2]) < 0.9


def test_unrelated_wide_features_are_similar_only_in_the_biased_estimate() -> None:
    grams = torch.stack([gram(one) for one in features(128, 512, 512)])
    assert float(cka(dependence(grams, biased=True))[0, 1]) == pytest.approx(0.8, abs=0.02)
    assert float(cka(dependence(grams))[0, 1]) == pytest.approx(0, abs=0.02)


def test_a_nonpositive_estimate_has_no_similarity() -> None:
    result = cka(torch.tensor([[1.0, 0.5], [0.5, -0.01]], dtype=torch.float64))
    assert float(result[0, 0]) == 1
    assert bool(result[0, 1].isnan())
    assert bool(result[1, 1].isnan())


def test_gram_matrices_are_summed_in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    x = features(9, 700)[0] * torch.logspace(-3, 3, 700, dtype=torch.float64) + 1000
    centered = x - x.mean(0)
    exact = centered @ centered.T
    torch.testing.assert_close(gram(x), exact, rtol=1e-12, atol=1e-6)
    monkeypatch.setattr(similarity, "GRAM_COLUMNS", 64)
    torch.testing.assert_close(gram(x), exact, rtol=1e-12, atol=1e-6)
    single = gram((centered + 10).float())
    assert single.dtype == torch.float64
    torch.testing.assert_close(single, exact, rtol=1e-5, atol=1e-5 * float(exact.diagonal().max()))
    images = centered.view(9, 7, 10, 10)
    torch.testing.assert_close(gram(images), exact, rtol=1e-9, atol=1e-6)
    half = gram(features(4, 6)[0].to(torch.bfloat16))
    assert half.dtype == torch.float64
