"""A larger budget is never weaker, and half precision never decides.

Shape letters: B images, K classes.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from vitadel.attacks import APGD, FAB, GAMA, PGD, Attack, Square
from vitadel.goals import Goal, Untargeted
from vitadel.losses import LOSSES, Loss
from vitadel.threats import L1, Linf, Threat

Pixels = Callable[[int, torch.dtype], Tensor]
MakeNet = Callable[[torch.dtype], nn.Module]


def outcome(attack: Attack, model: nn.Module, x0: Tensor, goal: Goal, threat: Threat) -> list[tuple[bool, float]]:
    """Per image, (success, objective): the order in which a search prefers its candidates."""
    result = attack(model, x0, goal, threat, seed=8)
    with torch.no_grad():
        objective_B = goal.objective(model.eval()(result.x_adv))
    return list(zip(result.success.tolist(), objective_B.tolist(), strict=True))


def never_weaker(weak: list[tuple[bool, float]], strong: list[tuple[bool, float]]) -> bool:
    return all(
        other[0] > one[0] or (other[0] == one[0] and other[1] >= one[1] - 1e-12)
        for one, other in zip(weak, strong, strict=True)
    )


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_more_steps_of_the_same_length_are_never_weaker(
    threat: Threat, loss: Loss, pixels: Pixels, net: MakeNet
) -> None:
    """The iterates of the longer search begin with those of the shorter one."""
    model, x0, threat = net(torch.float64), pixels(7, torch.float64), threat.with_eps(threat.eps / 8)
    goal = Untargeted(model.eval()(x0).argmax(1), loss)
    result = [outcome(PGD(steps=n, step_size=threat.eps / 2), model, x0, goal, threat) for n in (1, 2, 4, 8)]
    assert all(never_weaker(weak, strong) for weak, strong in pairwise(result))
    assert result[-1] != result[0]


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_more_restarts_are_never_weaker(threat: Threat, loss: Loss, pixels: Pixels, net: MakeNet) -> None:
    model, x0, threat = net(torch.float64), pixels(7, torch.float64), threat.with_eps(threat.eps / 8)
    goal = Untargeted(model.eval()(x0).argmax(1), loss)
    result = [outcome(PGD(steps=1, step_size=threat.eps / 10, restarts=n), model, x0, goal, threat) for n in (1, 2, 4)]
    assert all(never_weaker(weak, strong) for weak, strong in pairwise(result))
    assert result[-1] != result[0]


# attacks by how often, toward how many classes or how long they search
HARDER: dict[str, Callable[[int], Attack]] = {
    "apgd-restarts": lambda n: APGD(steps=3, restarts=n),
    "apgd-t-restarts": lambda n: APGD(steps=2, targets=2, restarts=n),
    "apgd-wide-restarts": lambda n: APGD(steps=5, use_larger_eps=True, restarts=n),
    "pgd-t-restarts": lambda n: PGD(steps=2, targets=2, restarts=n),
    "fab-restarts": lambda n: FAB(steps=2, restarts=n),
    "square-restarts": lambda n: Square(queries=10, restarts=n),
    "gama-restarts": lambda n: GAMA(steps=2, restarts=n),
    "pgd-targets": lambda n: PGD(steps=3, targets=n),
    "apgd-targets": lambda n: APGD(steps=3, targets=n),
    "fab-targets": lambda n: FAB(steps=3, targets=n),
    # the steps of FAB do not depend on how many there will be, nor do the windows of a random search
    "fab-steps": lambda n: FAB(steps=n),
    "fab-t-steps": lambda n: FAB(steps=n, targets=2),
    "square-queries": lambda n: Square(queries=10 * n),
}


@pytest.mark.parametrize("harder", HARDER.values(), ids=HARDER)
def test_a_larger_budget_only_adds_successes(
    harder: Callable[[int], Attack], threat: Threat, ripples: Callable[[float], nn.Module]
) -> None:
    """More restarts or targets begin with the same searches, and more steps of some attacks with the same steps."""
    x0 = torch.rand(16, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    goal, counts = Untargeted(torch.zeros(16, dtype=torch.int64)), []
    for logit_difference in (12.0, 14.0, 16.0, 18.0):
        small = threat.with_eps(0.3 * threat.eps)
        weak, strong = (harder(n)(ripples(logit_difference), x0, goal, small, seed=8).success for n in (1, 4))
        assert bool((strong >= weak).all())
        counts.append((int(weak.sum()), int(strong.sum())))
    assert any(few < many for few, many in counts), counts


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 10])
def test_a_wide_start_ends_inside_the_radius_with_any_number_of_steps(steps: int) -> None:
    """Otherwise the returned point is never queried, and a restart may discard a success."""
    seen: list[Tensor] = []

    def model(x: Tensor) -> Tensor:
        seen.append(x.detach().clone())
        return torch.stack([x.flatten(1).mean(1) + 5, 1 - x.flatten(1).mean(1)], 1)

    x0, goal, threat = torch.full((2, 3, 5, 7), 0.5), Untargeted(torch.zeros(2, dtype=torch.int64)), L1(3.0)
    APGD(steps=steps, use_larger_eps=True).craft(model, x0, goal, threat, seed=0)
    # three phases take three steps
    first = 9.0 if steps >= 3 else 3.0
    assert threat.distance(seen[0], x0).tolist() == pytest.approx([first] * 2, rel=1e-4)
    assert threat.distance(seen[-1], x0).max().item() <= 3.0 * (1 + 1e-5)


class OneNumber(nn.Module):
    """Logits of one number per image: [weight * pixel - threshold, 0], by a layer that autocast runs in bfloat16."""

    def __init__(self, weight: float, threshold: float) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)
        self.dtypes: list[torch.dtype] = []
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[weight], [0.0]]))
            self.layer.bias.copy_(torch.tensor([-threshold, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        z_BK = self.layer(x.flatten(1))
        self.dtypes.append(z_BK.dtype)
        return z_BK


@pytest.mark.parametrize(
    ("weight", "label", "success"),
    [(0.999, 1, False), (1.001, 1, True), (1.001, 0, False), (0.999, 0, True)],
    ids=["false-success", "true-success", "true-failure", "false-failure"],
)
def test_a_success_in_half_precision_counts_only_if_float32_agrees(
    attack: Attack, weight: float, label: int, success: bool
) -> None:
    """0.999 and 1.001 are both 1 in bfloat16, where class 0 wins either way by a tie; in float32 they differ."""
    model, x0 = OneNumber(weight, threshold=0.5), torch.full((1, 1, 1, 1), 0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x0).argmax(1).item() == 0
        result = attack(model, x0, Untargeted(torch.tensor([label])), Linf(1e-6), seed=0)
    assert result.success.item() is success
    assert result.prediction.item() == (0 if weight > 1 else 1)
    assert set(model.dtypes[:-1]) == {torch.bfloat16}
    assert model.dtypes[-1] == torch.float32
