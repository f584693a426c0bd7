"""The projections on ball and box, against exact solvers that sort, a general optimizer, and brute force."""

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from vitadel.threats import L1, L2, Linf, Threat

Array = npt.NDArray[np.float64]

bounded = settings(max_examples=150, deadline=None, derandomize=True)
pixel = st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1))
# from below float32's resolution to far outside; the same magnitude may repeat, so ties and zeros occur
move = st.one_of(st.just(0.0), st.floats(-1e-3, 1e-3), st.floats(-2, 2), st.floats(-1e4, 1e4))
moves = st.lists(st.tuples(pixel, move), min_size=1, max_size=40)
share = st.floats(1e-3, 1)


def project(threat: Threat, x: Array, x0: Array) -> Array:
    result: Array = threat.project(torch.tensor(x)[None], torch.tensor(x0)[None])[0].numpy()
    return result


def exact_l2(x: Array, x0: Array, eps: float) -> Array:
    """clip(x0 + s d) for the s that spends the budget, found by visiting the scales at which values reach the box."""
    shift = x - x0
    length, slack = np.abs(shift), np.where(shift > 0, 1 - x0, x0)
    if np.linalg.norm(np.minimum(length, slack)) <= eps:
        return x0 + np.sign(shift) * np.minimum(length, slack)
    for scale in sorted({*(slack[slack < length] / length[slack < length]), 1.0}):
        if np.linalg.norm(np.minimum(slack, scale * length)) >= eps:
            break
    # below this scale and above the one before, the values that reach the box are these
    stuck = slack < scale * length * (1 - 1e-15)
    free = np.sqrt(max(eps**2 - (slack[stuck] ** 2).sum(), 0) / max((length[~stuck] ** 2).sum(), 1e-300))
    return x0 + np.sign(shift) * np.where(stuck, slack, np.minimum(slack, free * length))


def exact_l1(x: Array, x0: Array, eps: float) -> Array:
    """clip(|d| - t, 0, slack) for the t that spends the budget: the sum is linear between the sorted kinks."""
    shift = x - x0
    length, slack = np.abs(shift), np.where(shift > 0, 1 - x0, x0)
    if np.minimum(length, slack).sum() <= eps:
        return x0 + np.sign(shift) * np.minimum(length, slack)
    kinks = np.unique(np.concatenate([[0.0], length, np.maximum(length - slack, 0)]))
    spent = np.array([np.clip(length - kink, 0, slack).sum() for kink in kinks])
    threshold = np.interp(-eps, -spent, kinks)
    return x0 + np.sign(shift) * np.clip(length - threshold, 0, slack)


@bounded
@given(moves, share)
def test_l2_matches_the_sorting_solver(values: list[tuple[float, float]], share: float) -> None:
    x0 = np.array([value for value, _ in values])
    x = x0 + np.array([shift for _, shift in values])
    eps = share * math.sqrt(len(x0))
    np.testing.assert_allclose(project(L2(eps), x, x0), exact_l2(x, x0, eps), atol=1e-9)


@bounded
@given(moves, share)
def test_l1_matches_the_sorting_solver(values: list[tuple[float, float]], share: float) -> None:
    x0 = np.array([value for value, _ in values])
    x = x0 + np.array([shift for _, shift in values])
    eps = share * len(x0)
    np.testing.assert_allclose(project(L1(eps), x, x0), exact_l1(x, x0, eps), atol=1e-9)


@pytest.mark.parametrize("far", [1e3, 1e6, 1e9])
def test_l1_uses_its_whole_budget_for_distant_points(far: float) -> None:
    """Halving alone would leave an error in proportion to the largest shift."""
    x0 = np.full(6, 0.5)
    x = x0 + np.array([far, 0.3, -0.2, 0.1, 0.0, -0.05])
    # half goes to the first, whose slack ends there; 0.4 is left of 0.6 for three, so each gives up a third of 0.2
    known = x0 + np.array([0.5, 0.7 / 3, -0.4 / 3, 0.1 / 3, 0.0, 0.0])
    np.testing.assert_allclose(project(L1(0.9), x, x0), known, rtol=0, atol=1e-12)


@bounded
@given(moves, share)
def test_linf_clips_each_value(values: list[tuple[float, float]], share: float) -> None:
    x0 = np.array([value for value, _ in values])
    x = x0 + np.array([shift for _, shift in values])
    expected = [min(max(a, b - share, 0.0), b + share, 1.0) for a, b in zip(x, x0, strict=True)]
    np.testing.assert_allclose(project(Linf(share), x, x0), expected, atol=1e-15)


@pytest.mark.parametrize("eps", [0.5, 2.0, 3.0, 6.0])
def test_l2_is_exact_when_values_reach_the_box_successively(eps: float) -> None:
    """Each shift is twice the one before: every turn of the search clips one value more, forty in all."""
    x0 = np.full(40, 0.5)
    x = x0 + 2.0 ** np.arange(40)
    result = project(L2(min(eps, math.sqrt(40))), x, x0)
    np.testing.assert_allclose(result, exact_l2(x, x0, eps), atol=1e-12)
    assert np.linalg.norm(result - x0) == pytest.approx(min(eps, 0.5 * math.sqrt(40)), rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("threat", [L2(0.7), L1(0.9), Linf(0.3)], ids=["l2", "l1", "linf"])
def test_projection_matches_a_general_optimizer(threat: Threat, seed: int) -> None:
    """Moves split into an upward and a downward part make all three budgets smooth."""
    rng = np.random.default_rng(seed)
    x0 = np.round(rng.random(3), 1)
    x = x0 + rng.normal(size=3) * 2
    budget = {
        Linf: lambda v: threat.eps - v[:3] - v[3:],
        L2: lambda v: threat.eps**2 - ((v[:3] - v[3:]) ** 2).sum(),
        L1: lambda v: threat.eps - v.sum(),
    }[type(threat)]
    result = minimize(
        lambda v: ((x0 + v[:3] - v[3:] - x) ** 2).sum(),
        np.full(6, 0.01),
        method="SLSQP",
        bounds=[*((0, 1 - value) for value in x0), *((0, value) for value in x0)],
        constraints={"type": "ineq", "fun": budget},
        options={"maxiter": 500, "ftol": 1e-14},
    )
    np.testing.assert_allclose(project(threat, x, x0), x0 + result.x[:3] - result.x[3:], atol=1e-5)


@pytest.mark.parametrize("threat", [L2(0.45), L1(0.6), Linf(0.3)], ids=["l2", "l1", "linf"])
def test_no_point_of_a_fine_grid_is_nearer(threat: Threat) -> None:
    ticks = np.linspace(0, 1, 101)
    grid = torch.tensor(np.array(list(itertools.product(ticks, ticks))))
    for x0, x in (([0.1, 0.8], [-2.0, 1.4]), ([0.0, 0.0], [0.9, 0.7]), ([0.9, 0.5], [3.0, -0.2]), ([1.0, 0.0], [0, 1])):
        origin, stray = torch.tensor([x0], dtype=torch.float64), torch.tensor([x], dtype=torch.float64)
        allowed = grid[threat.distance(grid, origin.expand_as(grid)) <= threat.eps]
        nearest = (allowed - stray).norm(dim=1).min().item()
        result = (threat.project(stray, origin) - stray).norm().item()
        # the grid's own nearest point may miss the true one by half a cell's diagonal, never beat it
        assert nearest - 0.0071 <= result <= nearest + 1e-12


def test_images_of_a_batch_are_independent() -> None:
    rng = torch.Generator().manual_seed(0)
    x0 = torch.rand(7, 3, 5, 7, dtype=torch.float64, generator=rng)
    x = x0 + torch.randn(x0.shape, dtype=torch.float64, generator=rng) * 10 ** torch.arange(-3.0, 4).view(-1, 1, 1, 1)
    for threat in (L2(1.5), L1(4.0), Linf(0.2)):
        alone = torch.cat([threat.project(x[i : i + 1], x0[i : i + 1]) for i in range(7)])
        torch.testing.assert_close(threat.project(x, x0), alone, rtol=0, atol=1e-12)
