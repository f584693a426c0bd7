"""FAB on models whose boundary is a plane, and against a slow version of it in plain numpy.

Shape letters: B items, K classes.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitadel.attacks import FAB, Engine, StepContext
from vitadel.attacks.engine.batching import ImageResult, WorkQueue
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal, Targeted, TowardClass, Untargeted
from vitadel.losses import logit_difference, margin
from vitadel.threats import L1, L2, Linf, Threat

Model = Callable[[Tensor], Tensor]
Array = NDArray[np.float64]
THREATS: dict[str, Threat] = {"linf": Linf(0.5), "l2": L2(1.5), "l1": L1(3.0)}

every_norm = pytest.mark.parametrize("norm", THREATS)


def halfspace(w: Tensor, b: float) -> Model:
    """Class 1 where w.x > b, class 0 elsewhere."""

    def model(x: Tensor) -> Tensor:
        side_B = (x.flatten(1) * w).sum(1) - b
        return torch.stack([torch.zeros_like(side_B), side_B], 1)

    return model


def planes(batch: int = 6, values: int = 8) -> tuple[Tensor, Tensor, float]:
    """Images on both sides of a plane, some values on the edge of the box."""
    generator = torch.Generator().manual_seed(3)
    x0 = torch.rand(batch, 1, 2, values // 2, dtype=torch.float64, generator=generator)
    x0[:, :, 0, 0], x0[:, :, 1, 1] = 0.0, 1.0
    w = torch.randn(values, dtype=torch.float64, generator=generator)
    w[2] = 0
    return x0, w, float((x0.flatten(1) * w).sum(1).median()) + 0.02


def distance(x0: Tensor, w: Tensor, b: float, threat: Threat) -> Tensor:
    """Exact by the tests of the projection (test_attack_hyperplane.py)."""
    p = x0.flatten(1)
    offset_B = torch.full((len(p),), b, dtype=torch.float64)
    moved = threat.project_on_hyperplane(p, w.expand_as(p), offset_B)
    return threat.distance(moved, torch.zeros_like(moved))


def run_engine(attack: FAB, model: Model, x0: Tensor, label_B: Tensor, threat: Threat) -> list[ImageResult]:
    goal, others_BT = Untargeted(label_B, margin), 1 - label_B[:, None]
    pool = WorkQueue(RandomStreams.of(0, torch.arange(len(x0))), 2, lambda at: (x0[at], goal.at(at), others_BT[at]))
    actual = [result for results in Engine().run(attack, Oracle(model), pool, threat) for result in results]
    return sorted(actual, key=lambda result: result.index)


@every_norm
@pytest.mark.parametrize("targeted", [False, True])
def test_the_nearest_point_of_a_plane_is_found_from_both_sides(norm: str, targeted: bool) -> None:
    """With an overshoot of 5% and a tenth of the way back, the best of 30 steps is within 1% of the distance."""
    x0, w, b = planes()
    model, threat = halfspace(w, b), THREATS[norm]
    label_B = model(x0).argmax(1)
    assert set(label_B.tolist()) == {0, 1}
    goal: Goal = TowardClass(label_B, 1 - label_B, logit_difference) if targeted else Untargeted(label_B, margin)
    none_B = torch.zeros_like(label_B)
    items, oracle = (
        StepContext(x0, goal, threat, RandomStreams.of(0, torch.arange(len(x0))), none_B, none_B),
        Oracle(model),
    )
    state = FAB().start(oracle, items)
    for step in range(31):
        _, state = FAB().step(oracle, replace(items, step_B=none_B + step), state)
    exact_B, size_B = distance(x0, w, b, threat), threat.distance(state["best"], x0)
    torch.testing.assert_close(state["best_distance"], size_B)
    assert bool((size_B >= exact_B * (1 - 1e-9)).all())
    assert bool((size_B <= exact_B * 1.01).all())
    assert torch.equal(model(state["best"]).argmax(1), 1 - label_B)


@every_norm
def test_only_points_inside_the_threat_count(norm: str) -> None:
    """Just outside, no step succeeds; 2% more takes several, 6% is reached by the first step."""
    x0, w, b = planes()
    model = halfspace(w, b)
    label_B = model(x0).argmax(1)
    exact_B = distance(x0, w, b, THREATS[norm])
    for row in range(len(x0)):
        costs = {}
        for factor in (0.99, 1.02, 1.06):
            threat = THREATS[norm].with_eps(factor * exact_B[row].item())
            (result,) = run_engine(FAB(steps=20), model, x0[[row]], label_B[[row]], threat)
            assert result.success == (factor > 1)
            costs[factor] = result.forwards
            if result.success:
                assert result.distance <= threat.eps * (1 + 1e-5)
                assert model(result.x_adv[None]).argmax(1).item() != label_B[row].item()
            # two forwards a step, one at the point and one behind it, and a backward for the only other class
            assert result.backwards == result.forwards / 2
        assert costs[0.99] == 2 * 21
        assert costs[1.06] == 2 * 2
        assert 2 * 2 < costs[1.02] < 2 * 21


def test_it_stops_as_soon_as_it_is_inside() -> None:
    queries = []

    def model(x: Tensor) -> Tensor:
        queries.append(x.detach().clone())
        return halfspace(w, b)(x)

    x0, w, b = planes()
    label_B = halfspace(w, b)(x0).argmax(1)
    (result,) = run_engine(FAB(steps=50, targets=1), model, x0[:1], label_B[:1], Linf(0.9))
    assert result.success
    assert len(queries) == result.forwards == 4
    assert result.backwards == 2
    # the clean image twice, what the first step led to, and that pulled back by a tenth
    assert torch.equal(queries[0], x0[:1])
    assert torch.equal(queries[1], x0[:1])
    assert torch.equal(queries[2][0], result.x_adv)
    torch.testing.assert_close(queries[3], x0[:1] + 0.9 * (queries[2] - x0[:1]), rtol=0, atol=1e-15)


def test_a_misclassified_image_costs_one_step() -> None:
    x0, w, b = planes()
    label_B = 1 - halfspace(w, b)(x0).argmax(1)
    for result in run_engine(FAB(steps=50, targets=1), halfspace(w, b), x0, label_B, Linf(0.1)):
        assert result.success
        assert result.distance == 0
        assert result.forwards == 2


@pytest.mark.parametrize(("norm", "nearest"), [("linf", 2), ("l2", 1), ("l1", 1)])
def test_without_targets_it_moves_to_the_nearest_boundary(norm: str, nearest: int) -> None:
    """Two other classes, each a unit behind: one increases in one value alone, one a little in all four."""
    gradients = torch.tensor([[0.0] * 4, [2.5, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    x0 = torch.full((1, 1, 2, 2), 0.2, dtype=torch.float64)
    behind = torch.tensor([0.0, -1.0, -1.0], dtype=torch.float64)

    def model(x: Tensor) -> Tensor:
        return (x - x0).flatten(1) @ gradients.T + behind

    none_B = torch.zeros(1, dtype=torch.int64)
    items = StepContext(x0, Untargeted(none_B, margin), THREATS[norm], RandomStreams.of(0, none_B), none_B, none_B)
    oracle = Oracle(model)
    _, moved = FAB().step(oracle, items, FAB().start(oracle, items))
    exact = {("linf", 2): [0.25] * 4, ("l2", 1): [0.4, 0, 0, 0], ("l1", 1): [0.4, 0, 0, 0]}[norm, nearest]
    assert (moved["x"] - x0).flatten().tolist() == pytest.approx([1.05 * way for way in exact], abs=1e-12)
    assert model(moved["x"]).argmax(1).item() == nearest


@every_norm
def test_later_restarts_start_at_half_the_radius(norm: str) -> None:
    x0 = torch.full((9, 3, 3, 3), 0.5, dtype=torch.float64)
    threat = THREATS[norm].with_eps(0.3)
    none_B = torch.zeros(9, dtype=torch.int64)
    restart_B = torch.tensor([0, 1, 2] * 3)
    goal: Goal = Untargeted(none_B, margin)
    items = StepContext(x0, goal, threat, RandomStreams.of(0, torch.arange(9)), none_B, restart_B)
    x = FAB(restarts=3).start(Oracle(lambda x: x), items)["x"]
    expected_B = 0.15 * (restart_B > 0).double()
    torch.testing.assert_close(threat.distance(x, x0), expected_B, rtol=1e-9, atol=1e-12)
    dark = FAB(restarts=3).start(Oracle(lambda x: x), replace(items, x0=torch.zeros_like(x0)))["x"]
    torch.testing.assert_close(dark, (x - x0).clamp_min(0))
    assert FAB(restarts=3).restarts == 3


# ---------------------------------------------------- a slow version of it


def to_plane(p: Array, w: Array, b: float, norm: str) -> Array:
    """The step to the plane inside the box, value by value."""
    missing = b - w @ p
    way = np.sign(w) * (1 if missing > 0 else -1)
    slack = np.where(way > 0, 1 - p, np.where(way < 0, p, 0))
    if norm == "l1":
        moved, left = np.zeros_like(p), float(abs(missing))
        for i in sorted(range(len(p)), key=lambda i: -abs(w[i])):
            moved[i] = min(slack[i], left / max(abs(w[i]), 1e-300))
            left = max(left - float(moved[i] * abs(w[i])), 0.0)
        return way * moved
    pace = np.abs(w) if norm == "l2" else np.ones_like(p)
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        short = (np.minimum(middle * pace, slack) * np.abs(w)).sum() < abs(missing)
        low, high = (middle, high) if short else (low, middle)
    return way * np.minimum(high * pace, slack)


def slow_fab(gap: Callable[[Array], tuple[bool, float, Array]], x0: Array, steps: int, norm: str) -> list[Array]:
    """The points of the paper's Algorithm 1, each before it is pulled back."""
    order = {"linf": np.inf, "l2": 2, "l1": 1}[norm]
    x, points = x0, [x0]
    for _ in range(steps):
        _, value, gradient = gap(x)
        b = float(gradient @ x) - value
        here, there = to_plane(x, gradient, b, norm), to_plane(x0, gradient, b, norm)
        near, far = (max(float(np.linalg.norm(way, order)), 1e-8) for way in (here, there))
        alpha = min(near / (near + far), 0.1)
        x = np.clip((1 - alpha) * (x + 1.05 * here) + alpha * (x0 + 1.05 * there), 0, 1)
        points.append(x)
        if gap(x)[0]:
            x = x0 + 0.9 * (x - x0)
    return points


@every_norm
@pytest.mark.parametrize("seed", range(3))
def test_iterates_match_the_slow_implementation(norm: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inner, outer = (torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((9, 8), (3, 9)))
    x0 = torch.rand(1, 2, 2, 2, dtype=torch.float64, generator=generator)
    x0[0, 0, 0] = torch.tensor([0.0, 0.99])

    def model(x: Tensor) -> Tensor:
        return (x.flatten(1) @ inner.T).tanh() @ outer.T

    label_B = model(x0).argmax(1)
    target_B = model(x0).argmin(1)

    def gap(x: Array) -> tuple[bool, float, Array]:
        point = torch.from_numpy(x).view(1, 2, 2, 2).requires_grad_()
        z_BK = model(point)
        value = logit_difference(z_BK, label_B, target_B).sum()
        (gradient,) = torch.autograd.grad(value, point)
        return z_BK.argmax(1).item() != label_B.item(), value.item(), gradient.numpy().ravel()

    none_B = torch.zeros(1, dtype=torch.int64)
    goal = TowardClass(label_B, target_B, logit_difference)
    items, oracle = StepContext(x0, goal, THREATS[norm], RandomStreams.of(0, none_B), none_B, none_B), Oracle(model)
    state, points = FAB().start(oracle, items), []
    for step in range(21):
        query, state = FAB().step(oracle, replace(items, step_B=none_B + step), state)
        points.append(query.x.numpy().ravel())
    slow = slow_fab(gap, x0.numpy().ravel(), 20, norm)
    np.testing.assert_allclose(np.stack(points), np.stack(slow), rtol=0, atol=1e-8)
    fooled = [x for x in slow if gap(x)[0]]
    order = {"linf": np.inf, "l2": 2, "l1": 1}[norm]
    sizes = [float(np.linalg.norm(x - x0.numpy().ravel(), order)) for x in fooled]
    assert state["best_distance"].item() == pytest.approx(min(sizes))
    np.testing.assert_allclose(state["best"].numpy().ravel(), fooled[int(np.argmin(sizes))], rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FAB(steps=0), "FAB.steps must be at least 1, got 0"),
        (lambda: FAB(restarts=0), "FAB.restarts must be at least 1, got 0"),
        (lambda: FAB(targets=-2), "FAB.targets must not be negative, got -2"),
    ],
)
def test_invalid_settings_are_refused(make: Callable[[], FAB], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize("targets", [0, 1])
def test_a_targeted_goal_is_refused(targets: int) -> None:
    x0, w, b = planes()
    goal = Targeted(torch.zeros(6, dtype=torch.int64))
    with pytest.raises(UsageError, match="needs an Untargeted goal, got Targeted"):
        FAB(targets=targets)(halfspace(w, b), x0, goal, Linf(0.1), seed=0)
