"""Auto-PGD step by step: when it halves its step size, where it restarts, and a slow version of it in plain numpy.

Shape letters: B items, K classes.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitadel.attacks import APGD, IterativeAttack, Query, State, StepContext
from vitadel.attacks.apgd import checkpoints, eps_phases
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal, Untargeted
from vitadel.losses import cross_entropy, margin
from vitadel.threats import L1, L2, Linf, Threat

Model = Callable[[Tensor], Tensor]
Array = NDArray[np.float64]
CHECKS_100 = [22, 41, 57, 70, 80, 87, 93, 99]


def gray(batch: int = 1, values: int = 1) -> Tensor:
    return torch.full((batch, 1, 1, values), 0.5, dtype=torch.float64)


def first(x0: Tensor, threat: Threat, goal: Goal | None = None) -> StepContext:
    """Items before their first step; label 0 and the margin by default."""
    none_B = torch.zeros(len(x0), dtype=torch.int64)
    return StepContext(
        x0, goal or Untargeted(none_B, margin), threat, RandomStreams.of(0, torch.arange(len(x0))), none_B, none_B
    )


def trace_of(
    attack: IterativeAttack, model: Model, items: StepContext, steps: int, **changes: Tensor
) -> list[tuple[Query, State]]:
    """The query and the state after each of `steps` + 1 steps; `changes` replace parts of the state at the start."""
    oracle = Oracle(model)
    state: State = {**attack.start(oracle, items), **changes}
    trace: list[tuple[Query, State]] = []
    for step in range(steps + 1):
        query, moved = attack.step(oracle, replace(items, step_B=torch.full_like(items.step_B, step)), state)
        state = {**state, **moved}
        trace.append((query, state))
    return trace


def scripted(objectives: list[float], gradients: list[list[float]] | None = None) -> Model:
    """A model of two classes whose margin for label 0 is read off a list, call by call, and so is its gradient."""
    calls = iter(range(len(objectives)))

    def model(x: Tensor) -> Tensor:
        call = next(calls)
        flat = x.flatten(1)
        gradient = torch.ones_like(flat) if gradients is None else torch.tensor([gradients[call]], dtype=x.dtype)
        objective_B = objectives[call] + (gradient * (flat - flat.detach())).sum(1)
        return torch.stack([torch.zeros_like(objective_B), objective_B], 1)

    return model


def step_sizes(objectives: list[float], steps: int = 100) -> list[float]:
    """The step size in units of eps after each query."""
    trace = trace_of(APGD(steps=steps), scripted(objectives), first(gray(), Linf(0.1)), steps)
    return [state["step_size"].item() / 0.1 for _, state in trace]


def stairs(halved_at: list[int], steps: int = 100) -> list[float]:
    """2, and half as much from each of these steps on."""
    return [2 / 2 ** sum(step >= at for at in halved_at) for step in range(steps + 1)]


# ------------------------------------------------------------ checkpoints


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (1, [1]),
        (10, [2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (20, [4, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]),
        (50, [11, 21, 30, 38, 45]),
        (100, CHECKS_100),
        (1000, [220, 410, 570, 700, 800, 870, 930, 990]),
    ],
)
def test_checkpoint_positions(steps: int, expected: list[int]) -> None:
    assert checkpoints(steps) == expected


def test_checkpoints_match_the_paper() -> None:
    """Its shares are p(j+1) = p(j) + max(p(j) - p(j-1) - 0.03, 0.06), from 0 and 0.22; here in exact hundredths."""
    shares = [0, 22]
    while shares[-1] <= 100:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 3, 6))
    for hundreds in (1, 2, 5, 10):
        assert checkpoints(100 * hundreds) == [hundreds * share for share in shares[1:-1]]


# ------------------------------------------------------------- the step size


def test_an_objective_that_always_increases_keeps_the_step_size() -> None:
    assert step_sizes([float(call) for call in range(101)]) == pytest.approx([2.0] * 101)


@pytest.mark.parametrize("gradient", [0.0, -1.0])
def test_an_objective_that_never_increases_halves_the_step_size_at_every_checkpoint(gradient: float) -> None:
    assert step_sizes([gradient * call for call in range(101)]) == pytest.approx(stairs(CHECKS_100))
    assert step_sizes([gradient * call for call in range(51)], 50) == pytest.approx(stairs([11, 21, 30, 38, 45], 50))


@pytest.mark.parametrize(("num_increases", "halved"), [(16, True), (17, False)])
def test_three_quarters_of_the_steps_must_increase_the_objective(num_increases: int, halved: bool) -> None:
    """The first window has 22 steps, and 16.5 is three quarters of it. Decreases come first and do not count.

    The objective of the start is not an increase, though it is positive.
    """
    objectives = [5.0 - call for call in range(23 - num_increases)]
    objectives += [objectives[-1] + 1000 * (1 + call) for call in range(num_increases)] + [0.0] * 78
    assert step_sizes(objectives)[21] == pytest.approx(2)
    assert step_sizes(objectives)[22] == pytest.approx(1 if halved else 2)


def test_a_step_at_a_checkpoint_counts_for_the_next_window() -> None:
    """Second window: 19 steps, 14.25 is three quarters. The increase from query 22 to 23 is its first."""
    for increases, halved in ((14, True), (15, False)):
        objectives = [float(call) for call in range(23)]
        objectives += [objectives[-1] + 1 + call for call in range(increases)]
        objectives += [objectives[-1] - 1 - call for call in range(19 - increases)]
        sizes = step_sizes(objectives + [0.0] * 59)
        assert sizes[40:42] == pytest.approx([2, 1 if halved else 2])


def test_without_a_new_best_the_step_size_is_halved_at_every_other_checkpoint() -> None:
    """Each window decreases once and then increases, below the first value: only the second condition applies.

    It cannot at the first checkpoint, nor right after a halving.
    """
    objectives = [1000.0]
    for before, after in zip([0, *CHECKS_100], CHECKS_100, strict=False):
        objectives += [float(increase) for increase in range(after - before)]
    assert step_sizes([*objectives, 0.0]) == pytest.approx(stairs([41, 70, 87, 99]))


def test_a_new_best_in_every_window_keeps_the_step_size() -> None:
    """The same sawtooth, with a value above all before it at the end of every window."""
    objectives = [1000.0]
    for place, (before, after) in enumerate(zip([0, *CHECKS_100], CHECKS_100, strict=False)):
        objectives += [float(increase) for increase in range(after - before - 1)] + [1001.0 + place]
    assert step_sizes([*objectives, 0.0]) == pytest.approx([2.0] * 101)


def test_the_best_objective_at_the_last_checkpoint_must_be_exceeded() -> None:
    """A new best in the second window alone: the third halves, the fourth does not, the fifth halves."""
    objectives = [1000.0]
    for before, after in zip([0, *CHECKS_100], CHECKS_100, strict=False):
        objectives += [float(increase) for increase in range(after - before - 1)] + [2000.0 if after == 41 else 900.0]
    assert step_sizes([*objectives, 0.0]) == pytest.approx(stairs([57, 80, 93]))


def test_items_of_a_batch_have_their_own_step_sizes() -> None:
    """One always increases, one never does, in rows of one batch that are at different steps."""

    def model(x: Tensor) -> Tensor:
        objective_B = x.flatten(1)[:, 0] * torch.tensor([1.0, 0.0], dtype=x.dtype)
        return torch.stack([torch.zeros_like(objective_B), objective_B], 1)

    attack, items = APGD(steps=100), first(gray(2), Linf(0.1))
    state: State = {**attack.start(Oracle(model), items), "x": gray(2) - 0.1, "best": gray(2) - 0.1}
    state = {
        **state,
        "num_increases": torch.tensor([20.0, 20.0], dtype=torch.float64),
        "halved": torch.tensor([True, True]),
    }
    _, at_check = attack.step(Oracle(model), replace(items, step_B=torch.tensor([21, 22])), state)
    assert at_check["num_increases"].tolist() == [21, 0]
    _, at_check = attack.step(Oracle(model), replace(items, step_B=torch.tensor([22, 41])), state)
    assert at_check["num_increases"].tolist() == [0, 0]
    few: State = {**state, "num_increases": torch.tensor([15.0, 15.0], dtype=torch.float64)}
    _, at_check = attack.step(Oracle(model), replace(items, step_B=torch.tensor([22, 41])), few)
    # 16 increases with row 0's own; of 22 they are too few, of 19 the other's 15 are enough
    assert at_check["step_size"].tolist() == pytest.approx([0.1, 0.2])


# ------------------------------------------------------------- steps


def test_after_halving_it_restarts_at_the_best_point_with_its_gradient() -> None:
    """The objective peaks at query 5, whose gradient alone is negative in the second value."""
    objectives = [0.0] * 101
    objectives[5] = 1.0
    gradients = [[1.0, -1.0] if call == 5 else [(-1.0) ** call, 1.0] for call in range(101)]
    x0 = gray(values=2)
    trace = trace_of(APGD(steps=100), scripted(objectives, gradients), first(x0, Linf(0.1)), 23)
    best, before = trace[5][0].x, trace[21][0].x
    assert not torch.equal(best, trace[22][0].x)
    ahead = (best + 0.1 * torch.tensor([1.0, -1.0], dtype=torch.float64)).clamp(x0 - 0.1, x0 + 0.1)
    expected = (best + 0.75 * (ahead - best) + 0.25 * (best - before)).clamp(x0 - 0.1, x0 + 0.1)
    torch.testing.assert_close(trace[23][0].x, expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(trace[22][1]["x_old"], best, rtol=0, atol=0)


def test_momentum_in_closed_form() -> None:
    """Up once and then always down, in steps of s: the moves are s and then -s (1 - 2 / 4^k)."""
    objectives, gradients = [float(call) for call in range(8)], [[1.0]] + [[-1.0]] * 7
    start = gray() + 0.01
    trace = trace_of(
        APGD(steps=100),
        scripted(objectives, gradients),
        first(gray(), Linf(0.4)),
        7,
        x=start,
        x_old=start,
        step_size=torch.tensor([0.01], dtype=torch.float64),
    )
    x = [query.x.item() for query, _ in trace]
    assert x[0] == 0.51
    assert np.diff(x) == pytest.approx([0.01] + [-0.01 * (1 - 2 / 4**k) for k in range(1, 7)], abs=1e-15)


def test_the_first_step_has_no_momentum() -> None:
    step = torch.tensor([0.01], dtype=torch.float64)
    changes = {"x": gray(), "x_old": gray() - 0.08, "step_size": step}
    trace = trace_of(APGD(steps=100), scripted([0.0, 1.0]), first(gray(), Linf(0.4)), 1, **changes)
    assert trace[1][0].x.item() == pytest.approx(0.51, abs=1e-15)
    # from the second step on, the same state carries a quarter of the last move on
    items = replace(first(gray(), Linf(0.4)), step_B=torch.tensor([1]))
    state: State = {**APGD().start(Oracle(scripted([])), items), **changes}
    _, moved = APGD().step(Oracle(scripted([0.0])), items, state)
    assert moved["x"].item() == pytest.approx(0.5 + 0.75 * 0.01 + 0.25 * 0.08, abs=1e-15)


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.3)])
def test_it_starts_at_the_boundary_of_the_ball(threat: Threat) -> None:
    x0 = torch.full((50, 3, 4, 4), 0.5, dtype=torch.float64)
    items = first(x0, threat)
    x = APGD().start(Oracle(scripted([])), items)["x"]
    torch.testing.assert_close(threat.distance(x, x0), torch.full((50,), threat.eps, dtype=torch.float64))
    other = APGD().start(Oracle(scripted([])), replace(items, rng=items.rng.fold(1)))["x"]
    assert bool((threat.distance(x, other) > threat.eps / 2).all())
    dark = APGD().start(Oracle(scripted([])), first(torch.zeros_like(x0), threat))["x"]
    torch.testing.assert_close(dark, (x - x0).clamp_min(0))


# ---------------------------------------------------- a slow version of it


def nearest(x: Array, x0: Array, eps: float, norm: str) -> Array:
    """The nearest point of ball and box, found by halving a bracket around the multiplier."""
    if norm == "linf":
        return np.clip(np.clip(x, x0 - eps, x0 + eps), 0, 1)
    shift = x - x0

    def at(multiplier: float) -> Array:
        if norm == "l2":
            return np.clip(x0 + shift / (1 + multiplier), 0, 1)
        return np.clip(x0 + np.sign(shift) * np.maximum(np.abs(shift) - multiplier, 0), 0, 1)

    def size(point: Array) -> float:
        return float(np.linalg.norm(point - x0) if norm == "l2" else np.abs(point - x0).sum())

    if size(at(0)) <= eps:
        return at(0)
    low, high = 0.0, 1e3
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if size(at(middle)) > eps else (low, middle)
    return at(high)


def slow_apgd(  # type: ignore[no-untyped-def]
    objective: Callable[[Array], tuple[float, Array]], x0: Array, x: Array, eps: float, steps: int, norm: str
):
    """Algorithm 1 of the paper for one image, as the list of its queries and its step sizes."""
    checks = []
    last_share, share = 0, 22
    while share <= 100:
        checks.append(math.ceil(share * steps / 100))
        last_share, share = share, share + max(share - last_share - 3, 6)
    eta = 2 * eps
    value, gradient = objective(x)
    points, etas, values = [x], [], [value]
    f_max, x_max, gradient_max = value, x, gradient
    previous = x
    halved_before, f_max_before, last_check = True, value, 0
    for k in range(steps):
        direction = np.sign(gradient) if norm == "linf" else gradient / np.linalg.norm(gradient)
        z = nearest(x + eta * direction, x0, eps, norm)
        alpha = 1.0 if k == 0 else 0.75
        after = nearest(x + alpha * (z - x) + (1 - alpha) * (x - previous), x0, eps, norm)
        etas.append(eta)
        previous, x = x, after
        value, gradient = objective(x)
        points.append(x)
        values.append(value)
        if value > f_max:
            f_max, x_max, gradient_max = value, x, gradient
        if k + 1 in checks:
            ups = sum(values[i + 1] > values[i] for i in range(last_check, k + 1))
            few = ups <= 0.75 * (k + 1 - last_check)
            stuck = not halved_before and f_max <= f_max_before
            halved_before, f_max_before, last_check = few or stuck, f_max, k + 1
            if few or stuck:
                eta /= 2
                x, gradient = x_max, gradient_max
    return points, etas


def smooth_model(values: int, seed: int, frequency: float) -> Model:
    """Three smooth classes with many local maxima."""
    generator = torch.Generator().manual_seed(seed)
    inner = frequency * torch.randn(12, values, dtype=torch.float64, generator=generator)
    outer = torch.randn(3, 12, dtype=torch.float64, generator=generator)

    def model(x: Tensor) -> Tensor:
        hidden = (x.flatten(1)[:, None] * inner).sum(2).sin()
        return (hidden[:, None] * outer).sum(2)

    return model


def objective_of(model: Model, shape: torch.Size) -> Callable[[Array], tuple[float, Array]]:
    def objective(x: Array) -> tuple[float, Array]:
        point = torch.from_numpy(x).view(1, *shape).requires_grad_()
        value = cross_entropy(model(point), torch.tensor([0])).sum()
        (gradient,) = torch.autograd.grad(value, point)
        return value.item(), gradient.numpy().ravel()

    return objective


# none of these searches converges to a maximum, where rounding would decide what increases
@pytest.mark.parametrize("seed", [0, 2, 3, 4])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("frequency", [0.4, 2.0])
def test_iterates_match_the_slow_implementation(norm: str, seed: int, frequency: float) -> None:
    """Some values are near 0 or 1, so that the box matters; some models halve often and some rarely."""
    shape = torch.Size([2, 2, 2])
    model = smooth_model(8, seed, frequency)
    x0 = torch.rand(1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x0[0, 0] = torch.tensor([[0.02, 0.97], [0.0, 1.0]])
    threat: Threat = Linf(0.3) if norm == "linf" else L2(0.6)
    trace = trace_of(APGD(steps=100), model, first(x0, threat, Untargeted(torch.tensor([0]))), 100)
    start = trace[0][0].x
    points, etas = slow_apgd(
        objective_of(model, shape), x0.numpy().ravel(), start.numpy().ravel(), threat.eps, 100, norm
    )
    ours = torch.cat([query.x for query, _ in trace]).flatten(1).numpy()
    np.testing.assert_allclose(ours, np.stack(points), rtol=0, atol=1e-7)
    assert [state["step_size"].item() for _, state in trace[:100]] == pytest.approx(etas)
    # else a rule that never halves would do
    assert etas[-1] < etas[0]
    best = trace[-1][1]["best"].numpy().ravel()
    objectives = [objective_of(model, shape)(x)[0] for x in points]
    np.testing.assert_allclose(best, points[int(np.argmax(objectives))], rtol=0, atol=1e-7)


# ---------------------------------------------------------------------- L1


def slow_sparse_apgd(  # type: ignore[no-untyped-def]
    objective: Callable[[Array], tuple[float, Array]], x0: Array, x: Array, eps: float, steps: int
):
    """The L1 attack with one phase for one image: its queries."""
    count, eta, share, changed = len(x0), eps, 0.2, float(len(x0))
    every = max(int(0.04 * steps), 1)
    value, gradient = objective(x)
    points, f_max, x_max, gradient_max = [x], value, x, gradient
    for k in range(steps):
        least = sorted(np.abs(gradient))[int(min(max((1 - share) * count, 0), count - 1))]
        chosen = [i for i in range(count) if abs(gradient[i]) >= least]
        ahead = x.copy()
        for i in chosen:
            ahead[i] += eta * np.sign(gradient[i]) / len(chosen)
        x = nearest(ahead, x0, eps, "l1")
        value, gradient = objective(x)
        points.append(x)
        if value > f_max:
            f_max, x_max, gradient_max = value, x, gradient
        if (k + 1) % every == 0:
            now = float(np.count_nonzero(x_max != x0))
            if now / changed < 0.95:
                eta, x, gradient = eps, x_max, gradient_max
            else:
                eta = min(max(eta / 1.5, eps / 10), eps)
            share, changed = now / count / 1.5, now
    return points


@pytest.mark.parametrize("seed", range(3))
def test_sparse_iterates_match_the_slow_implementation(seed: int) -> None:
    shape = torch.Size([1, 5, 5])
    model = smooth_model(25, seed, 1.0)
    x0 = torch.rand(1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x0[0, 0, 0] = torch.tensor([0.0, 1.0, 0.01, 0.99, 0.0])
    trace = trace_of(APGD(steps=50), model, first(x0, L1(1.5), Untargeted(torch.tensor([0]))), 50)
    start = trace[0][0].x.numpy().ravel()
    points = slow_sparse_apgd(objective_of(model, shape), x0.numpy().ravel(), start, 1.5, 50)
    ours = torch.cat([query.x for query, _ in trace]).flatten(1).numpy()
    np.testing.assert_allclose(ours, np.stack(points), rtol=0, atol=1e-7)
    sizes = {round(state["step_size"].item(), 9) for _, state in trace}
    assert len(sizes) > 2


def test_a_sparse_step_moves_the_largest_gradient_entries_equally() -> None:
    grad = torch.tensor([[0.5, -3.0, 0.0, 2.0, -0.1, 0.2, 1.0, -1.5, 0.3, 0.4]], dtype=torch.float64)
    for share, moved in ((0.2, {1: -1, 3: 1}), (0.4, {1: -1, 3: 1, 7: -1, 6: 1}), (0.1, {1: -1})):
        expected = torch.zeros(1, 10, dtype=torch.float64)
        for place, sign in moved.items():
            expected[0, place] = sign * 0.6 / len(moved)
        result = L1(1.0).sparse_step(
            torch.zeros_like(grad), grad, torch.tensor([0.6]), torch.tensor([share], dtype=torch.float64)
        )
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-7)


def test_a_wide_start_spends_its_steps_in_three_balls() -> None:
    assert eps_phases(100, True) == [(3, 30), (2, 30), (1, 40)]
    assert eps_phases(10, True) == [(3, 3), (2, 3), (1, 4)]
    assert eps_phases(7, True) == [(3, 3), (2, 3), (1, 1)]
    assert eps_phases(100, False) == [(1, 100)]


def test_every_phase_makes_one_more_query_than_steps() -> None:
    assert APGD(steps=100).num_steps(Linf(0.1)) == 101
    assert APGD(steps=100).num_steps(L1(12)) == 101
    assert APGD(steps=100, use_larger_eps=True).num_steps(L1(12)) == 103
    assert APGD(steps=100, use_larger_eps=True).num_steps(L2(0.5)) == 101


def test_the_balls_of_a_wide_start_shrink_from_three_radii_to_one() -> None:
    """On a linear function the attack is at the boundary of the ball of its phase; phases start at the last best."""
    x0 = torch.full((1, 1, 6, 6), 0.5, dtype=torch.float64)
    gradient = torch.linspace(-1, 1, 36, dtype=torch.float64)

    def model(x: Tensor) -> Tensor:
        objective_B = (x.flatten(1) * gradient).sum(1)
        return torch.stack([torch.zeros_like(objective_B), objective_B], 1)

    threat = L1(0.8)
    trace = trace_of(APGD(steps=100, use_larger_eps=True), model, first(x0, threat), 102)
    sizes = [threat.distance(query.x, x0).item() for query, _ in trace]
    for opens, ends, times in ((0, 30, 3), (31, 61, 2), (62, 102, 1)):
        assert max(sizes[opens : ends + 1]) == pytest.approx(times * 0.8, abs=1e-6)
        assert sizes[ends] == pytest.approx(times * 0.8, abs=1e-6)
    for opens, times in ((31, 2), (62, 1)):
        before = trace[:opens] if opens == 31 else trace[31:opens]
        best = max((query for query, _ in before), key=lambda query: float(margin(query.z_BK, torch.tensor([0]))))
        expected = nearest(best.x.numpy().ravel(), x0.numpy().ravel(), times * 0.8, "l1")
        np.testing.assert_allclose(trace[opens][0].x.numpy().ravel(), expected, rtol=0, atol=1e-6)
        assert trace[opens - 1][1]["step_size"].item() == pytest.approx(times * 0.8)
        assert trace[opens - 1][1]["best_objective"].item() == -math.inf


# ------------------------------------------------------------------- others


def test_gradients_of_a_randomized_model_are_averaged() -> None:
    """Two EOT samples per step: the gradients cancel in the first value and add up in the second."""
    objectives, gradients = [1.0, 3.0, 0.0, 0.0], [[1.0, 1.0], [-1.0, 3.0], [1.0, 0.0], [1.0, 0.0]]
    trace = trace_of(APGD(steps=1, eot_samples=2), scripted(objectives, gradients), first(gray(values=2), L2(0.1)), 1)
    query, state = trace[0]
    assert query.grad is not None
    assert query.grad.flatten().tolist() == [0.0, 2.0]
    assert query.z_BK.tolist() == [[0.0, 2.0]]
    assert state["best_objective"].item() == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: APGD(steps=0), "APGD.steps must be at least 1, got 0"),
        (lambda: APGD(restarts=0), "APGD.restarts must be at least 1, got 0"),
        (lambda: APGD(eot_samples=0), "APGD.eot_samples must be at least 1, got 0"),
        (lambda: APGD(targets=-1), "APGD.targets must not be negative, got -1"),
    ],
)
def test_invalid_settings_are_refused(make: Callable[[], APGD], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
