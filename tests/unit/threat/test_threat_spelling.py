"""Threats as text, and their sizes."""

import math

import pytest
import torch

from vitadel.errors import UsageError
from vitadel.threat import L1, L2, Linf, Threat, read, read_number, spell, with_eps


@pytest.mark.parametrize(
    ("text", "threat"),
    [
        ("linf:8/255", Linf(8 / 255)),
        ("linf:0.5/255", Linf(0.5 / 255)),
        ("linf: 8 / 255", Linf(8 / 255)),
        ("linf:0.03", Linf(0.03)),
        ("l2:128/255", L2(128 / 255)),
        ("l2:0.5", L2(0.5)),
        ("l1:12", L1(12)),
    ],
)
def test_text_is_read(text: str, threat: Threat) -> None:
    assert read(text) == threat


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lnf:8/255", r"unknown threat 'lnf'. Did you mean 'linf'\? Known: l1, l2, linf"),
        ("linf", r"the threat 'linf' has no radius. Write for example linf:8/255"),
        ("linf:", r"the radius of 'linf:' is not a number: got ''. Write a fraction such as 8/255 or a decimal"),
        ("linf:eight", r"the radius of 'linf:eight' is not a number: got 'eight'"),
        ("linf:8/0", r"the radius of 'linf:8/0' is not a number"),
        ("l2:__import__('os')", r"is not a number"),
        ("linf:8", r"Linf.eps must lie in \(0, 1\], got 8"),
    ],
)
def test_text_that_is_not_a_threat_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(text)


@pytest.mark.parametrize(
    ("threat", "text"),
    [
        (Linf(8 / 255), "linf:8/255"),
        (Linf(0.25 / 255), "linf:0.25/255"),
        (Linf(0.3), "linf:76.5/255"),
        (Linf(0.031), "linf:0.031"),
        (L2(0.5), "l2:0.5"),
        (L1(12), "l1:12"),
    ],
)
def test_a_threat_is_spelled_as_it_is_read(threat: Threat, text: str) -> None:
    assert spell(threat) == text
    assert read(text).eps == pytest.approx(threat.eps, rel=1e-12)
    assert type(read(text)) is type(threat)


def test_numbers_are_exact_fractions() -> None:
    assert read_number("1/3", "a third") == 1 / 3
    assert read_number("0.1/0.3", "a third") == 1 / 3


def test_another_radius_leaves_the_rest() -> None:
    assert with_eps(L1(3, active=0.2), 5) == L1(5, active=0.2)
    assert with_eps(Linf(0.1), 0.2) == Linf(0.2)
    with pytest.raises(UsageError, match="Linf.eps"):
        with_eps(Linf(0.1), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sizes_of_a_known_move(dtype: torch.dtype) -> None:
    x0 = torch.full((2, 1, 2, 3), 0.5, dtype=dtype)
    x = x0.clone()
    x[1, 0, 0, 0], x[1, 0, 1, 2] = 0.2, 0.9
    assert Linf(1).size(x, x0).tolist() == pytest.approx([0, 0.4])
    assert L2(1).size(x, x0).tolist() == pytest.approx([0, 0.5])
    assert L1(1).size(x, x0).tolist() == pytest.approx([0, 0.7])
    assert L1(1).size(x, x0).dtype == dtype


def test_sizes_in_float32_are_good_to_the_last_digits() -> None:
    """Thousands of squares summed in float32 alone would be off by more than the slack a threat allows."""
    rng = torch.Generator().manual_seed(0)
    x0 = torch.full((1, 3, 224, 224), 0.5)
    x = x0 + 1e-3 * torch.randn(x0.shape, generator=rng)
    exact = (x - x0).double().flatten()
    assert L2(1).size(x, x0).item() == pytest.approx(math.sqrt((exact**2).sum().item()), rel=1e-7)
    assert L1(1).size(x, x0).item() == pytest.approx(exact.abs().sum().item(), rel=1e-7)
