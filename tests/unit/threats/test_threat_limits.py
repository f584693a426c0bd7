"""Radii at their limits, dual norms and random images at the boundary: known results."""

import math

import pytest
import torch

from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.threats import L1, L2, Linf, Threat, bounds_each_pixel, check_size


def test_the_largest_radius() -> None:
    assert Linf(1.0).eps == 1.0
    with pytest.raises(UsageError, match=r"must lie in \(0, 1\]"):
        Linf(1.001)
    shape = (3, 2, 2)
    for threat, limit in ((L2(1.0), math.sqrt(12)), (L1(1.0), 12.0), (Linf(0.5), 1.0)):
        assert threat.diameter(shape) == pytest.approx(limit)
    check_size(L1(12.0), shape)
    with pytest.raises(UsageError, match="allows every image"):
        check_size(L1(12.01), shape)
    with pytest.raises(UsageError, match=r"shape \(3, 2, 2\)"):  # of an image, not of the batch
        L2(4.0).project(torch.rand(7, 3, 2, 2), torch.rand(7, 3, 2, 2))


def test_only_linf_bounds_each_pixel() -> None:
    assert [bounds_each_pixel(threat) for threat in (Linf(0.1), L2(0.1), L1(0.1))] == [True, False, False]


def test_dual_norms() -> None:
    grad = torch.tensor([[3.0, -4.0, 0.0, 0.0], [1.0, 1.0, 1.0, -1.0]]).view(2, 1, 2, 2)
    assert Linf(0.1).dual_norm(grad).tolist() == [7.0, 4.0]
    assert L2(0.1).dual_norm(grad).tolist() == [5.0, 2.0]
    assert L1(0.1).dual_norm(grad).tolist() == [4.0, 1.0]


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.3)], ids=str)
def test_starting_points_are_at_the_boundary(threat: Threat) -> None:
    x0 = torch.full((5, 3, 4, 4), 0.5)
    x = threat.sample_boundary(x0, RandomStreams.of(0, torch.arange(5)))
    assert threat.distance(x, x0).tolist() == pytest.approx([threat.eps] * 5, rel=1e-5)
