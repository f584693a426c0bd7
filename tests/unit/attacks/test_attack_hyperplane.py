"""The nearest point of a plane inside the box against slow exact solvers.

Shape letters: B points.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize
from torch import Tensor

from vitadel.threats import L1, L2, Linf, Threat

Array = NDArray[np.float64]
THREATS: dict[str, Threat] = {"linf": Linf(0.1), "l2": L2(0.1), "l1": L1(0.1)}

every_norm = pytest.mark.parametrize("norm", THREATS)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def cases(*, reachable: bool) -> Iterator[tuple[Array, Array, float]]:
    """Points of the box, some at its boundary, normals with zeros, and planes inside and outside the box."""
    random = np.random.default_rng(0 if reachable else 1)
    for size in (1, 2, 3, 7, 20):
        for _ in range(8):
            p, w = random.uniform(size=size), random.normal(size=size)
            p[random.uniform(size=size) < 0.3] = 0
            p[random.uniform(size=size) < 0.3] = 1
            w[random.uniform(size=size) < 0.25] = 0
            if not w.any():
                w[0] = 1.0
            low, high = np.minimum(w, 0).sum(), np.maximum(w, 0).sum()
            if reachable:
                yield p, w, random.uniform(low, high)
            else:
                yield p, w, random.choice([low - random.uniform(0.1, 2), high + random.uniform(0.1, 2)])


def length(v: Array, norm: str) -> float:
    return float({"linf": np.abs(v).max(), "l2": np.linalg.norm(v), "l1": np.abs(v).sum()}[norm])


def exact_length(p: Array, w: Array, b: float, norm: str) -> float:
    """The length of the shortest step, from a linear program, or in L2 a quadratic one solved by its multiplier."""
    size = len(p)
    if norm == "l2":
        low, high = -1e4, 1e4
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if w @ np.clip(p + middle * w, 0, 1) < b else (low, middle)
        return float(np.linalg.norm(np.clip(p + high * w, 0, 1) - p))
    slacks = 1 if norm == "linf" else size
    shared = np.ones((size, 1)) if norm == "linf" else np.eye(size)
    result = linprog(
        c=np.concatenate([np.zeros(size), np.ones(slacks)]),
        A_ub=np.block([[np.eye(size), -shared], [-np.eye(size), -shared]]),
        b_ub=np.concatenate([p, -p]),
        A_eq=np.concatenate([w, np.zeros(slacks)])[None],
        b_eq=[b],
        bounds=[(0, 1)] * size + [(0, None)] * slacks,
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert result.status == 0
    return float(result.fun)


def project(p: Array, w: Array, b: float, norm: str, dtype: torch.dtype = torch.float64) -> Array:
    point, normal = (torch.from_numpy(v)[None].to(dtype) for v in (p, w))
    moved = THREATS[norm].project_on_hyperplane(point, normal, torch.tensor([b], dtype=dtype))
    assert moved.dtype == dtype
    return moved[0].double().numpy()


@every_norm
@every_dtype
def test_no_shorter_step_reaches_the_plane(norm: str, dtype: torch.dtype) -> None:
    close = 1e-8 if dtype == torch.float64 else 2e-5
    for p, w, b in cases(reachable=True):
        moved = project(p, w, b, norm, dtype)
        assert w @ (p + moved) == pytest.approx(b, abs=close * (1 + np.abs(w).sum()))
        assert (p + moved).min() >= -close
        assert (p + moved).max() <= 1 + close
        # in float32 the plane itself is only known to rounding, and along a small normal that is a large distance
        flat = 1 + 1 / max(np.abs(w).max(), 1e-9)
        assert length(moved, norm) == pytest.approx(exact_length(p, w, b, norm), abs=close * flat)


@every_norm
@every_dtype
def test_a_point_stays_exactly_inside_the_box(norm: str, dtype: torch.dtype) -> None:
    """Rounding of point + slack may not leave [0, 1] by more than its last digit."""
    for reachable in (True, False):
        for p, w, b in cases(reachable=reachable):
            point = torch.from_numpy(p).to(dtype)
            after = point + torch.from_numpy(project(p, w, b, norm, dtype)).to(dtype)
            assert after.min().item() >= -torch.finfo(dtype).eps
            assert after.max().item() <= 1 + torch.finfo(dtype).eps


@every_norm
def test_a_plane_outside_the_box_gives_the_nearest_corner(norm: str) -> None:
    """Values where the normal is zero do not change."""
    for p, w, b in cases(reachable=False):
        up = w if b > w @ p else -w
        corner = np.where(up > 0, 1.0, np.where(up < 0, 0.0, p))
        np.testing.assert_allclose(p + project(p, w, b, norm), corner, rtol=0, atol=1e-12)


def test_the_euclidean_projection_matches_a_general_solver() -> None:
    for number, (p, w, b) in enumerate(cases(reachable=True)):
        if number % 4:
            continue
        inside = np.full(len(p), 0.5)
        result = minimize(
            lambda v, p=p: ((v - p) ** 2).sum(),
            inside,
            jac=lambda v, p=p: 2 * (v - p),
            bounds=[(0, 1)] * len(p),
            constraints={"type": "eq", "fun": lambda v, w=w, b=b: w @ v - b, "jac": lambda v, w=w: w},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        np.testing.assert_allclose(p + project(p, w, b, "l2"), result.x, rtol=0, atol=1e-5)


@every_norm
def test_a_point_on_the_plane_does_not_move(norm: str) -> None:
    for p, w, _ in cases(reachable=True):
        np.testing.assert_allclose(project(p, w, float(w @ p), norm), np.zeros(len(p)), rtol=0, atol=1e-12)


@every_norm
def test_a_normal_of_zeros_moves_nothing(norm: str) -> None:
    p = np.array([0.0, 0.3, 1.0])
    assert project(p, np.zeros(3), 1.0, norm).tolist() == [0, 0, 0]


def test_known_projections() -> None:
    """From (0.5, 0.5, 1) to v1 + 2 v2 = 2.1 a sum of 0.6 is missing."""
    p, w = np.array([0.5, 0.5, 1.0]), np.array([1.0, 2.0, 0.0])
    assert project(p, w, 2.1, "linf") == pytest.approx([0.2, 0.2, 0])
    assert project(p, w, 2.1, "l2") == pytest.approx([0.12, 0.24, 0])
    assert project(p, w, 2.1, "l1") == pytest.approx([0, 0.3, 0])
    # 1.3 is missing: the second value reaches the box after 0.5 and leaves 0.3 to the first
    assert project(p, w, 2.8, "linf") == pytest.approx([13 / 30, 13 / 30, 0])
    assert project(p, w, 2.8, "l2") == pytest.approx([0.3, 0.5, 0])
    assert project(p, w, 2.8, "l1") == pytest.approx([0.3, 0.5, 0])
    # downwards
    assert project(p, w, 0.9, "linf") == pytest.approx([-0.2, -0.2, 0])


@every_norm
def test_points_of_a_batch_are_independent(norm: str) -> None:
    sized = [case for case in cases(reachable=True) if len(case[0]) == 7]
    sized += [case for case in cases(reachable=False) if len(case[0]) == 7]
    points, normals = (torch.from_numpy(np.stack([case[part] for case in sized])) for part in (0, 1))
    offsets = torch.tensor([case[2] for case in sized], dtype=torch.float64)
    whole = THREATS[norm].project_on_hyperplane(points, normals, offsets)
    for row, (p, w, b) in enumerate(sized):
        np.testing.assert_allclose(whole[row].numpy(), project(p, w, b, norm), rtol=0, atol=1e-12)


@every_norm
def test_a_fixed_number_of_iterations_suffices_on_images(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device there are twelve iterations without synchronization; a CPU iterates until convergence."""
    generator = torch.Generator().manual_seed(0)
    point = torch.rand(20, 3 * 32 * 32, generator=generator, dtype=torch.float64)
    point[:, ::5] = point[:, ::5].round()
    normal = torch.randn(20, 3 * 32 * 32, generator=generator, dtype=torch.float64) ** 3
    goal = point + torch.linspace(0.001, 0.3, 20, dtype=torch.float64)[:, None] * normal.sign()
    offset_B = (normal * goal.clamp(0, 1)).sum(1)
    settled = THREATS[norm].project_on_hyperplane(point, normal, offset_B)
    monkeypatch.setattr(Tensor, "is_cpu", False, raising=False)
    assert not point.is_cpu
    torch.testing.assert_close(
        THREATS[norm].project_on_hyperplane(point, normal, offset_B), settled, rtol=0, atol=1e-12
    )
