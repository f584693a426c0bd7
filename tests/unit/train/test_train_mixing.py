"""MixUp and CutMix: the distribution of timm, one draw per batch, the same for pixels and labels."""

import math
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.data import Mixup
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.train.input.mixing import Mixing, MixParameters


def batch(count: int = 8, height: int = 10, width: int = 13) -> tuple[Tensor, Tensor]:
    x = torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(count) % 5


class GivenMixup(Mixup):
    """timm's Mixup with given parameters instead of random ones."""

    def __init__(self, lam: float, cut: bool) -> None:
        super().__init__(mixup_alpha=1.0, cutmix_alpha=1.0, label_smoothing=0.0, num_classes=5)
        self.given = lam, cut

    def _params_per_batch(self) -> tuple[float, bool]:
        return self.given


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.75, 1.0])
def test_mixup_matches_timm(lam: float) -> None:
    x, y = batch()
    shares = F.one_hot(y, 5).float()
    mixed, mixed_shares = MixParameters(lam).apply(x, shares, x.flip(0), shares.flip(0))
    expected, expected_shares = GivenMixup(lam, cut=False)(x.clone(), y)
    torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(mixed_shares, expected_shares, rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_cutmix_matches_timm_with_the_same_center(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = batch()
    mixing = Mixing(cutmix=1.0)
    # the random numbers of `plan`, repeated: two that decide, two for the center, then lambda
    rng = np.random.default_rng(seed)
    center = [int(side * at) for side, at in zip((10, 13), rng.random(4)[2:], strict=True)]
    lam = float(rng.beta(1.0, 1.0))
    left = iter(center)
    monkeypatch.setattr(np.random, "randint", lambda low, high, size=None: next(left))
    expected, expected_shares = GivenMixup(lam, cut=True)(x.clone(), y)
    whole = F.one_hot(y, 5).float()
    mixed, shares = mixing.parameters(seed, 10, 13).apply(x, whole, x.flip(0), whole.flip(0))
    assert torch.equal(mixed, expected)
    torch.testing.assert_close(shares, expected_shares, rtol=0, atol=1e-6)


def test_label_weights_are_shares_of_pixels() -> None:
    x = torch.stack([torch.zeros(3, 11, 7), torch.ones(3, 11, 7)])
    y = torch.tensor([0, 1])
    for seed in range(40):
        mixed, shares = Mixing(0.8, 1.0)(x, y, 2, seed=seed)
        torch.testing.assert_close(mixed.mean((1, 2, 3)), shares[:, 1], rtol=0, atol=1e-5)
        torch.testing.assert_close(shares.sum(1), torch.ones(2))


@pytest.mark.parametrize("count", [4, 5])
def test_an_image_is_mixed_with_one_half_a_batch_away(count: int) -> None:
    x = torch.arange(float(count)).view(-1, 1, 1, 1).expand(count, 3, 4, 4) / count
    mixed, shares = Mixing(mixup=1.0)(x, torch.arange(count), count, seed=1)
    lam = Mixing(mixup=1.0).parameters(1, 4, 4).lam
    assert 0.05 < lam < 0.95
    partner = (torch.arange(count) - 2) % count
    torch.testing.assert_close(mixed[:, 0, 0, 0], lam * x[:, 0, 0, 0] + (1 - lam) * x[partner, 0, 0, 0])
    torch.testing.assert_close(shares, lam * torch.eye(count) + (1 - lam) * torch.eye(count)[partner])


def test_a_shard_of_the_batch_mixes_like_the_whole() -> None:
    x, y = batch(8)
    mixing = Mixing(0.8, 1.0)
    for seed in range(6):
        whole, whole_shares = mixing(x, y, 5, seed=seed)
        for rank in range(2):
            mine = torch.arange(8)[rank::2]
            got, got_shares = mixing(x[mine], y[mine], 5, seed=seed)
            assert torch.equal(got, whole[mine])
            assert torch.equal(got_shares, whole_shares[mine])


def test_results_depend_on_the_seed_and_inputs_are_unchanged() -> None:
    x, y = batch()
    before = x.clone()
    state = pickle.dumps(np.random.get_state())
    once, again, other = (Mixing(0.8, 1.0)(x, y, 5, seed=seed)[0] for seed in (3, 3, 4))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert torch.equal(x, before)
    assert pickle.dumps(np.random.get_state()) == state


def test_probabilities_are_as_set() -> None:
    count = 4000
    plans = [Mixing(0.8, 1.0, probability=0.5, switch=0.3).parameters(seed, 32, 32) for seed in range(count)]
    cut = sum(plan.box is not None for plan in plans) / count
    kept = sum(plan.lam == 1 and plan.box is None for plan in plans) / count
    assert kept == pytest.approx(0.5, abs=0.035)
    assert cut == pytest.approx(0.15, abs=0.025)


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 4.0])
def test_lambda_has_a_beta_distribution(alpha: float) -> None:
    lam = np.array([Mixing(mixup=alpha).parameters(seed, 8, 8).lam for seed in range(4000)])
    variance = 1 / (4 * (2 * alpha + 1))
    assert lam.mean() == pytest.approx(0.5, abs=4 * math.sqrt(variance / 4000))
    assert lam.var() == pytest.approx(variance, rel=0.1)


def test_mixup_and_cutmix_have_their_own_alpha() -> None:
    for seed in range(20):
        assert Mixing(1e6, 1.0, switch=1.0).parameters(seed, 16, 16) == Mixing(cutmix=1.0).parameters(seed, 16, 16)
        assert Mixing(0.8, 1e6, switch=0.0).parameters(seed, 16, 16) == Mixing(mixup=0.8).parameters(seed, 16, 16)


def test_boxes_are_clipped_at_the_border_before_counting() -> None:
    for seed in range(300):
        plan = Mixing(cutmix=1.0).parameters(seed, 10, 13)
        assert plan.box is not None
        top, bottom, left, right = plan.box
        assert 0 <= top <= bottom <= 10
        assert 0 <= left <= right <= 13
        assert plan.lam == pytest.approx(1 - (bottom - top) * (right - left) / 130)


def test_zero_probability_changes_nothing() -> None:
    x, y = batch()
    for mixing in (Mixing(), Mixing(0.8, 1.0, probability=0.0)):
        assert not mixing.active
        mixed, shares = mixing(x, y, 5, seed=0)
        assert torch.equal(mixed, x)
        assert torch.equal(shares, F.one_hot(y, 5).float())
    assert Mixing(mixup=0.1).active
    assert all(Mixing(mixup=0.8).parameters(seed, 8, 8).box is None for seed in range(50))
    assert all(Mixing(cutmix=0.8).parameters(seed, 8, 8).box is not None for seed in range(50))
    assert all(Mixing(0.8, 0.8, switch=1.0).parameters(seed, 8, 8).box is not None for seed in range(50))


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 1e6])
@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_extreme_alphas_give_finite_numbers(kind: str, alpha: float) -> None:
    x, y = batch()
    for seed in range(50):
        mixed, shares = Mixing(**{kind: alpha})(x, y, 5, seed=seed)
        assert mixed.isfinite().all()
        assert shares.isfinite().all()
        assert ((shares >= 0) & (shares <= 1)).all()


def test_white_stays_white() -> None:
    x, y = torch.ones(4, 3, 6, 6), torch.zeros(4, dtype=torch.int64)
    for seed in range(200):
        mixed, shares = Mixing(mixup=0.8)(x, y, 3, seed=seed)
        assert mixed.max() <= 1
        assert shares.max() <= 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mixup": -0.1}, "Mixing.mixup must not be negative, got -0.1. Write 0 for none"),
        ({"cutmix": -1.0}, "Mixing.cutmix must not be negative, got -1"),
        ({"cutmix": math.nan}, "Mixing.cutmix must be a finite number and not be negative, got nan"),
        ({"probability": 1.1}, r"Mixing.probability must lie in \[0, 1\], got 1.1"),
        ({"switch": -0.5}, r"Mixing.switch must lie in \[0, 1\], got -0.5"),
    ],
)
def test_invalid_settings_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Mixing(**values)
