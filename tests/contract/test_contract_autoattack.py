"""AutoAttack with its published budgets: their settings, their costs, and their success at an exact radius.

Shape letters: B images, K classes.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from vitadel.attacks import APGD, FAB, AutoAttack, AutoAttackPlus, AutoAttackRand, IterativeAttack, NamedAttack, Square
from vitadel.attacks.oracle import Oracle
from vitadel.core.rng import RandomStreams
from vitadel.goals import Untargeted
from vitadel.losses import cross_entropy, dlr, margin
from vitadel.threats import L1, L2, Linf, Threat


class Planes(nn.Module):
    """Ten linear logits of four pixels, class 0 ahead on gray ones; counts the images sent through it both ways."""

    def __init__(self) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(4)
        self.weight = torch.randn(10, 4, dtype=torch.float64, generator=rng)
        self.bias = -torch.linspace(0, 0.9, 10, dtype=torch.float64) - 0.5 * self.weight.sum(1)
        self.bias[0] += 0.2
        self.forwards = self.backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        if x.requires_grad:
            x.register_hook(self._count)
        return x.flatten(1) @ self.weight.T + self.bias

    def _count(self, grad: Tensor) -> None:
        self.backwards += len(grad)

    def radius(self, threat: Threat) -> float:
        """The distance from gray to the nearest of nine planes, in closed form: the box is out of reach."""
        gray_K = self.bias + 0.5 * self.weight.sum(1)
        dual = {Linf: 1.0, L2: 2.0, L1: float("inf")}[type(threat)]
        norms_K = (self.weight[1:] - self.weight[0]).norm(p=dual, dim=1)
        return float(((gray_K[0] - gray_K[1:]) / norms_K).min())


GRAY = torch.full((1, 1, 2, 2), 0.5, dtype=torch.float64)
LABEL = torch.tensor([0])


def evaluations(stage: NamedAttack, threat: Threat, classes: int) -> int:
    """How many points a stage evaluates for a robust image."""
    assert isinstance(stage.attack, IterativeAttack)
    return stage.attack.restarts * stage.attack.num_branches(classes) * stage.attack.num_steps(threat)


@pytest.mark.parametrize(
    ("attack", "threat", "expected"),
    [
        (AutoAttack(), Linf(0.1), {"apgd-ce": 101, "apgd-t": 9 * 101, "fab-t": 9 * 101, "square": 5001}),
        (AutoAttack(), L2(0.5), {"apgd-ce": 101, "apgd-t": 9 * 101, "fab-t": 9 * 101, "square": 5001}),
        # 30 steps in three times and 30 in twice the radius, 40 in it, and a point more in each
        (AutoAttack(), L1(1.0), {"apgd-ce": 5 * 103, "apgd-t": 5 * 103, "fab-t": 9 * 101, "square": 5001}),
        (
            AutoAttackPlus(),
            Linf(0.1),
            {
                "apgd-ce": 5 * 101,
                "apgd-dlr": 5 * 101,
                "fab": 5 * 101,
                "square": 5001,
                "apgd-t": 9 * 101,
                "fab-t": 9 * 101,
            },
        ),
        (AutoAttackRand(), Linf(0.1), {"apgd-ce": 101, "apgd-dlr": 101}),
    ],
    ids=["standard-linf", "standard-l2", "standard-l1", "plus", "rand"],
)
def test_published_budgets(attack: AutoAttack, threat: Threat, expected: dict[str, int]) -> None:
    result = {stage.name: evaluations(stage, threat, classes=10) for stage in attack.stages(threat)}
    assert list(result.items()) == list(expected.items())


def test_fewer_classes_leave_fewer_targets() -> None:
    result = {stage.name: evaluations(stage, Linf(0.1), classes=4) for stage in AutoAttack().stages(Linf(0.1))}
    assert result == {"apgd-ce": 101, "apgd-t": 3 * 101, "fab-t": 3 * 101, "square": 5001}


def test_each_stage_maximizes_its_published_loss() -> None:
    losses = {stage.name: stage.loss for stage in AutoAttackPlus().stages(Linf(0.1))}
    assert (losses["apgd-ce"], losses["apgd-dlr"], losses["square"]) == (cross_entropy, dlr, margin)
    samples = [
        stage.attack.eot_samples for stage in AutoAttackRand().stages(Linf(0.1)) if isinstance(stage.attack, APGD)
    ]
    assert samples == [20, 20]


@pytest.mark.slow
def test_a_robust_image_costs_the_whole_budget() -> None:
    """APGD: 101 + 909 gradients. FAB: 909, with a query each. Two ranking queries, one after each stage, a verdict."""
    model = Planes()
    threat = Linf(0.98 * model.radius(Linf(0.1)))
    result = AutoAttack()(model, GRAY, Untargeted(LABEL), threat, seed=0)
    assert not result.success.item()
    assert result.backwards == model.backwards == 101 + 909 + 909
    assert result.forwards == model.forwards == 101 + (1 + 909) + (1 + 2 * 909) + 5001 + 4 + 1
    assert result.flags == ()


@pytest.mark.slow
def test_the_randomized_version_averages_twenty_gradients() -> None:
    """103 points in L1, because each phase of the wide start has one more than it has steps.

    DLR takes three classes, so a stage that maximizes it first queries their number.
    """
    model = Planes()
    result = AutoAttackRand()(model, GRAY, Untargeted(LABEL), L1(0.98 * model.radius(L1(1.0))), seed=0)
    assert not result.success.item()
    assert result.backwards == model.backwards == 2 * 20 * 103
    assert result.forwards == model.forwards == 2 * 20 * 103 + 1 + 2 + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "kind"),
    [
        *((AutoAttack(), kind) for kind in (Linf(0.1), L2(0.5), L1(1.0))),
        # untargeted APGD alone does not find a single steepest pixel in L1 (test_contract_radius.py)
        *((version, kind) for version, kind in ((AutoAttackPlus(), L2(0.5)), (AutoAttackRand(), Linf(0.1)))),
    ],
    ids=lambda value: value.version if isinstance(value, AutoAttack) else type(value).__name__,
)
def test_an_image_beyond_its_radius_is_broken(attack: AutoAttack, kind: Threat) -> None:
    model = Planes()
    eps = 1.02 * model.radius(kind)
    result = attack(model, GRAY, Untargeted(LABEL), kind.with_eps(eps), seed=0)
    assert result.success.item()
    assert result.distance.item() <= eps * (1 + 1e-9)


class ThreeStages(AutoAttack):
    """Stages so short that none of them finds everything."""

    __slots__ = ()

    def stages(self, threat: Threat) -> tuple[NamedAttack, ...]:
        return (
            NamedAttack("apgd-ce", APGD(steps=2 if isinstance(threat, L2) else 4), cross_entropy),
            NamedAttack("fab-t", FAB(steps=2, targets=1), margin),
            NamedAttack("square", Square(queries=40), margin),
        )


def test_a_cascade_breaks_what_its_stages_break_alone(threat: Threat, ripples: Callable[[float], nn.Module]) -> None:
    """Every stage has its own random numbers, whichever images are left for it."""
    cascade, small = ThreeStages(), threat.with_eps(0.3 * threat.eps)
    x0 = torch.rand(24, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    label_B, rng, more = torch.zeros(24, dtype=torch.int64), RandomStreams.of(8, torch.arange(24)), 0
    for logit_difference in (12.0, 16.0, 18.0):
        model, alone = ripples(logit_difference), []
        for number, stage in enumerate(cascade.stages(small)):
            x = stage.attack.search(Oracle(model), x0, Untargeted(label_B, stage.loss), small, rng.fold(number))
            alone.append(model(small.project(x, x0)).argmax(1) != 0)
        together = cascade(model, x0, Untargeted(label_B), small, seed=8).success
        assert together.tolist() == torch.stack(alone).any(0).tolist()
        more += int(together.sum()) - max(int(broken.sum()) for broken in alone)
    assert more > 0, "one stage found everything, so nothing was tested"
