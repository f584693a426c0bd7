"""The tables of the contract tests: one row per attack, one per threat, and an exact solver.

A new attack or threat is one line in the tables below; `test_contract_tables.py` fails until it is there.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from vitadel.attacks import APGD, FAB, FGSM, GAMA, PGD, Attack, AutoAttack, NamedAttack, Square, cosine, linear
from vitadel.losses import cross_entropy, margin
from vitadel.threats import L1, L2, Linf, Threat

Array = npt.NDArray[np.float64]
Support = Callable[[Threat, Array, Array], float]
MakeNet = Callable[[torch.dtype], nn.Module]


class Cascade(AutoAttack):
    """AutoAttack's search with budgets of a few steps: the published ones take seconds per image."""

    __slots__ = ()

    def stages(self, threat: Threat) -> tuple[NamedAttack, ...]:
        return (
            NamedAttack("apgd-ce", APGD(steps=2), cross_entropy),
            NamedAttack("apgd-t", APGD(steps=2, targets=2), margin),
            NamedAttack("fab-t", FAB(steps=2, targets=2), margin),
            NamedAttack("square", Square(queries=3), margin),
        )


# not square, so that a swap of height and width cannot hide
SHAPE = (3, 5, 7)

ATTACKS: dict[str, Attack] = {
    "fgsm": FGSM(),
    "fgsm-start": FGSM(random_start=True),
    "pgd": PGD(steps=4),
    "pgd-plain": PGD(steps=4, random_start=False),
    "pgd-restarts": PGD(steps=2, restarts=3),
    "pgd-linear": PGD(steps=4, schedule=linear),
    "pgd-cosine": PGD(steps=4, schedule=cosine),
    "pgd-last": PGD(steps=4, keep_best=False),
    "pgd-t": PGD(steps=3, targets=3),
    "apgd": APGD(steps=4),
    "apgd-restarts": APGD(steps=2, restarts=2),
    "apgd-t": APGD(steps=3, targets=3),
    "apgd-eot": APGD(steps=2, eot_samples=2),
    "apgd-wide": APGD(steps=5, use_larger_eps=True),
    "fab": FAB(steps=3),
    "fab-t": FAB(steps=3, targets=3),
    "square": Square(queries=6),
    "square-restarts": Square(queries=3, restarts=2),
    "gama": GAMA(steps=4),
    "autoattack": Cascade(),
}


def _supports_untargeted_goals_only(attack: Attack) -> bool:
    """Whether the attack supports untargeted goals only."""
    return isinstance(attack, FAB | GAMA | AutoAttack) or (isinstance(attack, APGD | PGD) and attack.targets > 0)


UNTARGETED_ONLY = {name: attack for name, attack in ATTACKS.items() if _supports_untargeted_goals_only(attack)}
ANY_GOAL = {name: attack for name, attack in ATTACKS.items() if name not in UNTARGETED_ONLY}
CLIMBERS = {name: attack for name, attack in ATTACKS.items() if not isinstance(attack, Square)}

THREATS: dict[str, Threat] = {"linf": Linf(0.1), "l2": L2(0.6), "l1": L1(3.0)}


@pytest.fixture(params=ATTACKS.values(), ids=list(ATTACKS))
def attack(request: pytest.FixtureRequest) -> Attack:
    return request.param


@pytest.fixture(params=ANY_GOAL.values(), ids=list(ANY_GOAL))
def any_goal_attack(request: pytest.FixtureRequest) -> Attack:
    """An attack that takes any goal."""
    return request.param


@pytest.fixture(params=UNTARGETED_ONLY.values(), ids=list(UNTARGETED_ONLY))
def untargeted_only_attack(request: pytest.FixtureRequest) -> Attack:
    """An attack that takes only the goal of any wrong class."""
    return request.param


@pytest.fixture(params=CLIMBERS.values(), ids=list(CLIMBERS))
def gradient_attack(request: pytest.FixtureRequest) -> Attack:
    """An attack that uses gradients."""
    return request.param


@pytest.fixture
def attacks() -> dict[str, Attack]:
    return ATTACKS


@pytest.fixture(params=THREATS.values(), ids=list(THREATS))
def threat(request: pytest.FixtureRequest) -> Threat:
    return request.param


@pytest.fixture
def threats() -> dict[str, Threat]:
    return THREATS


@pytest.fixture(params=(torch.float32, torch.float64), ids=("float32", "float64"))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=(1, 2, 7), ids=lambda batch: f"batch{batch}")
def batch(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def pixels() -> Callable[[int, torch.dtype], Tensor]:
    """Images of which a third of the values are 0 or 1."""

    def draw(batch: int, dtype: torch.dtype) -> Tensor:
        wide = torch.rand(batch, *SHAPE, dtype=dtype, generator=torch.Generator().manual_seed(batch))
        return (wide * 1.5 - 0.25).clamp(0, 1)

    return draw


@pytest.fixture
def net() -> MakeNet:
    """A small network with everything that has a mode, in training mode, for images of `SHAPE` and four classes."""

    def make(dtype: torch.dtype) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(
                nn.Conv2d(3, 6, 3, padding=1),
                nn.BatchNorm2d(6),
                nn.GELU(),
                nn.Dropout(0.5),
                nn.Flatten(),
                nn.Linear(6 * SHAPE[1] * SHAPE[2], 4),
            ).to(dtype)

    return make


class IrregularModel(nn.Module):
    """Logits of six classes that vary with the pixels, and a margin for class 0.

    Start and objective of a search decide its result.
    """

    def __init__(self, logit_difference: float) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(5)
        self.num_restarts = torch.randn(SHAPE[0] * SHAPE[1] * SHAPE[2], 24, dtype=torch.float64, generator=rng)
        self.mix = torch.randn(24, 6, dtype=torch.float64, generator=rng)
        self.logit_difference = logit_difference * nn.functional.one_hot(torch.tensor(0), 6).double()

    def forward(self, x: Tensor) -> Tensor:
        return (3 * x.flatten(1) @ self.num_restarts).sin() @ self.mix + self.logit_difference


@pytest.fixture
def ripples() -> Callable[[float], nn.Module]:
    return IrregularModel


@pytest.fixture
def support() -> Support:
    """The largest increase of a linear function inside ball and box, in closed form."""

    def linf(eps: float, steep: Array, slack: Array) -> Array:
        return np.minimum(slack, eps)

    def l1(eps: float, steep: Array, slack: Array) -> Array:
        """A fractional knapsack: the steepest values first, each as far as the box lets it."""
        order = np.argsort(-steep)
        filled = np.concatenate([[0.0], np.cumsum(slack[order])[:-1]])
        moved = np.empty_like(slack)
        moved[order] = np.clip(eps - filled, 0, slack[order])
        return moved

    def l2(eps: float, steep: Array, slack: Array) -> Array:
        """Water-filling: min(slack, t * steep) for the one t that uses up the budget."""
        if np.linalg.norm(slack[steep > 0]) <= eps:
            return slack
        order = np.argsort(slack / np.maximum(steep, 1e-300))
        full = np.concatenate([[0.0], np.cumsum(slack[order] ** 2)[:-1]])
        left = np.cumsum(steep[order][::-1] ** 2)[::-1]
        # the budget is spent by the t of the first stretch whose own values are not yet full
        t = np.sqrt(np.maximum(eps**2 - full, 0) / np.maximum(left, 1e-300))
        first = int(np.argmax(t * steep[order] <= slack[order]))
        return np.minimum(slack, t[first] * steep)

    def best(threat: Threat, gradient: Array, x0: Array) -> float:
        solver = {Linf: linf, L1: l1, L2: l2}[type(threat)]
        steep, slack = np.abs(gradient), np.where(gradient > 0, 1 - x0, x0)
        return float((steep * solver(threat.eps, steep, slack)).sum())

    return best
