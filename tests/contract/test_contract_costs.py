"""Every attack counts its passes exactly, and flags zero gradients.

Shape letters: B images.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from vitadel.attacks import APGD, FAB, FGSM, GAMA, PGD, Attack, AutoAttack, Square
from vitadel.goals import Untargeted
from vitadel.threats import L1, Linf, Threat

Pixels = Callable[[int, torch.dtype], Tensor]


class Meter(nn.Module):
    """A linear model that counts its forward and backward passes; the margin of its logits sets how robust it is."""

    def __init__(self, logit_difference: float) -> None:
        super().__init__()
        self.logit_difference, self.forwards, self.backwards = logit_difference, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        if x.requires_grad:
            x.register_hook(self._count)
        mean_B = x.flatten(1).mean(1)
        return torch.stack([mean_B + self.logit_difference, 1 - mean_B, torch.zeros_like(mean_B)], 1)

    def _count(self, grad: Tensor) -> None:
        self.backwards += len(grad)


def search_costs(attack: Attack, threat: Threat, classes: int) -> tuple[int, int]:
    """Forwards and backwards per robust image, without the verdict at the end."""
    if isinstance(attack, FGSM):
        return 1, 1
    if isinstance(attack, AutoAttack):
        stages = [search_costs(stage.attack, threat, classes) for stage in attack.stages(threat)]
        # after each stage a query for the images that are still robust
        return sum(forwards + 1 for forwards, _ in stages), sum(backwards for _, backwards in stages)
    if isinstance(attack, Square):
        return attack.restarts * (attack.queries + 1), 0
    if isinstance(attack, GAMA):
        return attack.restarts * (attack.steps + 2), attack.restarts * (attack.steps + 1)
    assert isinstance(attack, PGD | APGD | FAB)
    if isinstance(attack, PGD) and not attack.targets:
        judging = 1 if attack.keep_best else 0
        return attack.restarts * (attack.steps + judging), attack.restarts * attack.steps
    # every search begins and ends with a query, and ranking the classes costs one more
    searches, look = attack.restarts * max(1, min(attack.targets, classes - 1)), min(1, attack.targets)
    if isinstance(attack, FAB):
        normals = 1 if attack.targets else classes - 1
        return look + searches * 2 * (attack.steps + 1), searches * normals * (attack.steps + 1)
    points = attack.steps + 1
    if isinstance(attack, APGD):
        # 5 steps with a wide start: 2 in three times, 2 in twice and 1 in the radius
        wide = attack.use_larger_eps and isinstance(threat, L1)
        points = (points + 2 if wide else points) * attack.eot_samples
    return look + searches * points, searches * points


def test_counts_are_exact_on_robust_images(attack: Attack, threat: Threat, batch: int, pixels: Pixels) -> None:
    model = Meter(logit_difference=5)
    result = attack(
        model, pixels(batch, torch.float32), Untargeted(torch.zeros(batch, dtype=torch.int64)), threat, seed=0
    )
    assert not bool(result.success.any())
    forwards, backwards = search_costs(attack, threat, classes=3)
    forwards += 1  # the verdict
    assert (result.forwards, result.backwards) == (batch * forwards, batch * backwards)
    assert (model.forwards, model.backwards) == (batch * forwards, batch * backwards)
    assert result.seconds > 0


@pytest.mark.parametrize(("steps", "restarts"), [(1, 1), (7, 1), (3, 4)])
def test_pgd_costs_one_more_forward_per_restart_than_steps(steps: int, restarts: int) -> None:
    x0, goal = torch.full((2, 3, 5, 7), 0.5), Untargeted(torch.tensor([0, 0]))
    result = PGD(steps=steps, restarts=restarts)(Meter(logit_difference=5), x0, goal, Linf(0.1), seed=0)
    assert (result.forwards, result.backwards) == (2 * (restarts * (steps + 1) + 1), 2 * restarts * steps)


@pytest.mark.parametrize("steps", [1, 5])
def test_crafting_for_training_costs_one_pass_per_step(steps: int) -> None:
    model = Meter(logit_difference=5)
    PGD(steps=steps, keep_best=False).craft(
        model, torch.full((2, 3, 5, 7), 0.5), Untargeted(torch.tensor([0, 0])), Linf(0.1), seed=0
    )
    assert (model.forwards, model.backwards) == (2 * steps, 2 * steps)


def test_broken_images_are_not_attacked_again() -> None:
    """Label 1 is broken in the first restart, label 0 never."""
    x0, goal = torch.full((2, 3, 5, 7), 0.5), Untargeted(torch.tensor([0, 1]))
    result = PGD(steps=2, restarts=3)(Meter(logit_difference=5), x0, goal, Linf(0.1), seed=0)
    assert result.success.tolist() == [False, True]
    assert (result.forwards, result.backwards) == (3 * 3 + 3 + 2, 3 * 2 + 2)


def test_a_search_ends_when_every_image_is_broken() -> None:
    x0, goal = torch.full((2, 3, 5, 7), 0.5), Untargeted(torch.tensor([1, 1]))
    result = PGD(steps=2, restarts=50)(Meter(logit_difference=5), x0, goal, Linf(0.1), seed=0)
    assert (result.forwards, result.backwards) == (2 * 3 + 2, 2 * 2)


@pytest.mark.parametrize(
    ("attack", "forwards", "backwards"),
    [
        # the broken image: queried once; the other: 3 times 2 steps and 1 more; a verdict for each
        (APGD(steps=2, restarts=3), 1 + 3 * 3 + 2, 1 + 3 * 3),
        # once per class, and a query of each image to rank the classes
        (APGD(steps=2, targets=2), 2 + 2 * 3 + 2 + 2, 2 + 2 * 3),
        (PGD(steps=2, targets=2, restarts=3), 2 + 3 * 2 * 3 + 2 + 2, 2 + 3 * 2 * 3),
        # a step queries the point and the boundary
        (FAB(steps=2, targets=2), 2 * (2 + 2 * 3) + 2 + 2, 2 + 2 * 3),
        (FAB(steps=2, restarts=3), 2 * (1 + 3 * 3) + 2, 2 * (1 + 3 * 3)),
        (Square(queries=4, restarts=2), 1 + 2 * 5 + 2, 0),
        # the prediction of the clean image in every restart
        (GAMA(steps=2, restarts=3), 1 + 1 + 3 * (1 + 3) + 2, 1 + 3 * 3),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Attack) else None,
)
def test_broken_images_take_no_more_steps(attack: Attack, forwards: int, backwards: int, threat: Threat) -> None:
    """Label 1 is misclassified before the first step, label 0 never."""
    model, x0, goal = Meter(logit_difference=5), torch.full((2, 3, 5, 7), 0.5), Untargeted(torch.tensor([0, 1]))
    result = attack(model, x0, goal, threat, seed=0)
    assert result.success.tolist() == [False, True]
    assert (result.forwards, result.backwards) == (forwards, backwards)
    assert (model.forwards, model.backwards) == (forwards, backwards)


def test_a_cascade_queries_no_broken_image(attacks: dict[str, Attack], threat: Threat) -> None:
    """One evaluation, a query and the verdict for the image that is misclassified from the start."""
    x0, cascade = torch.full((2, 3, 5, 7), 0.5), attacks["autoattack"]
    both = cascade(Meter(logit_difference=5), x0, Untargeted(torch.tensor([0, 1])), threat, seed=0)
    alone = cascade(Meter(logit_difference=5), x0[:1], Untargeted(torch.tensor([0])), threat, seed=0)
    assert both.success.tolist() == [False, True]
    assert (both.forwards - alone.forwards, both.backwards - alone.backwards) == (3, 1)


@pytest.mark.parametrize("targets", [0, 2])
def test_a_success_outside_the_threat_does_not_end_a_search(targets: int) -> None:
    """The boundary is 0.25 away: FAB crosses it at once, moves along it, and never comes within 0.2."""
    goal, crossed = Untargeted(torch.tensor([0])), []

    def model(x: Tensor) -> Tensor:
        z_BK = Meter(logit_difference=0)(x)
        crossed.append(bool(goal.success(z_BK).any()))
        return z_BK

    result = FAB(steps=4, targets=targets)(model, torch.full((1, 3, 5, 7), 0.75), goal, Linf(0.2), seed=0)
    assert any(crossed)
    assert not result.success.item()
    assert result.forwards == (1 + 2 * 2 * 5 + 1 if targets else 2 * 5 + 1)


@pytest.mark.parametrize(("steps", "phases"), [(3, (1, 1, 1)), (5, (2, 2, 1)), (7, (3, 3, 1)), (10, (3, 3, 4))])
def test_a_wide_start_divides_the_steps_and_judges_each_phase_end(steps: int, phases: tuple[int, ...]) -> None:
    """30%, 30% and the rest, rounded up."""
    model, x0 = Meter(logit_difference=5), torch.full((2, 3, 5, 7), 0.5)
    APGD(steps=steps, use_larger_eps=True).craft(model, x0, Untargeted(torch.tensor([0, 0])), L1(3.0), seed=0)
    points = sum(phase + 1 for phase in phases)
    assert (model.forwards, model.backwards) == (2 * points, 2 * points)


@pytest.mark.parametrize(
    "mask", [torch.round, torch.detach, lambda x: 0 * x.detach()], ids=["rounds", "detaches", "ignores"]
)
def test_zero_gradients_raise_a_flag(gradient_attack: Attack, threat: Threat, mask: Callable[[Tensor], Tensor]) -> None:
    def model(x: Tensor) -> Tensor:
        return Meter(logit_difference=0.2)(mask(x))

    goal = Untargeted(torch.zeros(7, dtype=torch.int64))
    result = gradient_attack(model, torch.full((7, 3, 5, 7), 0.75), goal, threat, seed=0)
    (flag,) = result.flags
    assert flag.code == "zero-gradients"
    assert flag.evidence == {"zero": result.backwards, "gradients": result.backwards}
    assert result.zero_gradients == result.backwards
    assert flag.sentence.startswith(f"{result.backwards} of {result.backwards} input gradients were exactly zero")


def test_a_search_without_gradients_raises_no_flag_and_can_still_succeed() -> None:
    """Of pixels at 0.55 a step of 0.1 rounds those to 0 that it takes down: half of them fool this model.

    A gradient attack starts from noise that rounds a quarter of them down, and makes no progress.
    """

    def model(x: Tensor) -> Tensor:
        return Meter(logit_difference=-0.3)(torch.round(x))

    x0, goal = torch.full((4, 3, 5, 7), 0.55), Untargeted(torch.zeros(4, dtype=torch.int64))
    search = Square(queries=20)(model, x0, goal, Linf(0.1), seed=0)
    result = PGD(steps=20)(model, x0, goal, Linf(0.1), seed=0)
    assert (search.success.tolist(), search.backwards, search.zero_gradients, search.flags) == ([True] * 4, 0, 0, ())
    assert result.success.tolist() == [False] * 4
    assert [flag.code for flag in result.flags] == ["zero-gradients"]


def test_nonzero_gradients_raise_no_flag(attack: Attack, threat: Threat, batch: int, pixels: Pixels) -> None:
    goal = Untargeted(torch.zeros(batch, dtype=torch.int64))
    assert attack(Meter(logit_difference=0.2), pixels(batch, torch.float32), goal, threat, seed=0).flags == ()


@pytest.mark.parametrize(("dead", "flagged"), [(0, False), (1, False), (2, True), (100, True)])
def test_the_flag_is_raised_from_one_gradient_in_a_hundred(dead: int, flagged: bool) -> None:
    """The logits of `dead` of 199 images are constant: 1 of 199 is below a hundredth, 2 of 199 above."""

    def model(x: Tensor) -> Tensor:
        seen = (torch.arange(len(x)) >= dead).float().view(-1, 1, 1, 1)
        return Meter(logit_difference=0.2)(x * seen)

    goal = Untargeted(torch.zeros(199, dtype=torch.int64))
    result = FGSM()(model, torch.full((199, 1, 2, 3), 0.75), goal, Linf(0.01), seed=0)
    evidence = [flag.evidence for flag in result.flags]
    assert evidence == ([{"zero": dead, "gradients": 199}] if flagged else [])
