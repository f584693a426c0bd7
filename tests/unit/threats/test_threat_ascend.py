"""One step of each threat: its direction, its exact length, and the effect of the box."""

import pytest
import torch
from torch import Tensor

from vitadel.threats import L1, L2, Linf, Threat


def gradients(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("threat", [Linf(0.1), L2(1.0), L1(1.0)], ids=["linf", "l2", "l1"])
def test_a_zero_gradient_gives_no_step(threat: Threat) -> None:
    x = torch.full((2, 3, 5, 7), 0.5)
    grad = torch.zeros_like(x)
    grad[1] = 1
    moved = threat.ascend(x, grad, 0.1)
    assert torch.equal(moved[0], x[0])
    assert not torch.equal(moved[1], x[1])


def test_linf_moves_every_value_by_the_step_along_the_sign() -> None:
    grad = gradients(2, 3, 5, 7)
    moved = Linf(0.1).ascend(torch.full_like(grad, 0.5), grad, 0.03) - 0.5
    torch.testing.assert_close(moved, torch.where(grad > 0, 0.03, -0.03).double())


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_l2_step_has_its_length_however_small_the_gradient(scale: float, dtype: torch.dtype) -> None:
    """A saturated softmax leaves gradients of 1e-30; a step shortened with them would look like robustness."""
    grad = (gradients(2, 3, 5, 7) * scale).to(dtype)
    x = torch.zeros_like(grad)
    moved = L2(1.0).ascend(x, grad, 0.3)
    torch.testing.assert_close(moved.flatten(1).norm(dim=1), torch.full((2,), 0.3, dtype=dtype))
    along = torch.cosine_similarity(moved.double().flatten(1), gradients(2, 105), dim=1)
    torch.testing.assert_close(along, torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("active", "count"), [(0.001, 1), (0.01, 1), (0.05, 5), (0.2, 21), (1.0, 105)])
def test_l1_step_has_its_length_and_moves_the_largest_gradients(active: float, count: int) -> None:
    grad = gradients(2, 3, 5, 7)
    moved = (L1(3.0, active=active).ascend(torch.full_like(grad, 0.5), grad, 0.3) - 0.5).flatten(1)
    torch.testing.assert_close(moved.abs().sum(1), torch.full((2,), 0.3, dtype=torch.float64))
    steepest = grad.flatten(1).abs().topk(count, dim=1).indices
    expected = torch.zeros_like(moved).scatter(1, steepest, 0.3 / count * grad.flatten(1).sign().gather(1, steepest))
    torch.testing.assert_close(moved, expected)


def test_l1_step_skips_values_at_the_box() -> None:
    x = torch.tensor([[1.0, 0.0, 0.5, 0.5, 1.0, 0.0]])
    grad = torch.tensor([[9.0, -8.0, 3.0, -2.0, 0.5, 0.5]])
    moved = L1(1.0, active=0.17).ascend(x, grad, 0.25)
    torch.testing.assert_close(moved, torch.tensor([[1.0, 0.0, 0.75, 0.5, 1.0, 0.0]]))


def test_l1_step_redistributes_what_the_box_blocks() -> None:
    """A slack of 0.1 for the first, 0.2 for the second, the rest of 0.6 for the third."""
    x = torch.tensor([[0.9, 0.2, 0.5, 0.5]], dtype=torch.float64)
    grad = torch.tensor([[4.0, -3.0, 2.0, 1.0]], dtype=torch.float64)
    moved = L1(1.0, active=0.25).ascend(x, grad, 0.6)
    torch.testing.assert_close(moved, torch.tensor([[1.0, 0.0, 0.8, 0.5]], dtype=torch.float64))


def test_l1_step_does_not_move_values_without_gradient() -> None:
    """Fewer nonzero gradients than `active` asks for: they share the whole step as far as the box allows."""
    grad = torch.tensor([[0.0, 2.0, 0.0, -1.0]])
    moved = L1(1.0, active=1.0).ascend(torch.full((1, 4), 0.5), grad, 0.4) - 0.5
    torch.testing.assert_close(moved, torch.tensor([[0.0, 0.2, 0.0, -0.2]]))
