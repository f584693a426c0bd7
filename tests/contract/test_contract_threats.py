"""Every threat keeps to its ball and to the box, and its projection is the nearest allowed image.

Shape letters: B images.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitadel.core.rng import RandomStreams
from vitadel.threats import L1, L2, Threat

Array = npt.NDArray[np.float64]
Support = Callable[[Threat, Array, Array], float]

SHAPE = (3, 5, 7)
VALUES = math.prod(SHAPE)

# the parametrized threat does not change between examples, so sharing it is safe
bounded = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
batches = st.sampled_from((1, 2, 7))
dtypes = st.sampled_from((torch.float32, torch.float64))
seeds = st.integers(0, 2**31)
# radii from a millionth of the box to the whole box, images from next to the original to far outside the box
shares, reaches = st.floats(-6, 0), st.floats(-3, 3)
corners = st.sampled_from((0.0, 0.5, 1.0))


def scaled(threat: Threat, share: float) -> Threat:
    """The threat with a radius of 10**share times the diameter of the box."""
    diameter = VALUES if isinstance(threat, L1) else math.sqrt(VALUES) if isinstance(threat, L2) else 1.0
    return threat.with_eps(diameter * 10**share)


def slack(threat: Threat, dtype: torch.dtype) -> float:
    """How far `size` may exceed the radius: a hundred-thousandth, and half a unit in the last place per pixel."""
    units = VALUES if isinstance(threat, L1) else math.sqrt(VALUES) if isinstance(threat, L2) else 1.0
    return threat.eps * 1e-5 + units * torch.finfo(dtype).eps


def originals(batch: int, dtype: torch.dtype, seed: int, corner: float) -> Tensor:
    """Random images with a share `corner` of their values on the box."""
    rng = torch.Generator().manual_seed(seed)
    x0 = torch.rand(batch, *SHAPE, dtype=dtype, generator=rng)
    return torch.where(torch.rand(x0.shape, generator=rng) < corner, x0.round(), x0)


def points_around(x0: Tensor, seed: int, reach: float) -> Tensor:
    rng = torch.Generator().manual_seed(seed + 1)
    return x0 + 10**reach * torch.randn(x0.shape, dtype=x0.dtype, generator=rng)


def assert_allowed(x: Tensor, x0: Tensor, threat: Threat) -> None:
    assert x.shape == x0.shape
    assert x.dtype == x0.dtype
    assert bool((x >= 0).all())
    assert bool((x <= 1).all())
    assert threat.distance(x, x0).shape == (len(x0),)
    assert threat.distance(x, x0).max().item() <= threat.eps + slack(threat, x0.dtype)


@bounded
@given(batches, dtypes, seeds, corners, shares, reaches)
def test_projections_are_inside(
    threat: Threat, batch: int, dtype: torch.dtype, seed: int, corner: float, share: float, reach: float
) -> None:
    x0 = originals(batch, dtype, seed, corner)
    threat = scaled(threat, share)
    assert_allowed(threat.project(points_around(x0, seed, reach), x0), x0, threat)


@bounded
@given(batches, dtypes, seeds, corners, shares)
def test_samples_are_inside(
    threat: Threat, batch: int, dtype: torch.dtype, seed: int, corner: float, share: float
) -> None:
    x0 = originals(batch, dtype, seed, corner)
    threat = scaled(threat, share)
    assert_allowed(threat.sample(x0, RandomStreams.of(seed, torch.arange(batch))), x0, threat)


@bounded
@given(batches, dtypes, seeds, corners, shares, reaches)
def test_projection_is_idempotent(
    threat: Threat, batch: int, dtype: torch.dtype, seed: int, corner: float, share: float, reach: float
) -> None:
    x0 = originals(batch, dtype, seed, corner)
    threat = scaled(threat, share)
    stray = points_around(x0, seed, reach)
    once = threat.project(stray, x0)
    # rounding: half a unit for each value of a sum, and of the stray's own size where a threshold is taken off it
    units = VALUES + 4 * stray.abs().max().item()
    torch.testing.assert_close(threat.project(once, x0), once, rtol=0, atol=units * torch.finfo(dtype).eps)


@bounded
@given(batches, dtypes, seeds, corners, shares)
def test_an_allowed_image_is_its_projection(
    threat: Threat, batch: int, dtype: torch.dtype, seed: int, corner: float, share: float
) -> None:
    x0 = originals(batch, dtype, seed, corner)
    threat = scaled(threat, share)
    inside = threat.with_eps(0.99 * threat.eps).sample(x0, RandomStreams.of(seed, torch.arange(batch)))
    torch.testing.assert_close(threat.project(inside, x0), inside, rtol=0, atol=torch.finfo(dtype).eps)


@bounded
@given(seeds, corners, shares, reaches)
def test_projections_satisfy_the_variational_inequality(
    threat: Threat, support: Support, seed: int, corner: float, share: float, reach: float
) -> None:
    """The projection z of x is the one allowed image with (x - z).(c - z) <= 0 for every allowed c."""
    x0 = originals(1, torch.float64, seed, corner)
    threat = scaled(threat, share)
    x = points_around(x0, seed, reach)
    z = threat.project(x, x0)
    beyond = (x - z).flatten().numpy()
    won = float(beyond @ (z - x0).flatten().numpy())
    assert support(threat, beyond, x0.flatten().numpy()) - won <= 1e-9 * float(np.abs(beyond).sum())


@bounded
@given(batches, seeds, corners, shares, reaches)
def test_no_random_allowed_image_is_nearer_than_the_projection(
    threat: Threat, batch: int, seed: int, corner: float, share: float, reach: float
) -> None:
    x0 = originals(batch, torch.float64, seed, corner)
    threat = scaled(threat, share)
    x = points_around(x0, seed, reach)
    near_B = (threat.project(x, x0) - x).flatten(1).norm(dim=1)
    for number in range(5):
        other = threat.sample(x0, RandomStreams.of(seed, torch.arange(batch)).fold(number))
        assert bool((near_B <= (other - x).flatten(1).norm(dim=1) * (1 + 1e-12)).all())
