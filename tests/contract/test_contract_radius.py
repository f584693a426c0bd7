"""Every attack on a linear model whose exact radius is known: nothing falls before it, everything falls beyond it.

Shape letters: B images.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from vitadel.attacks import ATTACKS, FGSM, PGD, Attack, cosine, linear
from vitadel.goals import Goal, Targeted, Untargeted
from vitadel.losses import LOSSES, Loss
from vitadel.threat import L1, L2, Linf, Threat, with_eps

Array = npt.NDArray[np.float64]
Support = Callable[[Threat, Array, Array], float]

# what settles on the boundary: a straight way takes few steps, the way along the walls of the box takes small ones
OPEN: dict[str, Callable[[float], Attack]] = {
    "fgsm": lambda eps: FGSM(),
    # as long as the box allows, so that the random start hardly matters
    "fgsm-start": lambda eps: FGSM(step_size=0.45, random_start=True),
    "pgd": lambda eps: PGD(steps=12, step_size=eps / 4),
    "pgd-plain": lambda eps: PGD(steps=4, random_start=False),
    "pgd-restarts": lambda eps: PGD(steps=12, step_size=eps / 4, restarts=2),
    "pgd-linear": lambda eps: PGD(steps=12, step_size=eps / 2, schedule=linear),
    "pgd-cosine": lambda eps: PGD(steps=12, step_size=eps / 2, schedule=cosine),
    "pgd-last": lambda eps: PGD(steps=12, step_size=eps / 4, keep_best=False),
}
BOX: dict[str, Callable[[float], Attack]] = {
    "fgsm": lambda eps: FGSM(),
    "fgsm-start": lambda eps: FGSM(random_start=True),
    "pgd": lambda eps: PGD(steps=60, step_size=eps / 20),
    "pgd-plain": lambda eps: PGD(steps=30, step_size=eps / 20, random_start=False),
    "pgd-restarts": lambda eps: PGD(steps=30, step_size=eps / 4, schedule=linear, restarts=2),
    "pgd-linear": lambda eps: PGD(steps=30, step_size=eps / 4, schedule=linear),
    "pgd-cosine": lambda eps: PGD(steps=30, step_size=eps / 4, schedule=cosine),
    "pgd-last": lambda eps: PGD(steps=40, step_size=eps / 4, schedule=linear, keep_best=False),
}
# the one step that is not meant to get there: the box bends the way, or the random start spoils it
BLUNT = {("fgsm", L2), ("fgsm-start", Linf), ("fgsm-start", L2), ("fgsm-start", L1)}

GOALS: dict[str, Callable[[int, Loss], Goal]] = {
    "untargeted": lambda batch, loss: Untargeted(torch.zeros(batch, dtype=torch.int64), loss),
    "targeted": lambda batch, loss: Targeted(torch.ones(batch, dtype=torch.int64), loss),
}


class Halfspace(nn.Module):
    """Class 0 where w.x + b > 0, class 1 where it is not, and a third class that never wins, for `dlr`."""

    def __init__(self, weight: Tensor, bias: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), bias

    def lead(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight + self.bias

    def forward(self, x: Tensor) -> Tensor:
        lead_B = self.lead(x)
        return torch.stack([lead_B / 2, -lead_B / 2, torch.full_like(lead_B, -10)], 1)


Case = tuple[Halfspace, Tensor]


def in_the_open(batch: int) -> Case:
    """Grey images that differ in how far they are from the boundary, one steepest pixel, the box out of reach."""
    rng = torch.Generator().manual_seed(batch)
    weight = torch.randn(105, dtype=torch.float64, generator=rng).clamp(-2, 2) / 10
    weight[17] = -0.4
    lead_B = 0.04 * 1.1 ** torch.arange(batch, dtype=torch.float64)
    x0 = 0.5 + lead_B[:, None] * weight / weight.square().sum()
    return Halfspace(weight, -0.5 * weight.sum().item()), x0.view(batch, 3, 5, 7)


def at_the_box(batch: int) -> Case:
    """Images all over the box, so far from the boundary that the way there runs along its walls."""
    rng = torch.Generator().manual_seed(batch)
    weight = torch.randn(105, dtype=torch.float64, generator=rng)
    x0 = torch.rand(batch, 105, dtype=torch.float64, generator=rng)
    return Halfspace(weight, 12 - (x0 @ weight).amin().item()), x0.view(batch, 3, 5, 7)


CASES: dict[str, Callable[[int], Case]] = {"open": in_the_open, "box": at_the_box}


def growths(threat: Threat, model: Halfspace, x0: Tensor, support: Support) -> Tensor:
    """[B] the most each image's lead can fall."""
    slope = -model.weight.detach().numpy()
    return torch.tensor([support(threat, slope, image.flatten().numpy()) for image in x0], dtype=torch.float64)


def radius(kind: Threat, model: Halfspace, image: Tensor, support: Support) -> float:
    """The exact radius at which the image reaches the boundary."""
    lead = model.lead(image[None]).item()
    widest = {Linf: 1.0, L2: 105**0.5, L1: 105.0}[type(kind)]
    return float(
        brentq(lambda eps: growths(with_eps(kind, eps), model, image[None], support).item() - lead, 1e-6, widest)
    )


def clear_cut(threat: Threat, model: Halfspace, x0: Tensor, support: Support) -> tuple[list[bool], list[bool]]:
    """Which images can fall, and which are more than 1% of a lead away from the answer being the other."""
    share_B = growths(threat, model, x0, support) / model.lead(x0)
    return (share_B > 1).tolist(), ((share_B - 1).abs() > 0.01).tolist()


@pytest.mark.parametrize("table", [OPEN, BOX], ids=["open", "box"])
def test_every_attack_has_a_setting_that_settles(table: dict[str, Callable[[float], Attack]]) -> None:
    assert {type(attack(0.1)) for attack in table.values()} == set(ATTACKS.values())


def test_radius_in_the_open_is_lead_over_dual_norm(threat: Threat, support: Support) -> None:
    model, x0 = in_the_open(3)
    dual = {Linf: 1.0, L2: 2.0, L1: float("inf")}[type(threat)]
    expected = model.lead(x0[2:]).item() / model.weight.norm(p=dual).item()
    assert radius(threat, model, x0[2], support) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("scale", [0.98, 1.02])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("goal", GOALS.values(), ids=GOALS)
@pytest.mark.parametrize("name", OPEN)
def test_attack_flips_exactly_beyond_the_known_radius(
    name: str, goal: Callable[[int, Loss], Goal], loss: Loss, scale: float, threat: Threat, support: Support
) -> None:
    model, x0 = in_the_open(7)
    eps = scale * radius(threat, model, x0[3], support)
    result = OPEN[name](eps)(model, x0, goal(7, loss), with_eps(threat, eps), seed=0)
    # the images' radii are 10% apart, and eps is 2% from the fourth
    expected = [True, True, True, scale > 1, False, False, False]
    assert result.reached.tolist() == expected
    assert result.prediction.tolist() == [int(fell) for fell in expected]
    assert result.size.tolist() == pytest.approx([eps] * 7, rel=1e-9)


@pytest.mark.parametrize("scale", [0.98, 1.02])
@pytest.mark.parametrize("name", BOX)
def test_attack_flips_exactly_beyond_the_known_radius_along_the_box(
    name: str, scale: float, threat: Threat, batch: int, support: Support
) -> None:
    model, x0 = at_the_box(batch)
    eps = scale * radius(threat, model, x0[0], support)
    threat = with_eps(threat, eps)
    possible, clear = clear_cut(threat, model, x0, support)
    assert (possible[0], clear[0]) == (scale > 1, True)

    result = BOX[name](eps)(model, x0, Untargeted(torch.zeros(batch, dtype=torch.int64)), threat, seed=0)
    fell = result.reached.tolist()
    if (name, type(threat)) in BLUNT:
        assert not any(one and not other for one, other in zip(fell, possible, strict=True))
    else:
        assert [one for one, sure in zip(fell, clear, strict=True) if sure] == [
            one for one, sure in zip(possible, clear, strict=True) if sure
        ]
        assert result.size.tolist() == pytest.approx([eps] * batch, rel=1e-9)
    assert result.size.max().item() <= eps * (1 + 1e-9)


def test_a_target_that_cannot_win_is_never_reached(attack: Attack, threat: Threat, batch: int) -> None:
    model, x0 = in_the_open(batch)
    result = attack(model, x0, Targeted(torch.full((batch,), 2)), threat, seed=0)
    assert not bool(result.reached.any())
    assert not bool((result.prediction == 2).any())


def test_the_best_of_several_rivals_is_found(threat: Threat) -> None:
    """Five classes: the exact radius is the least over the rivals, and `margin` leads straight to that one."""
    rng = torch.Generator().manual_seed(3)
    weight = torch.randn(5, 105, dtype=torch.float64, generator=rng) / 10
    bias = torch.tensor([3.0, 2.9, 2.8, 2.7, 2.6], dtype=torch.float64) - 0.5 * weight.sum(1)
    dual = {Linf: 1.0, L2: 2.0, L1: float("inf")}[type(threat)]
    x0 = torch.full((1, 3, 5, 7), 0.5, dtype=torch.float64)
    lead = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    nearest = (lead / (weight[0] - weight[1:]).norm(p=dual, dim=1)).min().item()
    for scale, expected in ((0.98, False), (1.02, True)):
        attack = PGD(steps=20, step_size=scale * nearest / 4, random_start=False)
        goal = Untargeted(torch.tensor([0]), LOSSES["margin"])
        result = attack(lambda x: x.flatten(1) @ weight.T + bias, x0, goal, with_eps(threat, scale * nearest), seed=0)
        assert result.reached.item() is expected
