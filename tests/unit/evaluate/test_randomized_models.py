"""Randomized models: scored by how often they are correct, on samples not used for selection."""

import math

import pytest
import torch
from torch import Tensor, nn

from vitadel import robustness
from vitadel.attacks import APGD, Engine
from vitadel.core.stats import expected_accuracy
from vitadel.evaluate import AttackSuite, Context, NamedAttack, TensorImages
from vitadel.evaluate.attack_runner import is_randomized, record_clean_predictions
from vitadel.losses import cross_entropy, dlr
from vitadel.threats import Linf

IMAGES, SAMPLES = 300, 20


def chance(z: float) -> float:
    """The normal distribution function."""
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


class NoisyThreshold(nn.Module):
    """Class 1 where the mean pixel exceeds one half by more than normal noise, else class 0, of three classes.

    It is correct on an image of mean m with label 1 with probability P((m - 1/2) / noise).
    """

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.noise = noise
        self.seeds: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seeds.append(torch.initial_seed())
        logit_difference = x.flatten(1).mean(1) - 0.5 + self.noise * torch.randn(len(x))
        return 100 * torch.stack([-logit_difference, logit_difference, torch.full_like(logit_difference, -9.0)], 1)


def pictures(mean: float) -> tuple[Tensor, Tensor]:
    """Constant images, all of label 1."""
    return torch.full((IMAGES, 3, 2, 2), mean), torch.ones(IMAGES, dtype=torch.int64)


def rand(steps: int, samples: int = 4) -> tuple[NamedAttack, ...]:
    """AutoAttack's two attacks for randomized models, with fewer steps."""
    return (
        NamedAttack("apgd-ce", APGD(steps=steps, eot_samples=samples), cross_entropy),
        NamedAttack("apgd-dlr", APGD(steps=steps, eot_samples=samples), dlr),
    )


@pytest.mark.parametrize("share", [0.6, 0.8, 0.95])
def test_without_possible_attack_the_accuracy_is_that_of_clean_images(share: float) -> None:
    """A single wrong prediction is not a success: counting it as one would leave share**samples of the images."""
    logit_difference = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(share))
    x, y = pictures(0.5 + 0.1 * float(logit_difference))
    result = robustness(NoisyThreshold(0.1), x, y, Linf(1e-6), rand(3))
    # the mean of 300 x 20 fresh samples: five standard deviations
    spread = math.sqrt(share * (1 - share) / (IMAGES * SAMPLES))
    assert result.clean.accuracy == pytest.approx(share, abs=5 * spread)
    assert result.robust.accuracy == pytest.approx(share, abs=5 * spread)
    # the interval is that of 20 predictions per image
    assert result.robust.high - result.robust.low == pytest.approx(2 * 1.96 * spread, rel=0.2)
    # and the noise raises no flag about the gradient
    assert [flag.code for flag in result.flags] == ["randomized"]


def test_a_large_radius_breaks_everything() -> None:
    x, y = pictures(0.6)
    result = robustness(NoisyThreshold(0.05), x, y, Linf(0.4), rand(10))
    assert result.clean.accuracy == pytest.approx(chance(2), abs=0.02)
    # the worst point has mean 0.2: correct with probability P(-6)
    assert result.robust.accuracy == 0
    assert set(result.broken_by) == {"apgd-ce", "apgd-dlr"} or set(result.broken_by) == {"apgd-ce"}


def test_an_intermediate_radius_gives_the_probability_at_the_boundary() -> None:
    x, y = pictures(0.6)
    result = robustness(NoisyThreshold(0.1), x, y, Linf(0.15), rand(10))
    # mean 0.45 at the worst: correct with probability P(-1/2)
    share = chance(-0.5)
    assert result.robust.accuracy == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / (IMAGES * SAMPLES)))
    assert result.clean.accuracy == pytest.approx(chance(1), abs=0.02)


def test_a_deterministic_model_gets_the_usual_accuracy() -> None:
    x, y = pictures(0.6)
    x[::3] = 0.52
    result = robustness(NoisyThreshold(0.0), x, y, Linf(0.05), rand(5))
    assert list(result.flags) == []
    assert result.robust.correct == 200
    assert result.robust.accuracy == pytest.approx(2 / 3)
    assert result.clean.correct == IMAGES
    assert [to != "" for to in result.broken_by] == [row % 3 == 0 for row in range(IMAGES)]


def test_selection_and_scoring_use_different_samples() -> None:
    x, y = pictures(0.55)
    model, attacks = NoisyThreshold(0.1), rand(2)
    ctx = Context(model, TensorImages(x, y), threat=Linf(1e-6), engine=Engine(batch_size=100))
    assert is_randomized(attacks)
    robust = record_clean_predictions(ctx, attacks)
    clean = ctx.table("clean")
    # one forward pass, then 40 for every part of the images, no two with the same seed
    assert len(model.seeds) == IMAGES // 100 * (1 + 2 * SAMPLES)
    assert len(set(model.seeds)) == 2 * SAMPLES
    chosen, scored = (torch.tensor(clean[name]) for name in ("correct_selected", "correct_scored"))
    for shares in (chosen, scored):
        assert torch.allclose(shares * SAMPLES, (shares * SAMPLES).round(), atol=1e-4)
        assert float(shares.mean()) == pytest.approx(chance(0.5), abs=0.03)
        assert float(shares.var()) == pytest.approx(chance(0.5) * (1 - chance(0.5)) / SAMPLES, rel=0.4)
    # independent: their correlation is that of chance
    both = torch.corrcoef(torch.stack([chosen, scored]))[0, 1]
    assert abs(float(both)) < 4 / math.sqrt(IMAGES)
    assert robust == [image for image, share in enumerate(chosen.tolist()) if share > 0]

    suite = AttackSuite("rand", "", attacks)
    suite.run(ctx)
    rows = suite.rows(ctx)
    assert rows["clean_correct"] == clean["correct_scored"]
    tables = [ctx.table(attack.name) for attack in attacks]
    for row, right in enumerate(rows["robust"]):
        options = [(float(chosen[row]), clean["correct_scored"][row])]
        options += [(table["correct_selected"][row], table["correct_scored"][row]) for table in tables]
        least = min(options, key=lambda option: option[0])[0]
        # the point was selected by the first samples, and its score is that of the others
        assert right == next(score for choice, score in options if choice == least)
    assert any(right not in (0.0, 1.0) for right in rows["robust"])
    # choosing the least of three by the scores themselves would be lower by far more than chance explains
    flattered = sum(
        min(values[row] for values in (clean["correct_scored"], *(table["correct_scored"] for table in tables)))
        for row in range(IMAGES)
    )
    assert sum(rows["robust"]) > flattered + 5


def test_every_step_averages_its_samples_and_no_success_ends_the_search() -> None:
    x, y = pictures(0.6)
    result = robustness(NoisyThreshold(0.1), x[:10], y[:10], Linf(0.3), rand(5, samples=7))
    for attack in result.attacks:
        assert (attack.tried, attack.forwards, attack.backwards) == (10, 10 * 6 * 7, 10 * 6 * 7)


@pytest.mark.parametrize(
    ("shares", "mean", "reach"),
    [
        ([0.5] * 9, 0.5, 0.0),
        # n = 4, squares 4 x 0.0625, divided by 3: spread sqrt(1/12)
        ([0.25, 0.75, 0.25, 0.75], 0.5, 1.959963984540054 * math.sqrt(1 / 12) / 2),
        ([1.0, 0.9], 0.95, 1.959963984540054 * 0.05),
        ([0.3], 0.3, 0.0),
    ],
)
def test_expected_accuracy_is_the_mean_with_the_normal_interval(shares: list[float], mean: float, reach: float) -> None:
    result = expected_accuracy(shares)
    assert result.accuracy == pytest.approx(mean, abs=1e-12)
    assert result.low == pytest.approx(mean - reach, abs=1e-12)
    assert result.high == pytest.approx(min(1.0, mean + reach), abs=1e-12)
    assert (result.n, result.correct) == (len(shares), round(sum(shares)))
    assert 0 <= result.low <= result.high <= 1
