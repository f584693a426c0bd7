"""AAS-AT: when factors are searched, which are kept, and which passes use them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from vitadel import models
from vitadel.attacks import PGD, Factors, Scaling
from vitadel.attacks.attention_scaling.factor_search import maximize_factors
from vitadel.attacks.attention_scaling.rescaled_model import RescaledModel
from vitadel.core.errors import UsageError
from vitadel.core.rng import fold_seed
from vitadel.models import Model, attention_scales, set_attention_scales
from vitadel.objectives import (
    AWP,
    MART,
    TRADES,
    Adversarial,
    AttentionScaling,
    Objective,
    Scope,
    Standard,
    TrainingTime,
)
from vitadel.threats import Linf

ATTACK = PGD(steps=2, step_size=0.05, keep_best=False)
ADVERSARIAL = Adversarial(ATTACK, Linf(0.1))
ONE = replace(Scaling.paper(), batches=1, batch_size=4, steps=2)


def fresh() -> Model:
    options = {"depth": 2, "embed_dim": 32, "num_heads": 2}
    model = models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=options)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "qkv" in name:
                weight.mul_(20)
    return model.train()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.rand(8, 3, 8, 8, generator=rng), torch.arange(8)


def epochs_of(objective: AttentionScaling, epochs: int, updates: int = 3) -> list[tuple[int, int]]:
    """Every update that searches, as (epoch, number within it)."""
    moments = [TrainingTime((step + 1) / updates, epochs, updates) for step in range(epochs * updates)]
    return [(one.epoch_index, one.update_in_epoch) for one in moments if objective.searches_at(one)]


def test_scaled_epochs() -> None:
    objective = AttentionScaling(ADVERSARIAL, period=10)
    assert [e for e, number in epochs_of(objective, 110) if number == 0] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert len(epochs_of(objective, 110)) == 3 * 10
    # the last epoch always trains
    assert {e for e, _ in epochs_of(objective, 31)} == {10, 20}
    assert {e for e, _ in epochs_of(objective, 32)} == {10, 20, 30}
    assert {e for e, _ in epochs_of(AttentionScaling(ADVERSARIAL, period=1), 4)} == {1, 2}


@pytest.mark.parametrize(("gap", "searches"), [(2, range(2, 109, 2)), (50, [50, 100]), (109, [109]), (110, [109])])
def test_gaps_of_figure_5_in_110_epochs(gap: int, searches: Sequence[int]) -> None:
    """Jain & Dutta 2024, figure 5 and section 6.2: gaps from 2 to 110 epochs, the last two "only once/twice"."""
    due = epochs_of(AttentionScaling(ADVERSARIAL, period=gap), 110)
    assert sorted({epoch for epoch, _ in due}) == list(searches)
    assert len(due) == 3 * len(searches)


def test_a_period_longer_than_the_training_never_searches() -> None:
    assert epochs_of(AttentionScaling(ADVERSARIAL, period=111), 110) == []
    assert epochs_of(AttentionScaling(ADVERSARIAL, period=1), 1) == [], "the first epoch trains"
    only = AttentionScaling(ADVERSARIAL, period=110, batches=1)
    assert epochs_of(only, 110) == [(109, 0)], "the rest of the last epoch trains"


def test_scaling_can_be_limited_to_the_first_batches() -> None:
    objective = AttentionScaling(ADVERSARIAL, period=2, batches=2)
    assert epochs_of(objective, 6) == [(2, 0), (2, 1), (4, 0), (4, 1)]
    assert len(epochs_of(replace(objective, batches=100), 6)) == 6


@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize(
    "inner",
    [
        Standard(),
        ADVERSARIAL,
        TRADES(ATTACK, Linf(0.1)),
        MART(ATTACK, Linf(0.1)),
        AWP(TRADES(ATTACK, Linf(0.1)), gamma=0.05),
    ],
    ids=lambda inner: type(inner).__name__,
)
def test_factors_of_one_give_the_inner_objective(batch: tuple[Tensor, Tensor], inner: Objective, scope: Scope) -> None:
    plain, model = fresh(), fresh()
    objective = AttentionScaling(inner, scope=scope)
    objective.prepare_model(model)
    now = TrainingTime(1.0, 30.0)
    one, other = inner.at(now)(plain, *batch, seed=3), objective.at(now)(model, *batch, seed=3)
    assert torch.equal(one.loss, other.loss)
    assert other.trains
    one.undo()
    other.undo()


@pytest.mark.parametrize("inner", [ADVERSARIAL, TRADES(ATTACK, Linf(0.1))], ids=["adversarial", "trades"])
def test_deployed_factors_are_in_attack_and_loss(batch: tuple[Tensor, Tensor], inner: Objective) -> None:
    model = fresh()
    objective = AttentionScaling(inner)
    objective.prepare_model(model)
    set_attention_scales(model, [0.1, 3.0])
    by_hand = fresh()
    result = objective.at(TrainingTime(1.0, 30.0))(model, *batch, seed=3)
    with by_hand.taps.scale([0.1, 3.0]):
        assert torch.equal(result.loss, inner(by_hand, *batch, seed=3).loss)


def test_the_attacks_factors_are_in_the_attack_alone(batch: tuple[Tensor, Tensor]) -> None:
    model, plain = fresh(), fresh()
    objective = AttentionScaling(ADVERSARIAL, scope=Scope.ATTACK)
    objective.prepare_model(model)
    attention_scales.set_factors(model.net, attention_scales.ATTACK, [0.1, 3.0])
    now = objective.at(TrainingTime(1.0, 30.0))
    examples = now.prepare(model, *batch, seed=3)
    by_hand = ADVERSARIAL.prepare(RescaledModel(plain, [0.1, 3.0]), *batch, seed=3)
    assert torch.equal(examples.x_adv, by_hand.x_adv)
    assert not torch.equal(examples.x_adv, ADVERSARIAL.prepare(plain, *batch, seed=3).x_adv)
    assert torch.equal(now.loss(model, examples).loss, ADVERSARIAL.loss(plain, by_hand).loss)
    assert torch.equal(model(batch[0]), plain(batch[0]))
    assert model.attention_scales is None


def searched(model: Model, batch: tuple[Tensor, Tensor], objective: AttentionScaling, epoch: int, seed: int) -> Tensor:
    step = objective.at(TrainingTime(epoch + 0.5, 30.0, 2))(model, *batch, seed=seed, index_B=torch.arange(8) + 40)
    assert not step.trains
    assert "loss" not in step.logs
    return step.loss


def test_the_greatest_distance_of_an_epoch_is_kept(batch: tuple[Tensor, Tensor]) -> None:
    """Four images give a candidate, measured from the network without factors, whatever it has at the time."""
    x, y = batch
    model, plain = fresh(), fresh()
    objective = AttentionScaling(ADVERSARIAL, period=5, scaling=ONE)
    objective.prepare_model(model)
    candidates = {
        seed: [
            maximize_factors(plain, x[at : at + 4], y[at : at + 4], ONE, seed=fold_seed(seed, 40 + at)).best
            for at in (0, 4)
        ]
        for seed in range(4)
    }
    for seed in range(4):
        value = searched(model, batch, objective, 5, seed)
        so_far = [one for done in range(seed + 1) for one in candidates[done]]
        best = max(so_far, key=lambda one: one.objective or 0.0)
        assert best.objective is not None
        assert value.item() == pytest.approx(best.objective)
        assert model.attention_scales is not None
        assert model.attention_scales.tolist() == pytest.approx(best.attentions)
    # another epoch begins anew, also where its distance is smaller
    worst = min(range(4), key=lambda seed: max(one.objective or 0.0 for one in candidates[seed]))
    searched(model, batch, objective, 10, worst)
    expected = max(candidates[worst], key=lambda one: one.objective or 0.0)
    assert model.attention_scales is not None
    assert model.attention_scales.tolist() == pytest.approx(expected.attentions)


def test_a_batch_in_parts_gives_the_same_candidates(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    objective = AttentionScaling(ADVERSARIAL, period=5, scaling=ONE)
    whole, cut = fresh(), fresh()
    for model in (whole, cut):
        objective.prepare_model(model)
    now, index_B = objective.at(TrainingTime(5.5, 30.0, 2)), torch.arange(8)
    now(whole, x, y, seed=1, index_B=index_B)
    for rows in (slice(0, 4), slice(4, 8)):
        now(cut, x[rows], y[rows], seed=1, index_B=index_B[rows])
    assert whole.attention_scales is not None
    assert cut.attention_scales is not None
    assert torch.equal(whole.attention_scales, cut.attention_scales)


def test_the_last_factors_are_kept_on_request(batch: tuple[Tensor, Tensor]) -> None:
    model, x = fresh(), batch[0]
    objective = AttentionScaling(ADVERSARIAL, period=5, scaling=replace(ONE, keep="last"))
    objective.prepare_model(model)
    for seed in range(3):
        searched(model, batch, objective, 5, seed)
    last = maximize_factors(fresh(), x[4:], batch[1][4:], ONE, seed=fold_seed(2, 44)).best
    assert model.attention_scales is not None
    assert model.attention_scales.tolist() == pytest.approx(last.attentions)


# -------------------------------------------------------------------- the literal form

LITERAL = replace(Scaling.literal(), batches=1, batch_size=4, steps=2)


def literal_distance(model: Model, x: Tensor, old: Tensor, new: Tensor) -> float:
    """The paper's equation 3 between the features of two rescaled networks, mean over the images."""
    seen: list[list[Tensor]] = []
    for factors_M in (old, new):
        with torch.no_grad(), model.taps.scale(factors_M), model.taps.read("blocks.*.out") as features:
            model(x)
        seen.append([features[name].flatten(1).double() for name in sorted(features)])
    return float(sum((a - b).norm(dim=1) / (a.norm(dim=1) * b.norm(dim=1)) for a, b in zip(*seen, strict=True)).mean())


@pytest.mark.parametrize("scope", list(Scope))
def test_the_literal_form_drifts_from_batch_to_batch(batch: tuple[Tensor, Tensor], scope: Scope) -> None:
    """Algorithm 1: S' of a mini-batch is measured from S, then S = S', whatever has become of it before."""
    x, y = batch
    model, plain = fresh().eval(), fresh().eval()
    objective = AttentionScaling(ADVERSARIAL, period=5, scope=scope, scaling=LITERAL)
    objective.prepare_model(model)
    name = attention_scales.ATTENTION if scope is Scope.DEPLOYED else attention_scales.ATTACK
    drifting = Factors((1.0, 1.0))
    for epoch, seed in ((5, 0), (5, 1), (10, 2)):
        distance = searched(model, batch, objective, epoch, seed)
        for at in (0, 4):
            before = drifting
            found = maximize_factors(
                plain, x[at : at + 4], y[at : at + 4], LITERAL, reference=before, seed=fold_seed(seed, 40 + at)
            )
            drifting = found.best
        factors_M, logits = model.net.get_buffer(name), model.net.get_buffer(attention_scales.LOGITS[name])
        assert factors_M.tolist() == pytest.approx(drifting.attentions)
        assert float(logits) == pytest.approx(drifting.logits)
        assert distance.item() == pytest.approx(
            literal_distance(plain, x[4:], torch.tensor(before.attentions), factors_M), rel=1e-4
        )


def test_a_drifting_reference_begins_where_it_is_told() -> None:
    x, y = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    still = replace(LITERAL, step_size=1e-9)  # so that what is found is where the search began: S + delta
    ones, tenths = (
        maximize_factors(fresh(), x, y, still, reference=Factors((s, s), s), seed=1).best for s in (1.0, 0.1)
    )
    moved = [one for one in zip(ones.attentions, tenths.attentions, strict=True) if max(one) < 1]
    assert moved, "of two normal draws around 1, one is below"
    assert all(one - other == pytest.approx(0.9) or other == pytest.approx(1e-7) for one, other in moved)


def test_a_deployed_factor_of_the_logits_is_part_of_model_attack_and_loss(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    model, plain = fresh(), fresh()
    objective = AttentionScaling(TRADES(ATTACK, Linf(0.1)), scaling=LITERAL)
    objective.prepare_model(model)
    set_attention_scales(model, [0.1, 0.9], logits=0.25)

    class ByHand(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = plain

        def forward(self, x: Tensor) -> Tensor:
            with plain.taps.scale([0.1, 0.9]):
                return 0.25 * plain(x)

    assert torch.equal(model(x), ByHand()(x))
    found = objective.at(TrainingTime(1.0, 30.0))(model, x, y, seed=3)
    assert torch.equal(found.loss, objective.inner(ByHand(), x, y, seed=3).loss)


def test_a_search_changes_only_the_factors(batch: tuple[Tensor, Tensor]) -> None:
    model = fresh()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    objective = AttentionScaling(ADVERSARIAL, period=5, scaling=ONE)
    objective.prepare_model(model)
    searched(model, batch, objective, 5, 0)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert all(module.training for module in model.modules())
    assert set(model.state_dict()) - set(before) == {"net.attention_scales", "net.scaling_record"}


def test_declared_passes() -> None:
    """Three passes to measure and ten steps of two; PGD with ten steps costs as much, so every epoch costs the same."""
    ten = Adversarial(PGD(steps=10, step_size=0.01), Linf(0.1))
    assert ten.passes == 23
    assert AttentionScaling(ten).at(TrainingTime(10.5, 30.0)).passes == 23
    assert AttentionScaling(ten).passes == 23
    assert AttentionScaling(TRADES(PGD(steps=10, step_size=0.01), Linf(0.1))).passes == pytest.approx(26.6)
    assert AttentionScaling(ADVERSARIAL, batches=3).passes == ADVERSARIAL.passes


def test_the_search_makes_its_declared_passes(batch: tuple[Tensor, Tensor]) -> None:
    for scaling in (ONE, replace(Scaling(), batches=2, steps=3), Scaling.manual(0.1, 0.01)):
        result = maximize_factors(fresh(), *batch, replace(scaling, batch_size=8))
        declared = AttentionScaling(ADVERSARIAL, scaling=scaling).at(TrainingTime(10.5, 30.0)).passes
        assert (result.forwards + result.backwards) / 8 == declared


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"period": 0}, "AttentionScaling.period must be at least 1, got 0. It counts epochs"),
        ({"batches": 0}, "AttentionScaling.batches must be at least 1, got 0. Write none for all"),
        ({"scaling": replace(Scaling.literal(), keep="distance")}, "Write scaling.keep=last, or scaling.reference=ori"),
        ({"inner": AttentionScaling(ADVERSARIAL)}, "cannot hold another one"),
    ],
)
def test_invalid_settings_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        AttentionScaling(**{"inner": ADVERSARIAL, **values})  # type: ignore[arg-type]


def test_awp_can_be_the_inner_objective() -> None:
    with pytest.raises(UsageError, match=r"Write AttentionScaling\(AWP\(\.\.\.\)\)"):
        AWP(AttentionScaling(ADVERSARIAL))


def test_models_that_cannot_be_scaled_are_refused() -> None:
    with pytest.raises(UsageError, match="ResNet has no attention"):
        AttentionScaling(ADVERSARIAL).prepare_model(models.load("timm:resnet18", num_classes=10, image_size=32))
    with pytest.raises(UsageError, match="this Linear is none. Load it with vitadel.models.load"):
        AttentionScaling(ADVERSARIAL).prepare_model(torch.nn.Linear(2, 2))
