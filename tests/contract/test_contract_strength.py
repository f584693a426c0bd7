"""Trying harder is never weaker, and half precision never decides.

Shape letters: B images, K classes.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from vitadel.attacks import PGD, Attack
from vitadel.goals import Goal, Untargeted
from vitadel.losses import LOSSES, Loss
from vitadel.threat import Linf, Threat, with_eps

Pixels = Callable[[int, torch.dtype], Tensor]
MakeNet = Callable[[torch.dtype], nn.Module]


def outcome(attack: Attack, model: nn.Module, x0: Tensor, goal: Goal, threat: Threat) -> list[tuple[bool, float]]:
    """Per image, (reached, gain): the order in which a search prefers its candidates."""
    result = attack(model, x0, goal, threat, seed=8)
    with torch.no_grad():
        gain_B = goal.gain(model.eval()(result.x))
    return list(zip(result.reached.tolist(), gain_B.tolist(), strict=True))


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
    model, x0, threat = net(torch.float64), pixels(7, torch.float64), with_eps(threat, threat.eps / 8)
    goal = Untargeted(model.eval()(x0).argmax(1), loss)
    found = [outcome(PGD(steps=n, step_size=threat.eps / 2), model, x0, goal, threat) for n in (1, 2, 4, 8)]
    assert all(never_weaker(weak, strong) for weak, strong in pairwise(found))
    assert found[-1] != found[0]


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_more_restarts_are_never_weaker(threat: Threat, loss: Loss, pixels: Pixels, net: MakeNet) -> None:
    model, x0, threat = net(torch.float64), pixels(7, torch.float64), with_eps(threat, threat.eps / 8)
    goal = Untargeted(model.eval()(x0).argmax(1), loss)
    found = [outcome(PGD(steps=1, step_size=threat.eps / 10, restarts=n), model, x0, goal, threat) for n in (1, 2, 4)]
    assert all(never_weaker(weak, strong) for weak, strong in pairwise(found))
    assert found[-1] != found[0]


class OneNumber(nn.Module):
    """Logits of one number per image: [slope * pixel - threshold, 0], by a layer that autocast runs in bfloat16."""

    def __init__(self, slope: float, threshold: float) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)
        self.answers: list[torch.dtype] = []
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[slope], [0.0]]))
            self.layer.bias.copy_(torch.tensor([-threshold, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        z_BK = self.layer(x.flatten(1))
        self.answers.append(z_BK.dtype)
        return z_BK


@pytest.mark.parametrize(
    ("slope", "label", "reached"),
    [(0.999, 1, False), (1.001, 1, True), (1.001, 0, False), (0.999, 0, True)],
    ids=["false-success", "true-success", "true-failure", "false-failure"],
)
def test_a_success_in_half_precision_counts_only_if_float32_agrees(
    attack: Attack, slope: float, label: int, reached: bool
) -> None:
    """0.999 and 1.001 are both 1 in bfloat16, where class 0 wins either way by a tie; in float32 they differ."""
    model, x0 = OneNumber(slope, threshold=0.5), torch.full((1, 1, 1, 1), 0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x0).argmax(1).item() == 0
        result = attack(model, x0, Untargeted(torch.tensor([label])), Linf(1e-6), seed=0)
    assert result.reached.item() is reached
    assert result.prediction.item() == (0 if slope > 1 else 1)
    assert set(model.answers[:-1]) == {torch.bfloat16}
    assert model.answers[-1] == torch.float32
