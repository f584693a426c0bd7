"""GAMA-PGD: the guided margin, its decaying weight and its three step sizes.

Shape letters: B items, K classes.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from vitadel.attacks import GAMA, StepContext
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.goals import Targeted, Untargeted
from vitadel.threats import L1, L2, Linf, Threat


def net(values: int = 4, classes: int = 3) -> Tensor:
    return torch.randn(values, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def items_at(steps: list[int], x0: Tensor, threat: Threat, label: int = 0) -> StepContext:
    label_B = torch.full((len(x0),), label)
    rng = RandomStreams.of(0, torch.arange(len(x0)))
    return StepContext(x0, Untargeted(label_B), threat, rng, torch.tensor(steps), torch.zeros_like(label_B))


def test_the_objective_is_the_probability_margin_plus_a_decaying_regularizer() -> None:
    """The weight of the regularizer is 50 at first, 48 after one step of 100, 2 after 24 and nothing from 25 on."""
    weights = {0: 50.0, 1: 48.0, 12: 26.0, 24: 2.0, 25: 0.0, 26: 0.0, 99: 0.0}
    w, x0 = net(), torch.rand(7, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    items = items_at(list(weights), x0, L2(0.3))
    oracle = Oracle(lambda x: x.flatten(1) @ w)
    state = GAMA(steps=100).start(oracle, items)
    query, _ = GAMA(steps=100).step(oracle, items, state)
    clean_BK = (x0.flatten(1) @ w).softmax(1)
    x = state["x"].clone().requires_grad_()
    p_BK = (x.flatten(1) @ w).softmax(1)
    ahead_B = p_BK[:, 1:].amax(1) - p_BK[:, 0]
    regularizer_B = torch.tensor(list(weights.values()), dtype=torch.float64) * ((p_BK - clean_BK) ** 2).sum(1)
    (expected,) = torch.autograd.grad((ahead_B + regularizer_B).sum(), x)
    assert query.grad is not None
    # the weights are computed in float32
    torch.testing.assert_close(query.grad, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(query.z_BK, state["x"].flatten(1) @ w)


def test_the_regularizer_weight_is_a_setting() -> None:
    w, x0 = net(), torch.rand(3, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    oracle, items = Oracle(lambda x: x.flatten(1) @ w), items_at([0, 0, 0], x0, L2(0.3))
    without = GAMA(steps=100, guidance_weight=0.0)
    plain, _ = without.step(oracle, items, without.start(oracle, items))
    late, _ = GAMA(steps=100).step(oracle, replace(items, step_B=items.step_B + 25), without.start(oracle, items))
    early, _ = GAMA(steps=100).step(oracle, items, without.start(oracle, items))
    assert plain.grad is not None
    assert late.grad is not None
    assert early.grad is not None
    torch.testing.assert_close(plain.grad, late.grad)
    assert not torch.allclose(plain.grad, early.grad)


@pytest.mark.parametrize("steps", [100, 20])
def test_the_step_size_is_divided_by_ten_at_60_and_85_percent(steps: int) -> None:
    """From the lower corner of the ball a positive gradient moves by the whole step."""
    parts = [0.0, 0.55, 0.6, 0.8, 0.85, 0.95]
    x0 = torch.full((6, 1, 2, 2), 0.5, dtype=torch.float64)

    def model(x: Tensor) -> Tensor:
        rising_B = x.flatten(1).sum(1)
        return torch.stack([torch.zeros_like(rising_B), rising_B], 1)

    attack, items = (
        GAMA(steps=steps, guidance_weight=0),
        items_at([round(part * steps) for part in parts], x0, Linf(0.1)),
    )
    state = {**attack.start(Oracle(model), items), "x": x0 - 0.1}
    _, moved = attack.step(Oracle(model), items, state)
    trace_of = (moved["x"] - (x0 - 0.1)).amax((1, 2, 3))
    assert trace_of.tolist() == pytest.approx([0.2, 0.2, 0.02, 0.02, 0.002, 0.002], abs=1e-8)


def test_it_starts_at_a_random_vertex_of_the_cube() -> None:
    x0 = torch.full((200, 1, 3, 3), 0.5, dtype=torch.float64)
    x = GAMA().start(Oracle(lambda x: x.flatten(1)), items_at([0] * 200, x0, Linf(0.1)))["x"]
    torch.testing.assert_close((x - x0).abs(), torch.full_like(x, 0.1))
    assert ((x > x0).double().mean() - 0.5).abs().item() < 5 * 0.5 / 1800**0.5
    dark = GAMA().start(Oracle(lambda x: x.flatten(1)), items_at([0] * 200, 0 * x0, Linf(0.1)))["x"]
    assert set(dark.unique().tolist()) == {0.0, 0.1}


@pytest.mark.parametrize("threat", [L2(0.4), L1(0.7)])
def test_it_starts_inside_the_other_balls(threat: Threat) -> None:
    x0 = torch.full((50, 1, 3, 3), 0.5, dtype=torch.float64)
    size_B = threat.distance(GAMA().start(Oracle(lambda x: x.flatten(1)), items_at([0] * 50, x0, threat))["x"], x0)
    assert 0 < size_B.min().item() < size_B.max().item() <= threat.eps * (1 + 1e-9)


def test_the_best_point_has_the_largest_logit_margin() -> None:
    w, x0 = net(8, 4), torch.rand(5, 2, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    oracle, attack = Oracle(lambda x: (7 * x.flatten(1) @ w).sin()), GAMA(steps=20)
    items = items_at([0] * 5, x0, Linf(0.2))
    state, points, margins = attack.start(oracle, items), [], []
    for step in range(21):
        query, moved = attack.step(oracle, replace(items, step_B=items.step_B + step), state)
        state = {**state, **moved}
        points.append(query.x)
        margins.append(query.z_BK[:, 1:].amax(1) - query.z_BK[:, 0])
    at_B = torch.stack(margins).argmax(0)
    assert len(at_B.unique()) > 1
    torch.testing.assert_close(state["best"], torch.stack(points)[at_B, torch.arange(5)])
    torch.testing.assert_close(state["best_objective"], torch.stack(margins).amax(0))


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="GAMA.steps must be at least 1, got 0"):
        GAMA(steps=0)
    with pytest.raises(UsageError, match="GAMA.restarts must be at least 1, got 0"):
        GAMA(restarts=0)
    with pytest.raises(UsageError, match="GAMA needs an Untargeted goal, got Targeted"):
        GAMA()(lambda x: x.flatten(1), torch.rand(2, 1, 2, 2), Targeted(torch.tensor([0, 1])), Linf(0.1), seed=0)
