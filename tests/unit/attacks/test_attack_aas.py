"""Attacks that learn from a rescaled model: judged by the model itself, never weaker, exactly counted."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitadel import data
from vitadel.attacks import (
    AAS,
    APGD,
    FAB,
    FGSM,
    GAMA,
    PGD,
    Attack,
    AutoAttack,
    Engine,
    Factors,
    IterativeAttack,
    Scaling,
    Square,
    StepContext,
)
from vitadel.attacks.attention_scaling.attack import RescaledIterativeAttack, rescale_attack
from vitadel.attacks.attention_scaling.rescaled_model import RescaledModel
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.goals import Targeted, Untargeted
from vitadel.losses import Loss, cross_entropy, margin
from vitadel.models import Model, load
from vitadel.recipes import RECIPES, train_recipe
from vitadel.threats import L2, Linf

EPS = Linf(8 / 255)
SMALL = {"depth": 2, "embed_dim": 24, "num_heads": 2}


@pytest.fixture(scope="module")
def model() -> Model:
    net = load("timm:vit_tiny_patch16_224", num_classes=5, image_size=8, patch_size=4, options=SMALL)
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=rng))
    return net.eval()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(7))


@pytest.fixture(scope="module")
def label_B(model: Model, x: Tensor) -> Tensor:
    """The model's predictions, so that every image is correct before the attack."""
    return model(x).argmax(1)


INNER = [
    (FGSM(), cross_entropy),
    (PGD(steps=8), cross_entropy),
    (PGD(steps=8), margin),
    (PGD(steps=4, keep_best=False), cross_entropy),
    (PGD(steps=4, targets=2), margin),
    (GAMA(steps=8), margin),
    (APGD(steps=8), cross_entropy),
    (APGD(steps=6, targets=3), margin),
    (FAB(steps=4), margin),
    (Square(queries=20), margin),
]


@pytest.mark.parametrize(("inner", "loss"), INNER)
def test_never_weaker_than_its_inner_attack(
    model: Model, x: Tensor, label_B: Tensor, inner: Attack, loss: Loss
) -> None:
    goal = Untargeted(label_B, loss)
    plain = inner(model, x, goal, EPS, seed=1)
    both = AAS(inner, factors=Factors((0.1, 0.3)))(model, x, goal, EPS, seed=1)
    assert bool((both.success | ~plain.success).all())
    assert torch.equal(both.x_adv[plain.success], plain.x_adv[plain.success])
    assert float(both.distance.max()) <= EPS.eps * (1 + 1e-5)
    assert torch.equal(both.success, goal.success(model(both.x_adv)))


@pytest.mark.parametrize(("inner", "loss"), INNER)
def test_factors_of_one_change_nothing(model: Model, x: Tensor, label_B: Tensor, inner: Attack, loss: Loss) -> None:
    goal, rng, same = (
        Untargeted(label_B, loss),
        RandomStreams.of(2, torch.arange(len(x))),
        rescale_attack(inner, Factors((1.0, 1.0))),
    )
    if isinstance(inner, IterativeAttack) and isinstance(same, RescaledIterativeAttack):
        result = [Engine().search(attack, Oracle(model), x, goal, EPS, rng) for attack in (inner, same)]
    else:
        result = [attack.search(Oracle(model), x, goal, EPS, rng) for attack in (inner, same)]
    assert torch.equal(*result)


def test_costs_of_an_attack_and_its_scaled_version(model: Model, x: Tensor, label_B: Tensor) -> None:
    """Every point is queried twice: the rescaled model with its gradient, the unscaled model without."""
    goal, nearly_nothing = Untargeted(label_B), Linf(1e-6)
    result = rescale_attack(PGD(steps=5), Factors((0.5, 0.5)))(model, x, goal, nearly_nothing, seed=0)
    assert not result.success.any()
    assert result.backwards == len(x) * 6
    assert result.forwards == len(x) * (2 * 6 + 1)  # and once for the judgment


def test_gradients_are_of_the_rescaled_model(model: Model, x: Tensor, label_B: Tensor) -> None:
    factors = Factors((0.2, 3.0))
    result = rescale_attack(FGSM(), factors)(model, x, Untargeted(label_B), EPS, seed=0)
    by_hand = FGSM()(RescaledModel(model, factors.attentions), x, Untargeted(label_B), EPS, seed=0)
    assert torch.equal(result.x_adv, by_hand.x_adv)
    assert torch.equal(result.success, model(by_hand.x_adv).argmax(1) != label_B)
    assert not torch.equal(result.x_adv, FGSM()(model, x, Untargeted(label_B), EPS, seed=0).x_adv)


def test_every_iterate_is_judged_by_the_unscaled_model(model: Model, x: Tensor, label_B: Tensor) -> None:
    """The first of its points that fools the model counts, whatever the rescaled model predicts."""
    factors, goal, threat = Factors((0.05, 0.05)), Untargeted(label_B), Linf(12 / 255)
    rng, inner = RandomStreams.of(0, torch.arange(len(x))), PGD(steps=12)
    seen: list[Tensor] = []

    def watched(pixels: Tensor) -> Tensor:
        seen.append(pixels.detach())
        return RescaledModel(model, factors.attentions)(pixels)

    endless = Linf(threat.eps)
    with torch.no_grad():
        for row in range(8):  # alone and to its end, on a rescaled model that is never fooled
            seen.clear()
            one = rng.at(torch.tensor([row]))
            items = StepContext(
                x[row : row + 1],
                goal.at(torch.tensor([row])),
                endless,
                one.fold(0).fold(0),
                *[torch.zeros(1).long()] * 2,
            )
            state = inner.start(Oracle(watched), items)
            for step in range(inner.num_steps(threat)):
                _, state = inner.step(Oracle(watched), replace(items, step_B=torch.tensor([step])), state)
            fools = [bool(goal.at(torch.tensor([row])).success(model(point))) for point in seen]
            result = Engine().search(
                RescaledIterativeAttack(inner, factors),
                Oracle(model),
                x[row : row + 1],
                goal.at(torch.tensor([row])),
                threat,
                one,
            )
            if any(fools):
                torch.testing.assert_close(result, threat.project(seen[fools.index(True)], x[row : row + 1]))
            else:
                assert not goal.at(torch.tensor([row])).success(model(result))


def test_verdicts_do_not_depend_on_the_batch(model: Model, x: Tensor, label_B: Tensor) -> None:
    attack, index_B = AAS(PGD(steps=6), factors=Factors((0.3, 0.1))), torch.arange(len(x))
    whole = attack(model, x, Untargeted(label_B), EPS, seed=3, index_B=index_B)
    for size in (1, 5, 24):
        parts = [attack(model, x[at], Untargeted(label_B[at]), EPS, seed=3, index_B=at) for at in index_B.split(size)]
        assert torch.equal(torch.cat([part.success for part in parts]), whole.success)


def test_the_model_is_left_unchanged(model: Model, x: Tensor, label_B: Tensor) -> None:
    before = model(x)
    AAS(PGD(steps=2), Scaling(batches=1, batch_size=8, trial_images=8))(model, x, Untargeted(label_B), EPS, seed=0)
    assert torch.equal(model(x), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_autoattack_is_scaled_stage_by_stage(model: Model, x: Tensor, label_B: Tensor) -> None:
    small, goal = AAS(AutoAttack(), factors=Factors((0.3, 0.1))), Untargeted(label_B[:2])
    result = small(model, x[:2], goal, Linf(48 / 255), seed=0)
    plain = AutoAttack()(model, x[:2], goal, Linf(48 / 255), seed=0)
    assert bool((result.success | ~plain.success).all())
    with pytest.raises(UsageError, match=r"attack by attack. Write AAS\(AutoAttack\(\)"):
        rescale_attack(AutoAttack(), Factors((1.0, 1.0)))


def test_other_norms_are_supported(model: Model, x: Tensor, label_B: Tensor) -> None:
    result = AAS(APGD(steps=6), factors=Factors((0.3, 0.1)))(model, x, Untargeted(label_B), L2(0.5), seed=0)
    assert float(result.distance.max()) <= 0.5 * (1 + 1e-5)


def test_a_goal_without_labels_needs_given_factors(model: Model, x: Tensor, label_B: Tensor) -> None:
    toward = Targeted((label_B + 1) % 5)
    with pytest.raises(UsageError, match="AAS needs an Untargeted goal, got Targeted"):
        AAS(PGD(steps=2))(model, x, toward, EPS, seed=0)
    AAS(PGD(steps=2), factors=Factors((0.5, 0.5)))(model, x, toward, EPS, seed=0)


def test_prepared_searches_factors_once(model: Model, x: Tensor, label_B: Tensor) -> None:
    ready, result = AAS(PGD(steps=3), Scaling(batches=2, batch_size=8, trial_images=8)).prepared(model, x, label_B, EPS)
    assert ready.factors == result.best
    assert len(result.best.attentions) == 2


def test_the_engine_runs_scaled_attacks_like_others(model: Model, x: Tensor, label_B: Tensor) -> None:
    attack, rng = (
        RescaledIterativeAttack(APGD(steps=6, targets=2), Factors((0.3, 0.1))),
        RandomStreams.of(0, torch.arange(len(x))),
    )
    goal = Untargeted(label_B, margin)
    few, many = (Engine(batch_size=rows).search(attack, Oracle(model), x, goal, EPS, rng) for rows in (6, 256))
    assert torch.equal(few, many)


@pytest.mark.slow
def test_planted_masking_is_detected(tmp_path: Path) -> None:
    """Gradients are exactly zero: PGD-100 finds nothing, Square plenty, and AAS at least 80% of what Square finds."""
    pointer = train_recipe(RECIPES["digits-masked-gradient"](), tmp_path / "run")
    test = data.load("digits", preprocess=data.Squash(8)).split("test")
    x, y = test.images(torch.arange(len(test))), test.labels
    right_B, threat = pointer(x).argmax(1) == y, Linf(24 / 255)
    assert right_B.float().mean() > 0.9
    plain = PGD(steps=100)(pointer, x, Untargeted(y), threat, seed=0)
    square = Square(queries=2000)(pointer, x, Untargeted(y, margin), threat, seed=0)
    ready, _ = AAS(PGD(steps=100)).prepared(pointer, x, y, threat)
    aas = ready(pointer, x, Untargeted(y), threat, seed=0)
    assert plain.zero_gradients > 0.99 * plain.backwards
    assert (plain.success & right_B).sum() < 0.02 * right_B.sum()
    of_square_B = square.success & right_B
    assert of_square_B.sum() > 0.4 * right_B.sum()
    assert (aas.success & of_square_B).sum() >= 0.8 * of_square_B.sum()
