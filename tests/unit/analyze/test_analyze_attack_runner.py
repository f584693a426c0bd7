"""Attacks of studies on models whose answers are known: what breaks, and how many passes it takes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from vitadel.analyze.attack_runner import run_attack
from vitadel.attacks import APGD, PGD, Engine, IterativeAttack
from vitadel.evaluate import Context, TensorImages
from vitadel.threats import L1, Linf, Threat


class Brightness(nn.Module):
    """Dark or bright, with the border at a half; counts the images it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(40.0))
        self.asked = 0

    def forward(self, x: Tensor) -> Tensor:
        self.asked += len(x)
        distance_B = self.scale * (x.mean((1, 2, 3)) - 0.5)
        return torch.stack([-distance_B, distance_B], 1)


@pytest.mark.parametrize(
    ("attack", "threat", "passes"),
    [
        # the start is not evaluated; the first step evaluates the image, the second breaks it
        (lambda: PGD(steps=3, random_start=False), Linf(0.1), 2),
        # iterates in a larger ball: what is found is judged after it is projected
        (lambda: APGD(steps=9, use_larger_eps=True), L1(15.0), None),
    ],
)
def test_a_success_costs_a_pass_only_where_iterates_leave_the_threat(
    attack: Callable[[], IterativeAttack], threat: Threat, passes: int | None
) -> None:
    x = torch.full((3, 3, 4, 4), 0.45)
    ctx = Context(Brightness().eval(), TensorImages(x, torch.zeros(3, dtype=torch.int64)), engine=Engine(batch_size=3))
    found = run_attack(ctx, "a", attack(), [0, 1, 2], threat)
    assert len(found.broken) == 3
    if passes is not None:
        assert found.rows["forwards"] == [passes] * 3
