"""TRADES, MART and AWP against slow versions written from the papers, and schedules against their definitions."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitadel.attacks import FGSM, PGD
from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.objectives import (
    AWP,
    MART,
    TRADES,
    Adversarial,
    AdversarialObjective,
    Examples,
    Objective,
    ScheduleUnit,
    Standard,
    TrainingTime,
)
from vitadel.threats import L2, Linf, Threat


class Counting(nn.Module):
    """A small network with a norm, whose passes are counted; `pixels` are backward passes that end at the input."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first, self.norm, self.second = nn.Linear(60, 12), nn.BatchNorm1d(12), nn.Linear(12, 4)
        with torch.no_grad():
            for weight in (self.first.weight, self.second.weight):
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
        self.forwards = self.graded = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        self.graded += x.requires_grad
        z_BK: Tensor = self.second(self.norm(self.first(x.flatten(1))).tanh())
        return z_BK


@pytest.fixture
def model() -> Counting:
    return Counting().train()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return torch.rand(8, 3, 4, 5, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3] * 2)


PGD_10 = PGD(steps=10, step_size=0.02, keep_best=False)
SOFT = torch.rand(8, 4, generator=torch.Generator().manual_seed(2)).softmax(1)


def slow_trades(model: nn.Module, x: Tensor, start: Tensor, threat: Threat, steps: int, step: float) -> Tensor:
    """The inner maximum as the original code has it: the clean prediction is computed again at every step."""
    model.eval()
    x_adv = start
    for _ in range(steps):
        x_adv = x_adv.detach().requires_grad_()
        divergence = F.kl_div(F.log_softmax(model(x_adv), 1), F.softmax(model(x), 1), reduction="sum")
        (grad,) = torch.autograd.grad(divergence, x_adv)
        if isinstance(threat, Linf):
            x_adv = x_adv.detach() + step * grad.sign()
            x_adv = torch.min(torch.max(x_adv, x - threat.eps), x + threat.eps).clamp(0, 1)
        else:
            x_adv = x_adv.detach() + step * grad / grad.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            x_adv = threat.project(x_adv, x)
    model.train()
    return x_adv.detach()


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.5)], ids=str)
def test_trades_matches_the_original_with_fewer_passes(
    model: Counting, batch: tuple[Tensor, Tensor], threat: Threat
) -> None:
    x, y = batch
    twin = copy.deepcopy(model)  # every pass in training mode moves the running statistics
    step = TRADES(PGD_10, threat, beta=3.0, smoothing=0.4)(model, x, y, seed=4)
    # one pass for the clean prediction, two per step, two for the loss and four for its gradient: 27
    assert (model.forwards, model.graded) == (1 + 10 + 2, 10)
    assert TRADES(PGD_10, threat).passes == 27
    start = threat.sample(x, RandomStreams.of(4, torch.arange(8)).fold(0))
    x_adv = slow_trades(twin, x, start, threat, 10, 0.02)
    clean, adv = twin(x), twin(x_adv)
    natural = F.cross_entropy(clean, y, label_smoothing=0.4)
    divergence = F.kl_div(F.log_softmax(adv, 1), F.softmax(clean, 1), reduction="batchmean")
    torch.testing.assert_close(step.loss, natural + 3 * divergence, rtol=1e-4, atol=1e-5)
    # gradients flow through both predictions
    ours = torch.autograd.grad(step.loss, model.second.weight)[0]
    theirs = torch.autograd.grad(natural + 3 * divergence, twin.second.weight)[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_trades_can_start_from_small_noise(model: Counting, batch: tuple[Tensor, Tensor]) -> None:
    x, _ = batch
    attack = PGD(steps=1, step_size=1e-9, start_noise=0.001, keep_best=False)
    result = TRADES(attack, Linf(0.1)).prepare(model, x, batch[1], seed=0).x_adv
    moved = (result - x)[(x > 0.01) & (x < 0.99)]
    assert float(moved.std()) == pytest.approx(0.001, rel=0.15)
    with pytest.raises(UsageError, match="needs an attack with a random start"):
        TRADES(PGD(steps=2, random_start=False, keep_best=False), Linf(0.1))
    with pytest.raises(UsageError, match="PGD.start_noise must be positive"):
        PGD(start_noise=0.0)


def test_mart_matches_its_formula(model: Counting, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    objective = MART(PGD_10, Linf(0.1), beta=5.0)
    examples = objective.prepare(model, x, y, seed=1)
    step = objective.loss(model, examples)
    clean, adv = model(x).detach().double(), model(examples.x_adv).detach().double()
    expected = 0.0
    for p, q, label in zip(clean.softmax(1), adv.softmax(1), y, strict=True):
        runner_up = max(float(q[k]) for k in range(4) if k != label)
        boosted = -torch.log(q[label]) - torch.log(torch.tensor(1.0001 - runner_up))
        divergence = sum(float(p[k]) * float(torch.log(p[k] / q[k])) for k in range(4))
        expected += float(boosted) + 5 * divergence * float(1 - p[label])
    assert float(step.loss.detach()) == pytest.approx(expected / 8, rel=1e-4)
    assert objective.passes == 26


@pytest.mark.parametrize(
    "objective",
    [Standard(0.1), Adversarial(FGSM(), Linf(0.1)), TRADES(PGD_10, Linf(0.1)), MART(PGD_10, Linf(0.1))],
    ids=lambda one: type(one).__name__,
)
def test_mixed_labels_work_with_every_objective(
    model: Counting, batch: tuple[Tensor, Tensor], objective: Objective
) -> None:
    x, y = batch
    hard = objective(copy.deepcopy(model), x, y, seed=0).loss
    same = objective(copy.deepcopy(model), x, F.one_hot(y, 4).float(), seed=0).loss
    torch.testing.assert_close(hard, same)
    for wrapped in (objective, AWP(objective)):
        step = wrapped(copy.deepcopy(model), x, SOFT, seed=0)
        assert bool(step.loss.isfinite())
        assert not torch.allclose(step.loss, hard)
        step.loss.backward()
        step.undo()


# ------------------------------------------------------------------------ AWP


def grads_at(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    loss(model).backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize(
    "inner", [Adversarial(PGD_10, Linf(0.1)), TRADES(PGD_10, Linf(0.1))], ids=lambda o: type(o).__name__
)
def test_awp_uses_the_gradient_at_the_perturbed_weights(
    model: Counting, batch: tuple[Tensor, Tensor], inner: AdversarialObjective
) -> None:
    x, y = batch
    gamma = 0.05
    twin = copy.deepcopy(model)
    examples = inner.prepare(twin, x, y, seed=3)
    first = grads_at(copy.deepcopy(twin), lambda net: inner.loss(net, examples).loss)
    moved = copy.deepcopy(twin)
    with torch.no_grad():
        for name, weight in moved.named_parameters():
            if name in ("first.weight", "second.weight"):
                weight.add_(gamma * weight.norm() * first[name] / first[name].norm())
    expected = grads_at(moved, lambda net: inner.loss(net, examples).loss)

    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    step = AWP(inner, gamma=gamma)(model, x, y, seed=3)
    step.loss.backward()
    step.undo()
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name])
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, expected[name], rtol=1e-4, atol=1e-6)
    # the batch counts once in the running statistics, and as seen by the moved weights
    torch.testing.assert_close(model.norm.running_mean, moved.norm.running_mean)
    assert model.norm.num_batches_tracked == moved.norm.num_batches_tracked


def test_awp_attacks_once_and_starts_at_its_epoch(model: Counting, batch: tuple[Tensor, Tensor]) -> None:
    objective = AWP(Adversarial(PGD_10, Linf(0.1)), start=3)
    objective(model, *batch, seed=0).undo()
    assert model.forwards == 10 + 2
    assert objective.passes == 20 + 3 + 3
    assert isinstance(objective.at(TrainingTime(3.0, 10)), Adversarial)  # the end of epoch 2
    assert isinstance(objective.at(TrainingTime(3.01, 10)), AWP)
    with pytest.raises(UsageError, match="AWP.gamma must be positive, got 0"):
        AWP(Standard(), gamma=0.0)


def test_awp_works_under_autocast(batch: tuple[Tensor, Tensor]) -> None:
    """Autocast keeps the weights it has rounded: without care the loss would be that of the old ones."""
    x, y = batch
    model = nn.Sequential(nn.Flatten(), nn.Linear(60, 4))
    plain = Standard()
    with torch.autocast("cpu", torch.bfloat16):
        before = plain(model, x, y, seed=0).loss
    with torch.autocast("cpu", torch.bfloat16):
        step = AWP(plain, gamma=0.5)(model, x, y, seed=0)
    with torch.autocast("cpu", torch.bfloat16):
        there = plain(model, x, y, seed=0).loss  # the weights are still moved
    step.undo()
    torch.testing.assert_close(step.loss, there)
    assert float((step.loss - before).detach()) > 0.01


# ------------------------------------------------------------------ schedules


def test_the_thesis_schedule_warms_up_in_steps_after_a_clean_epoch() -> None:
    objective = Adversarial(FGSM(step_size=6 / 255), Linf(4 / 255), eps_warmup=10 / 110, warmup_unit=ScheduleUnit.EPOCH)
    steps_per_epoch = 7
    for epoch in range(12):
        for step in (epoch * 7, epoch * 7 + 6):
            now = objective.at(TrainingTime((step + 1) / steps_per_epoch, 110))
            if epoch == 0:
                assert now.attack is None
                continue
            assert now.threat.eps == pytest.approx(4 / 255 * min(1, epoch / 10))
            # the step is that of the full radius throughout
            assert now.attack == FGSM(step_size=6 / 255)


def test_step_size_and_number_of_steps_have_their_own_schedules() -> None:
    attack = PGD(steps=6, step_size=0.06, keep_best=False)
    objective = Adversarial(attack, Linf(0.1), eps_warmup=0.2, step_warmup=0.5, steps_warmup=1.0)
    now = objective.at(TrainingTime(2.5, 10))
    assert isinstance(now.attack, PGD)
    assert now.threat.eps == pytest.approx(0.1)
    assert now.attack.step_size == pytest.approx(0.03)
    assert now.attack.steps == 2
    assert objective.at(TrainingTime(10, 10)) == objective
    early = objective.at(TrainingTime(0.5, 10))
    assert isinstance(early.attack, PGD)
    assert early.attack.steps == 1  # a twentieth of 6 rounds to 0
    assert objective.at(TrainingTime(1, 10)).threat.eps == pytest.approx(0.05)


def test_without_attack_the_images_are_unchanged(model: Counting, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    for objective in (Adversarial(None, Linf(0.1)), TRADES(None, Linf(0.1)), MART(None, Linf(0.1))):
        assert objective.prepare(model, x, y, seed=0).x_adv is x
    assert model.forwards == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"eps_warmup": 10}, r"Adversarial.eps_warmup must lie in \[0, 1\], got 10. It is a share of training"),
        ({"step_warmup": 0.1}, "Adversarial.step_warmup needs an attack whose step_size is set"),
        ({"smoothing": 1.0}, r"Adversarial.smoothing must lie in \[0, 1\)"),
    ],
)
def test_invalid_settings_are_named(values: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Adversarial(PGD(steps=1), Linf(0.1), **values)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="TRADES.beta must not be negative"):
        TRADES(PGD_10, Linf(0.1), beta=-1)
    with pytest.raises(UsageError, match="steps_warmup needs an attack with steps"):
        Adversarial(FGSM(), Linf(0.1), steps_warmup=0.5)


@pytest.mark.parametrize("kind", [Adversarial, TRADES, MART])
def test_capturable_losses_are_the_same_at_every_step(model: Counting, kind: type[AdversarialObjective]) -> None:
    objective = kind(PGD(steps=4, step_size=0.02), Linf(0.1), eps_warmup=0.5, step_warmup=0.5, steps_warmup=0.5)
    assert objective.capturable
    x = torch.rand(6, 3, 4, 5)
    examples = Examples(x, torch.arange(6) % 4, (x + 0.05).clamp(max=1))
    wanted = objective.loss(model, examples).loss
    for epoch in (0.0, 1.0, 4.0, 10.0):
        now = objective.at(TrainingTime(epoch, 10))
        assert now.capturable
        assert torch.equal(now.loss(model, examples).loss, wanted)


def test_objectives_that_change_weights_are_not_capturable() -> None:
    assert Standard().capturable
    assert not AWP(Standard(), gamma=0.1).capturable
