"""The distance of a perturbation, and threats with another radius."""

import math

import pytest
import torch

from vitadel.core.errors import UsageError
from vitadel.core.numeric import parse_number
from vitadel.threats import L1, L2, Linf


def test_numbers_are_exact_fractions() -> None:
    assert parse_number("1/3", "a third") == 1 / 3
    assert parse_number("0.1/0.3", "a third") == 1 / 3


def test_with_eps_changes_only_the_radius() -> None:
    assert L1(3, active=0.2).with_eps(5) == L1(5, active=0.2)
    assert Linf(0.1).with_eps(0.2) == Linf(0.2)
    with pytest.raises(UsageError, match="Linf.eps"):
        Linf(0.1).with_eps(2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_of_a_known_perturbation(dtype: torch.dtype) -> None:
    x0 = torch.full((2, 1, 2, 3), 0.5, dtype=dtype)
    x = x0.clone()
    x[1, 0, 0, 0], x[1, 0, 1, 2] = 0.2, 0.9
    assert Linf(1).distance(x, x0).tolist() == pytest.approx([0, 0.4])
    assert L2(1).distance(x, x0).tolist() == pytest.approx([0, 0.5])
    assert L1(1).distance(x, x0).tolist() == pytest.approx([0, 0.7])
    assert L1(1).distance(x, x0).dtype == dtype


def test_distances_in_float32_are_accurate() -> None:
    """Thousands of squares summed in float32 alone would be off by more than the slack a threat allows."""
    rng = torch.Generator().manual_seed(0)
    x0 = torch.full((1, 3, 224, 224), 0.5)
    x = x0 + 1e-3 * torch.randn(x0.shape, generator=rng)
    exact = (x - x0).double().flatten()
    assert L2(1).distance(x, x0).item() == pytest.approx(math.sqrt((exact**2).sum().item()), rel=1e-7)
    assert L1(1).distance(x, x0).item() == pytest.approx(exact.abs().sum().item(), rel=1e-7)


def test_the_diameter_of_the_box_in_every_norm() -> None:
    shape = (3, 4, 5)
    assert [threat.diameter(shape) for threat in (Linf(0.1), L2(0.1), L1(0.1))] == pytest.approx([1, 60**0.5, 60])
    assert [threat.largest_eps for threat in (Linf(0.1), L2(0.1), L1(0.1))] == [1, float("inf"), float("inf")]
