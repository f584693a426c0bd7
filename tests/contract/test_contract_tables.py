"""The tables of the contract suite leave nothing out, and its exact solver is right."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import minimize

from vitadel import attacks as attack_package
from vitadel import threats as threat_package
from vitadel.attacks import Attack, AutoAttack
from vitadel.threats import L1, L2, Linf, Threat

Array = npt.NDArray[np.float64]
Support = Callable[[Threat, Array, Array], float]

DUAL = {Linf: 1, L2: 2, L1: np.inf}


def test_every_attack_has_a_row(attacks: dict[str, Attack]) -> None:
    """The versions of AutoAttack share a row, their one search with small stages: the published ones take too long.

    Those are held to their costs and verdicts in test_contract_autoattack.py.
    """
    kinds = {type(attack) for attack in attacks.values() if not isinstance(attack, AutoAttack)}
    versions = {kind for kind in attack_package.ATTACKS.values() if issubclass(kind, AutoAttack)}
    assert kinds == set(attack_package.ATTACKS.values()) - versions
    assert [row for row, attack in attacks.items() if isinstance(attack, AutoAttack)] == ["autoattack"]
    assert {kind.search for kind in (*versions, type(attacks["autoattack"]))} == {AutoAttack.search}


def test_every_threat_has_a_row(threats: dict[str, Threat]) -> None:
    assert {name: type(threat) for name, threat in threats.items()} == threat_package.THREATS


def test_the_solver_away_from_the_box_is_the_dual_norm(threat: Threat, support: Support) -> None:
    gradient = np.random.default_rng(0).normal(size=50)
    small = threat.with_eps(0.05)
    expected = 0.05 * np.linalg.norm(gradient, ord=DUAL[type(threat)])
    assert support(small, gradient, np.full(50, 0.5)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_the_solver_at_the_box_matches_a_general_optimizer(threat: Threat, support: Support, seed: int) -> None:
    """Moves split into an upward and a downward part make all three budgets smooth."""
    rng = np.random.default_rng(seed)
    gradient, x0 = rng.normal(size=5), rng.random(5)
    budget: dict[type, Callable[[Array], Array]] = {
        Linf: lambda v: np.asarray(threat.eps - v[:5] - v[5:]),
        L2: lambda v: np.asarray(threat.eps**2 - ((v[:5] - v[5:]) ** 2).sum()),
        L1: lambda v: np.asarray(threat.eps - v.sum()),
    }
    result = minimize(
        lambda v: -(gradient @ (v[:5] - v[5:])),
        np.full(10, 0.01),
        jac=lambda v: np.concatenate([-gradient, gradient]),
        method="SLSQP",
        bounds=[*((0, 1 - value) for value in x0), *((0, value) for value in x0)],
        constraints={"type": "ineq", "fun": budget[type(threat)]},
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert support(threat, gradient, x0) == pytest.approx(-result.fun, rel=1e-5)
