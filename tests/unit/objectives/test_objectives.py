"""Objectives: closed forms of losses, exact costs, the model left unchanged."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitadel.attacks import FGSM, PGD
from vitadel.core.errors import UsageError
from vitadel.goals import Untargeted
from vitadel.objectives import Adversarial, ScheduleUnit, Standard, TrainingTime
from vitadel.objectives.base import hard_labels, soft_targets
from vitadel.threats import L2, Linf


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 5, 8), nn.ReLU(), nn.Linear(8, 4))
        self.forwards = 0
        self.modes: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        self.modes.append(self.training)
        z_BK: Tensor = self.layers(x)
        return z_BK


@pytest.fixture
def model() -> Counting:
    torch.manual_seed(0)
    return Counting().train()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(6, 3, 4, 5, generator=generator), torch.tensor([0, 1, 2, 3, 0, 1])


def test_standard_is_smoothed_cross_entropy(model: Counting, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    step = Standard(smoothing=0.1)(model, x, y, seed=0)
    torch.testing.assert_close(step.loss, F.cross_entropy(model(x), y, label_smoothing=0.1))


def test_adversarial_is_the_loss_on_adversarial_examples(model: Counting, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    attack, threat = PGD(steps=3, step_size=0.05, keep_best=False), Linf(0.1)
    step = Adversarial(attack, threat, smoothing=0.2)(model, x, y, seed=5, index_B=torch.arange(10, 16))
    result = attack.craft(model, x, Untargeted(y), threat, seed=5, index_B=torch.arange(10, 16))
    torch.testing.assert_close(step.loss, F.cross_entropy(model(result), y, label_smoothing=0.2))
    assert step.loss > F.cross_entropy(model(x), y, label_smoothing=0.2)


@pytest.mark.parametrize(("attack", "passes"), [(FGSM(), 1), (PGD(steps=4, step_size=0.1, keep_best=False), 4)])
def test_adversarial_makes_no_redundant_pass(
    model: Counting, batch: tuple[Tensor, Tensor], attack: FGSM | PGD, passes: int
) -> None:
    Adversarial(attack, L2(0.5))(model, *batch, seed=0)
    assert model.forwards == passes + 1
    # the attack sees the model in evaluation mode, the loss in training mode
    assert model.modes == [False] * passes + [True]


def test_weight_gradients_come_from_the_loss_alone(model: Counting, batch: tuple[Tensor, Tensor]) -> None:
    step = Adversarial(PGD(steps=2, step_size=0.1, keep_best=False), Linf(0.1))(model, *batch, seed=0)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    step.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_random_numbers_depend_on_the_image_index(model: Counting, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    objective = Adversarial(PGD(steps=1, step_size=0.01, keep_best=False), Linf(0.3))
    whole = objective.prepare(model, x, y, seed=3, index_B=torch.arange(6)).x_adv
    half = objective.prepare(model, x[3:], y[3:], seed=3, index_B=torch.arange(3, 6)).x_adv
    other = objective.prepare(model, x[3:], y[3:], seed=3, index_B=torch.arange(0, 3)).x_adv
    torch.testing.assert_close(whole[3:], half)
    assert (half - other).abs().max() > 1e-4


def test_the_radius_grows_during_the_warm_up_and_then_stays() -> None:
    objective = Adversarial(PGD(steps=1), Linf(0.2), eps_warmup=0.5)
    assert [objective.at(TrainingTime(epoch, 10)).threat.eps for epoch in (0.5, 2.5, 5, 10)] == pytest.approx(
        [0.02, 0.1, 0.2, 0.2]
    )
    assert Adversarial(PGD(steps=1), Linf(0.2)).at(TrainingTime(1e-9, 10)).threat.eps == 0.2


def test_mixed_labels() -> None:
    mixed = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.4, 0.6]])
    assert hard_labels(mixed).tolist() == [0, 2]
    torch.testing.assert_close(soft_targets(mixed, 3, 0.3).sum(1), torch.ones(2))
    torch.testing.assert_close(soft_targets(torch.tensor([1]), 4, 0.2), torch.tensor([[0.05, 0.85, 0.05, 0.05]]))


def test_invalid_settings_are_named() -> None:
    with pytest.raises(UsageError, match=r"Standard.smoothing must lie in \[0, 1\), got 1"):
        Standard(smoothing=1.0)
    with pytest.raises(UsageError, match="Adversarial.eps_warmup must lie in"):
        Adversarial(PGD(steps=1), Linf(0.1), eps_warmup=2)


def test_a_forward_and_backward_pass_cost_three() -> None:
    assert Standard().passes == Standard().loss_passes == 3
    threat = Linf(0.1)
    assert Adversarial(FGSM(), threat).passes == 2 + 3
    assert Adversarial(PGD(steps=4, step_size=0.1, keep_best=False), threat).passes == 4 * 2 + 3


def test_a_warmed_up_value_grows_linearly_or_in_steps() -> None:
    moments = [TrainingTime(epoch / 2, 8, updates=2) for epoch in range(1, 17)]
    evenly = [now.warmup(0.5, ScheduleUnit.STEP) for now in moments]
    assert evenly == [1 / 8, 2 / 8, 3 / 8, 4 / 8, 5 / 8, 6 / 8, 7 / 8, *[1.0] * 9]
    stairs = [now.warmup(0.5, ScheduleUnit.EPOCH) for now in moments]
    assert stairs == [0, 0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, *[1.0] * 8]
    assert [now.warmup(0.0, each) for now in moments[:2] for each in ScheduleUnit] == [1.0] * 4
    assert [(now.epoch_index, now.update_in_epoch) for now in moments[:4]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
