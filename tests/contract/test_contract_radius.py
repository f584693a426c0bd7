"""Every attack on a linear model whose exact radius is known: attacks succeed exactly beyond it.

Shape letters: B images.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from vitadel.attacks import APGD, ATTACKS, FAB, FGSM, GAMA, PGD, Attack, AutoAttack, NamedAttack, Square, cosine, linear
from vitadel.goals import Goal, Targeted, Untargeted
from vitadel.losses import LOSSES, Loss
from vitadel.threats import L1, L2, Linf, Threat

Array = npt.NDArray[np.float64]
Support = Callable[[Threat, Array, Array], float]

Setting = Callable[[Threat], Attack]


class Cascade(AutoAttack):
    """AutoAttack's search with stages that converge here."""

    __slots__ = ()

    def stages(self, threat: Threat) -> tuple[NamedAttack, ...]:
        return (
            NamedAttack("apgd-ce", APGD(steps=10), LOSSES["ce"]),
            NamedAttack("apgd-t", APGD(steps=10, targets=2), LOSSES["margin"]),
            NamedAttack("fab-t", FAB(steps=20, targets=2), LOSSES["margin"]),
            NamedAttack("square", Square(queries=10), LOSSES["margin"]),
        )


# settings that converge: a straight path takes few steps, a path along the faces of the box takes small ones
OPEN: dict[str, Setting] = {
    "fgsm": lambda threat: FGSM(),
    # as long as the box allows, so that the random start hardly matters
    "fgsm-start": lambda threat: FGSM(step_size=0.45, random_start=True),
    "pgd": lambda threat: PGD(steps=12, step_size=threat.eps / 4),
    "pgd-plain": lambda threat: PGD(steps=4, random_start=False),
    "pgd-restarts": lambda threat: PGD(steps=12, step_size=threat.eps / 4, restarts=2),
    "pgd-linear": lambda threat: PGD(steps=12, step_size=threat.eps / 2, schedule=linear),
    "pgd-cosine": lambda threat: PGD(steps=12, step_size=threat.eps / 2, schedule=cosine),
    "pgd-last": lambda threat: PGD(steps=12, step_size=threat.eps / 4, keep_best=False),
    "pgd-t": lambda threat: PGD(steps=12, step_size=threat.eps / 4, targets=2),
    "apgd": lambda threat: APGD(steps=20),
    "apgd-t": lambda threat: APGD(steps=20, targets=2),
    "apgd-eot": lambda threat: APGD(steps=20, eot_samples=2),
    "apgd-wide": lambda threat: APGD(steps=20, use_larger_eps=True),
    "fab": lambda threat: FAB(steps=10),
    "fab-t": lambda threat: FAB(steps=10, targets=2),
    "square": lambda threat: Square(queries=1500, p_init=0.05) if isinstance(threat, Linf) else Square(queries=250),
    "gama": lambda threat: GAMA(steps=20),
    "autoattack": lambda threat: Cascade(),
}
BOX: dict[str, Setting] = {
    "fgsm": lambda threat: FGSM(),
    "fgsm-start": lambda threat: FGSM(random_start=True),
    "pgd": lambda threat: PGD(steps=60, step_size=threat.eps / 20),
    "pgd-plain": lambda threat: PGD(steps=30, step_size=threat.eps / 20, random_start=False),
    "pgd-restarts": lambda threat: PGD(steps=30, step_size=threat.eps / 4, schedule=linear, restarts=2),
    "pgd-linear": lambda threat: PGD(steps=30, step_size=threat.eps / 4, schedule=linear),
    "pgd-cosine": lambda threat: PGD(steps=30, step_size=threat.eps / 4, schedule=cosine),
    "pgd-last": lambda threat: PGD(steps=40, step_size=threat.eps / 4, schedule=linear, keep_best=False),
    "pgd-t": lambda threat: PGD(steps=30, step_size=threat.eps / 4, schedule=linear, targets=2),
    "apgd": lambda threat: APGD(steps=20),
    "apgd-t": lambda threat: APGD(steps=20, targets=2),
    "apgd-eot": lambda threat: APGD(steps=20, eot_samples=2),
    "apgd-wide": lambda threat: APGD(steps=20, use_larger_eps=True),
    "fab": lambda threat: FAB(steps=15),
    "fab-t": lambda threat: FAB(steps=15, targets=2),
    "square": lambda threat: Square(queries=1500, p_init=0.05) if isinstance(threat, Linf) else Square(queries=250),
    # its steps never get short enough to turn the corner quickly: in L1 a step moves one value here
    "gama": lambda threat: GAMA(steps=100 if isinstance(threat, L1) else 30),
    "autoattack": lambda threat: Cascade(),
}
# single steps that do not converge: because of the box, or of the random start
BLUNT = {("fgsm", L2), ("fgsm-start", Linf), ("fgsm-start", L2), ("fgsm-start", L1)}

# how far beyond its radius an image must be broken: hardly, except for
NEAR = 1.02
FAR: dict[tuple[str, str, type[Threat]], float] = {
    # the steps move all values of the same gradient equally, here the largest and the four of half of it:
    # 0.4 / mean(0.4, 0.2, 0.2, 0.2, 0.2) = 1.67, and the authors' code breaks none at 1.5 and all at 1.75. For the
    # wide start, which needs more than 1.7, the factor is fitted and not explained
    **{("open", name, L1): 1.75 for name in ("apgd", "apgd-t", "apgd-eot", "apgd-wide")},
    # a random search: its patterns have at least 3 x 3 pixels, and a channel of which it took all mass
    # away never gets any back, in the authors' code as well; the factors are fitted
    ("open", "square", L1): 3.0,
    ("open", "square", L2): 3.0,
    ("box", "square", L2): 4.0,
    ("box", "square", L1): 4.0,
}
# attacks that want any wrong class, most of them with a loss of their own
OWN_GOAL = {"pgd-t", "apgd-t", "fab", "fab-t", "gama", "autoattack"}
# attacks that maximize any loss like the attack they are a setting of, or are slow
ONE_LOSS = {"apgd-eot", "apgd-wide", "square"}
# attacks that continue after a success, to the boundary of the ball
TO_THE_EDGE = {name for name in OPEN if name.startswith(("fgsm", "pgd"))} - {"pgd-t"}

GOALS: dict[str, Callable[[int, Loss], Goal]] = {
    "untargeted": lambda batch, loss: Untargeted(torch.zeros(batch, dtype=torch.int64), loss),
    "targeted": lambda batch, loss: Targeted(torch.ones(batch, dtype=torch.int64), loss),
}


class Halfspace(nn.Module):
    """Class 0 where w.x + b > 0, class 1 where it is not, and a third class that never wins, for `dlr`."""

    def __init__(self, weight: Tensor, bias: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), bias

    def logit_difference(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight + self.bias

    def forward(self, x: Tensor) -> Tensor:
        difference_B = self.logit_difference(x)
        return torch.stack([difference_B / 2, -difference_B / 2, torch.full_like(difference_B, -10)], 1)


Case = tuple[Halfspace, Tensor]


def away_from_the_box(batch: int) -> Case:
    """Gray images that differ in how far they are from the boundary, one steepest pixel, the box out of reach."""
    rng = torch.Generator().manual_seed(batch)
    weight = torch.randn(105, dtype=torch.float64, generator=rng).clamp(-2, 2) / 10
    weight[17] = -0.4
    difference_B = 0.04 * 1.1 ** torch.arange(batch, dtype=torch.float64)
    x0 = 0.5 + difference_B[:, None] * weight / weight.square().sum()
    return Halfspace(weight, -0.5 * weight.sum().item()), x0.view(batch, 3, 5, 7)


def at_the_box(batch: int) -> Case:
    """Images all over the box, so far from the boundary that the path to it runs along the faces of the box."""
    rng = torch.Generator().manual_seed(batch)
    weight = torch.randn(105, dtype=torch.float64, generator=rng)
    x0 = torch.rand(batch, 105, dtype=torch.float64, generator=rng)
    return Halfspace(weight, 12 - (x0 @ weight).amin().item()), x0.view(batch, 3, 5, 7)


CASES: dict[str, Callable[[int], Case]] = {"open": away_from_the_box, "box": at_the_box}


def largest_decreases(threat: Threat, model: Halfspace, x0: Tensor, support: Support) -> Tensor:
    """[B] the most each image's margin can decrease."""
    gradient = -model.weight.detach().numpy()
    return torch.tensor([support(threat, gradient, image.flatten().numpy()) for image in x0], dtype=torch.float64)


def radius(kind: Threat, model: Halfspace, image: Tensor, support: Support) -> float:
    """The exact radius at which the image reaches the boundary."""
    logit_difference = model.logit_difference(image[None]).item()
    widest = {Linf: 1.0, L2: 105**0.5, L1: 105.0}[type(kind)]
    return float(
        brentq(
            lambda eps: largest_decreases(kind.with_eps(eps), model, image[None], support).item() - logit_difference,
            1e-6,
            widest,
        )
    )


def shares(threat: Threat, model: Halfspace, x0: Tensor, support: Support) -> Array:
    """[B] the share of each image's margin that the threat can remove; an attack can succeed beyond 1."""
    return (largest_decreases(threat, model, x0, support) / model.logit_difference(x0).detach()).numpy()


@pytest.mark.parametrize("table", [OPEN, BOX], ids=["open", "box"])
def test_every_attack_has_a_setting_that_converges(table: dict[str, Setting]) -> None:
    """The versions of AutoAttack share one search."""
    rest = {kind for kind in ATTACKS.values() if not issubclass(kind, AutoAttack)}
    assert {type(setting(Linf(0.1))) for setting in table.values()} == rest | {Cascade}


def test_the_radius_away_from_the_box_is_margin_over_dual_norm(threat: Threat, support: Support) -> None:
    model, x0 = away_from_the_box(3)
    dual = {Linf: 1.0, L2: 2.0, L1: float("inf")}[type(threat)]
    expected = model.logit_difference(x0[2:]).item() / model.weight.norm(p=dual).item()
    assert radius(threat, model, x0[2], support) == pytest.approx(expected, rel=1e-6)


def combinations() -> list[tuple[str, str, str]]:
    """(attack, goal, loss): all where the search depends on them, one loss where it does not."""
    return [
        (name, goal, loss)
        for name in OPEN
        for goal in (("untargeted",) if name in OWN_GOAL | {"square"} else GOALS)
        for loss in (("margin",) if name in OWN_GOAL | ONE_LOSS else LOSSES)
    ]


@pytest.mark.parametrize("side", ["inside", "outside"])
@pytest.mark.parametrize(("name", "goal", "loss"), combinations())
def test_attacks_succeed_exactly_beyond_the_known_radius(
    name: str, goal: str, loss: str, side: str, threat: Threat, support: Support
) -> None:
    model, x0 = away_from_the_box(7)
    far = FAR.get(("open", name, type(threat)), NEAR)
    eps = (0.98 if side == "inside" else far) * radius(threat, model, x0[3], support)
    threat = threat.with_eps(eps)
    result = OPEN[name](threat)(model, x0, GOALS[goal](7, LOSSES[loss]), threat, seed=0)
    broken = result.success.tolist()
    # the images' radii are 10% apart, and eps is 2% from the fourth
    can = [True, True, True, far > NEAR or side == "outside", False, False, False]
    if far == NEAR:
        assert broken == can
    elif side == "outside":
        assert all(broken[:4])
    possible = shares(threat, model, x0, support) > 1
    assert not any(one and not other for one, other in zip(broken, possible, strict=True))
    assert result.prediction.tolist() == [int(one) for one in broken]
    assert result.distance.max().item() <= eps * (1 + 1e-9)
    if name in TO_THE_EDGE:
        assert result.distance.tolist() == pytest.approx([eps] * 7, rel=1e-9)


@pytest.mark.parametrize("side", ["inside", "outside"])
@pytest.mark.parametrize(
    ("name", "batch"), [(name, batch) for name in BOX for batch in ((2,) if name in OWN_GOAL | ONE_LOSS else (1, 7))]
)
def test_attacks_succeed_exactly_beyond_the_known_radius_at_the_box(
    name: str, side: str, threat: Threat, batch: int, support: Support
) -> None:
    model, x0 = at_the_box(batch)
    far = FAR.get(("box", name, type(threat)), NEAR)
    eps = (0.98 if side == "inside" else far) * radius(threat, model, x0[0], support)
    threat = threat.with_eps(eps)
    # images whose margin is within 1% of changing sign do not count
    possible = shares(threat, model, x0, support) > 0.99
    certain = shares(threat.with_eps(eps * NEAR / far), model, x0, support) > 1.01
    assert (possible[0], certain[0]) == (side == "outside",) * 2

    result = BOX[name](threat)(model, x0, Untargeted(torch.zeros(batch, dtype=torch.int64)), threat, seed=0)
    broken = result.success.numpy()
    assert not bool((broken & ~possible).any())
    assert result.distance.max().item() <= eps * (1 + 1e-9)
    if (name, type(threat)) not in BLUNT:
        assert bool(broken[certain].all())
        if name in TO_THE_EDGE:
            assert result.distance.tolist() == pytest.approx([eps] * batch, rel=1e-9)


@pytest.mark.parametrize("scale", [0.999, 1.001])
@pytest.mark.parametrize("gradient", [-0.5, 0.5])
def test_squares_of_one_pixel_reach_the_exact_radius(threat: Threat, gradient: float, scale: float) -> None:
    """With one gray pixel there is one direction, and all norms agree: a margin of 0.1 is 0.2 away."""
    model = Halfspace(torch.tensor([gradient], dtype=torch.float64), bias=0.1 - gradient / 2)
    x0 = torch.full((5, 1, 1, 1), 0.5, dtype=torch.float64)
    goal = Untargeted(torch.zeros(5, dtype=torch.int64), LOSSES["margin"])
    result = Square(queries=30)(model, x0, goal, threat.with_eps(0.2 * scale), seed=0)
    assert result.success.tolist() == [scale > 1] * 5


def test_an_impossible_target_is_never_reached(any_goal_attack: Attack, threat: Threat, batch: int) -> None:
    model, x0 = away_from_the_box(batch)
    result = any_goal_attack(model, x0, Targeted(torch.full((batch,), 2)), threat, seed=0)
    assert not bool(result.success.any())
    assert not bool((result.prediction == 2).any())


def test_the_nearest_of_several_classes_is_found(threat: Threat) -> None:
    """Five classes: the exact radius is the least over the other classes, and `margin` leads directly to that one."""
    rng = torch.Generator().manual_seed(3)
    weight = torch.randn(5, 105, dtype=torch.float64, generator=rng) / 10
    bias = torch.tensor([3.0, 2.9, 2.8, 2.7, 2.6], dtype=torch.float64) - 0.5 * weight.sum(1)
    dual = {Linf: 1.0, L2: 2.0, L1: float("inf")}[type(threat)]
    x0 = torch.full((1, 3, 5, 7), 0.5, dtype=torch.float64)
    logit_difference = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    nearest = (logit_difference / (weight[0] - weight[1:]).norm(p=dual, dim=1)).min().item()
    for scale, expected in ((0.98, False), (1.02, True)):
        attack = PGD(steps=20, step_size=scale * nearest / 4, random_start=False)
        goal = Untargeted(torch.tensor([0]), LOSSES["margin"])
        result = attack(lambda x: x.flatten(1) @ weight.T + bias, x0, goal, threat.with_eps(scale * nearest), seed=0)
        assert result.success.item() is expected
