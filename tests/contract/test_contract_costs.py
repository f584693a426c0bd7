"""Every attack says exactly what it cost, and what its gradients gave away about the model.

Shape letters: B images.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from vitadel.attacks import FGSM, PGD, Attack
from vitadel.goals import Untargeted
from vitadel.threat import Linf, Threat

Pixels = Callable[[int, torch.dtype], Tensor]


class Meter(nn.Module):
    """A linear model that counts the images sent through it, both ways; its lead says how hard it is to fool."""

    def __init__(self, lead: float) -> None:
        super().__init__()
        self.lead, self.forwards, self.backwards = lead, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        if x.requires_grad:
            x.register_hook(self._count)
        mean_B = x.flatten(1).mean(1)
        return torch.stack([mean_B + self.lead, 1 - mean_B, torch.zeros_like(mean_B)], 1)

    def _count(self, grad: Tensor) -> None:
        self.backwards += len(grad)


def expected_costs(attack: Attack) -> tuple[int, int]:
    """Forwards and backwards per image that never falls, the verdict included."""
    if isinstance(attack, PGD):
        judging = 1 if attack.keep_best else 0
        return attack.restarts * (attack.steps + judging) + 1, attack.restarts * attack.steps
    assert isinstance(attack, FGSM)
    return 2, 1


def test_counts_are_exact_on_images_that_never_fall(attack: Attack, threat: Threat, batch: int, pixels: Pixels) -> None:
    model = Meter(lead=5)
    result = attack(
        model, pixels(batch, torch.float32), Untargeted(torch.zeros(batch, dtype=torch.int64)), threat, seed=0
    )
    assert not bool(result.reached.any())
    forwards, backwards = expected_costs(attack)
    assert (result.forwards, result.backwards) == (batch * forwards, batch * backwards)
    assert (model.forwards, model.backwards) == (batch * forwards, batch * backwards)
    assert result.seconds > 0


@pytest.mark.parametrize(("steps", "restarts"), [(1, 1), (7, 1), (3, 4)])
def test_pgd_costs_one_forward_more_per_restart_than_it_has_steps(steps: int, restarts: int) -> None:
    x0, goal = torch.full((2, 3, 5, 7), 0.5), Untargeted(torch.tensor([0, 0]))
    result = PGD(steps=steps, restarts=restarts)(Meter(lead=5), x0, goal, Linf(0.1), seed=0)
    assert (result.forwards, result.backwards) == (2 * (restarts * (steps + 1) + 1), 2 * restarts * steps)


@pytest.mark.parametrize("steps", [1, 5])
def test_crafting_for_training_costs_as_many_passes_as_steps(steps: int) -> None:
    model = Meter(lead=5)
    PGD(steps=steps, keep_best=False).craft(
        model, torch.full((2, 3, 5, 7), 0.5), Untargeted(torch.tensor([0, 0])), Linf(0.1), seed=0
    )
    assert (model.forwards, model.backwards) == (2 * steps, 2 * steps)


def test_images_that_fell_are_not_attacked_again() -> None:
    """Label 1 falls in the first restart, label 0 never."""
    x0, goal = torch.full((2, 3, 5, 7), 0.5), Untargeted(torch.tensor([0, 1]))
    result = PGD(steps=2, restarts=3)(Meter(lead=5), x0, goal, Linf(0.1), seed=0)
    assert result.reached.tolist() == [False, True]
    assert (result.forwards, result.backwards) == (3 * 3 + 3 + 2, 3 * 2 + 2)


def test_a_search_ends_when_every_image_fell() -> None:
    x0, goal = torch.full((2, 3, 5, 7), 0.5), Untargeted(torch.tensor([1, 1]))
    result = PGD(steps=2, restarts=50)(Meter(lead=5), x0, goal, Linf(0.1), seed=0)
    assert (result.forwards, result.backwards) == (2 * 3 + 2, 2 * 2)


@pytest.mark.parametrize(
    "mask", [torch.round, torch.detach, lambda x: 0 * x.detach()], ids=["rounds", "detaches", "ignores"]
)
def test_zero_gradients_raise_a_flag(attack: Attack, threat: Threat, mask: Callable[[Tensor], Tensor]) -> None:
    def model(x: Tensor) -> Tensor:
        return Meter(lead=0.2)(mask(x))

    goal = Untargeted(torch.zeros(7, dtype=torch.int64))
    result = attack(model, torch.full((7, 3, 5, 7), 0.75), goal, threat, seed=0)
    (flag,) = result.flags
    assert flag.code == "zero-gradients"
    assert flag.evidence == {"zero": result.backwards, "gradients": result.backwards}
    assert result.zero_gradients == result.backwards
    assert flag.sentence.startswith(f"{result.backwards} of {result.backwards} input gradients were exactly zero")


def test_gradients_that_are_there_raise_no_flag(attack: Attack, threat: Threat, batch: int, pixels: Pixels) -> None:
    goal = Untargeted(torch.zeros(batch, dtype=torch.int64))
    assert attack(Meter(lead=0.2), pixels(batch, torch.float32), goal, threat, seed=0).flags == ()


@pytest.mark.parametrize(("dead", "flagged"), [(0, False), (1, False), (2, True), (100, True)])
def test_the_flag_needs_one_gradient_in_a_hundred(dead: int, flagged: bool) -> None:
    """Of 199 images `dead` answer without looking: 1 of 199 is below a hundredth, 2 of 199 above."""

    def model(x: Tensor) -> Tensor:
        seen = (torch.arange(len(x)) >= dead).float().view(-1, 1, 1, 1)
        return Meter(lead=0.2)(x * seen)

    goal = Untargeted(torch.zeros(199, dtype=torch.int64))
    result = FGSM()(model, torch.full((199, 1, 2, 3), 0.75), goal, Linf(0.01), seed=0)
    evidence = [flag.evidence for flag in result.flags]
    assert evidence == ([{"zero": dead, "gradients": 199}] if flagged else [])
