"""Losses against closed forms, their invariances and their gradients.

Shape letters: B images, K classes.
"""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.losses import LOSSES, Loss, cross_entropy, dlr, kl_divergence, logit_difference, margin, targeted_dlr

every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
every_batch = pytest.mark.parametrize("batch", [1, 2, 7])


def logits(batch: int, classes: int = 5, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return 3 * torch.randn(batch, classes, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def labels(batch: int, classes: int = 5) -> Tensor:
    return torch.arange(batch) * 3 % classes


@every_loss
@every_dtype
@every_batch
def test_values_do_not_depend_on_the_batch(loss: Loss, dtype: torch.dtype, batch: int) -> None:
    z_BK, y_B = logits(batch, dtype=dtype), labels(batch)
    whole = loss(z_BK, y_B)
    assert whole.shape == (batch,)
    assert whole.dtype == dtype
    alone = torch.cat([loss(z_BK[i : i + 1], y_B[i : i + 1]) for i in range(batch)])
    torch.testing.assert_close(whole, alone)


@every_loss
def test_losses_increase_as_the_label_is_predicted_worse(loss: Loss) -> None:
    """Raising another logit or lowering the label's can only help the adversary; here it strictly does."""
    z_BK, y_B = torch.tensor([[4.0, 1.0, 0.0, -1.0]]), torch.tensor([0])
    base = loss(z_BK, y_B).item()
    assert loss(z_BK + torch.tensor([[0.0, 0.5, 0.0, 0.0]]), y_B).item() > base
    assert loss(z_BK - torch.tensor([[0.5, 0.0, 0.0, 0.0]]), y_B).item() > base
    assert loss(z_BK, torch.tensor([1])).item() > base


def test_known_values() -> None:
    z_BK = torch.tensor([[4.0, 1.0, 0.0, -1.0], [1.0, 3.0, 2.0, 0.0]], dtype=torch.float64)
    y_B = torch.tensor([0, 0])
    assert margin(z_BK, y_B).tolist() == [-3, 2]
    assert dlr(z_BK, y_B).tolist() == pytest.approx([-3 / 4, 2 / 2])
    total = math.e + math.e**3 + math.e**2 + 1
    assert cross_entropy(z_BK, y_B)[1].item() == pytest.approx(math.log(total) - 1)


def test_cross_entropy_takes_soft_labels() -> None:
    z_BK, y_B = logits(7), labels(7)
    hard = F.one_hot(y_B, 5)
    torch.testing.assert_close(cross_entropy(z_BK, hard), cross_entropy(z_BK, y_B))
    shares = torch.softmax(logits(7, seed=1), 1)
    torch.testing.assert_close(cross_entropy(z_BK, shares), -(shares * z_BK.log_softmax(1)).sum(1))
    mixed = 0.3 * hard + 0.7 * F.one_hot((y_B + 1) % 5, 5)
    expected = 0.3 * cross_entropy(z_BK, y_B) + 0.7 * cross_entropy(z_BK, (y_B + 1) % 5)
    torch.testing.assert_close(cross_entropy(z_BK, mixed.float()), expected, rtol=1e-6, atol=1e-6)


@every_dtype
def test_margin_is_positive_exactly_where_misclassified(dtype: torch.dtype) -> None:
    z_BK = logits(200, dtype=dtype)
    for label in range(5):
        y_B = torch.full((200,), label)
        assert torch.equal(margin(z_BK, y_B) > 0, z_BK.argmax(1) != y_B)
        assert torch.equal(dlr(z_BK, y_B) > 0, z_BK.argmax(1) != y_B)


@pytest.mark.parametrize(("scale", "offset"), [(1e-3, 0.0), (1e3, 0.0), (1.0, 50.0), (7.0, -3.0)])
def test_dlr_is_scale_invariant(scale: float, offset: float) -> None:
    z_BK, y_B = logits(50), labels(50)
    torch.testing.assert_close(dlr(scale * z_BK + offset, y_B), dlr(z_BK, y_B), rtol=1e-7, atol=1e-7)
    # cross-entropy and margin do change: that is what dlr is for
    if scale != 1:
        assert not torch.allclose(margin(scale * z_BK + offset, y_B), margin(z_BK, y_B))


def test_dlr_of_a_correct_image_lies_between_minus_one_and_zero() -> None:
    z_BK = logits(200)
    value_B = dlr(z_BK, z_BK.argmax(1))
    assert -1 <= value_B.min().item() <= value_B.max().item() <= 0


@every_loss
def test_equal_logits_give_a_finite_loss(loss: Loss) -> None:
    z_BK = torch.zeros(2, 4, requires_grad=True)
    value_B = loss(z_BK, torch.tensor([0, 3]))
    (grad,) = torch.autograd.grad(value_B.sum(), z_BK)
    assert bool(value_B.isfinite().all())
    assert bool(grad.isfinite().all())


@pytest.mark.parametrize(
    ("loss", "classes", "message"),
    [
        (margin, 1, "margin needs at least 2 classes, got 1. Write a model with one logit z as"),
        (dlr, 1, "dlr needs at least 3 classes, got 1. Use `margin` for a two-class model"),
        (dlr, 2, "dlr needs at least 3 classes, got 2. Use `margin` for a two-class model"),
    ],
)
def test_too_few_classes_are_refused(loss: Loss, classes: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        loss(torch.zeros(2, classes), torch.tensor([0, 0]))
    loss(torch.zeros(2, classes + (2 if classes == 1 and loss is dlr else 1)), torch.tensor([0, 0]))


def test_divergence_is_zero_exactly_for_equal_predictions() -> None:
    z_BK = logits(7)
    torch.testing.assert_close(kl_divergence(z_BK + 4, z_BK), torch.zeros(7, dtype=torch.float64), rtol=0, atol=1e-12)
    other = z_BK.clone()
    other[2, 0] += 0.1
    value_B = kl_divergence(other, z_BK)
    assert value_B[2].item() > 1e-6
    assert bool((kl_divergence(logits(50, seed=2), logits(50, seed=3)) > 0).all())


def test_divergence_is_kl_from_reference_to_prediction() -> None:
    z_BK, reference_BK = logits(7, seed=1), logits(7, seed=2)
    expected = F.kl_div(z_BK.log_softmax(1), reference_BK.log_softmax(1), log_target=True, reduction="none").sum(1)
    torch.testing.assert_close(kl_divergence(z_BK, reference_BK), expected)
    p, q = reference_BK.softmax(1), z_BK.softmax(1)
    torch.testing.assert_close(kl_divergence(z_BK, reference_BK), (p * (p / q).log()).sum(1))


@pytest.mark.parametrize(
    "function",
    [
        lambda z_BK: cross_entropy(z_BK, labels(7)),
        lambda z_BK: cross_entropy(z_BK, torch.softmax(logits(7, seed=5), 1)),
        lambda z_BK: margin(z_BK, labels(7)),
        lambda z_BK: dlr(z_BK, labels(7)),
        lambda z_BK: kl_divergence(z_BK, logits(7, seed=5)),
        lambda z_BK: kl_divergence(logits(7, seed=5), z_BK),
    ],
    ids=["ce", "ce-shares", "margin", "dlr", "kl", "kl-reference"],
)
def test_gradients_match_finite_differences(function: Callable[[Tensor], Tensor]) -> None:
    assert torch.autograd.gradcheck(function, logits(7).requires_grad_())


def test_confident_logits_do_not_overflow() -> None:
    z_BK = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    for label in range(3):
        values = [loss(z_BK, torch.tensor([label])) for loss in LOSSES.values()]
        assert all(bool(value.isfinite().all()) for value in values)
    assert kl_divergence(z_BK, z_BK.detach()).item() == 0


# ------------------------------------------------------ toward one class


def test_known_logit_differences() -> None:
    z_BK = torch.tensor([[4.0, 1.0, 0.0, -1.0, -3.0], [1.0, 3.0, 2.0, 0.0, 5.0]], dtype=torch.float64)
    y_B, target_B = torch.tensor([0, 1]), torch.tensor([2, 4])
    assert logit_difference(z_BK, y_B, target_B).tolist() == [-4, 2]
    # sorted: 4 1 0 -1 and 5 3 2 1; the first less the mean of the third and fourth is 4.5 and 3.5
    assert targeted_dlr(z_BK, y_B, target_B).tolist() == pytest.approx([-4 / 4.5, 2 / 3.5])
    assert targeted_dlr(z_BK, y_B, torch.tensor([4, 3])).tolist() == pytest.approx([-7 / 4.5, -3 / 3.5])


@every_dtype
@every_batch
def test_logit_differences_do_not_depend_on_the_batch(dtype: torch.dtype, batch: int) -> None:
    z_BK, y_B = logits(batch, dtype=dtype), labels(batch)
    target_B = (y_B + 1) % 5
    for loss in (logit_difference, targeted_dlr):
        whole = loss(z_BK, y_B, target_B)
        assert whole.shape == (batch,)
        assert whole.dtype == dtype
        alone = torch.cat([loss(*(part[i : i + 1] for part in (z_BK, y_B, target_B))) for i in range(batch)])
        torch.testing.assert_close(whole, alone)


@pytest.mark.parametrize(("scale", "offset"), [(1e-3, 0.0), (1e3, 0.0), (1.0, 50.0), (7.0, -3.0)])
def test_the_targeted_dlr_is_scale_invariant_and_the_difference_is_not(scale: float, offset: float) -> None:
    z_BK, y_B = logits(50), labels(50)
    target_B = (y_B + 2) % 5
    moved_BK = scale * z_BK + offset
    before_B, after_B = targeted_dlr(z_BK, y_B, target_B), targeted_dlr(moved_BK, y_B, target_B)
    torch.testing.assert_close(after_B, before_B, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(
        logit_difference(moved_BK, y_B, target_B), scale * logit_difference(z_BK, y_B, target_B), rtol=1e-7, atol=1e-9
    )


def test_the_largest_logit_difference_is_the_margin() -> None:
    z_BK, y_B = logits(50), labels(50)
    every_BK = torch.stack([logit_difference(z_BK, y_B, torch.full((50,), other)) for other in range(5)], 1)
    assert torch.equal(every_BK.gather(1, y_B[:, None]), torch.zeros(50, 1, dtype=torch.float64))
    without_B = every_BK.scatter(1, y_B[:, None], float("-inf")).amax(1)
    torch.testing.assert_close(without_B, margin(z_BK, y_B))


def test_both_are_positive_exactly_where_the_target_exceeds_the_label() -> None:
    z_BK, y_B = logits(200), labels(200)
    for step in range(1, 5):
        target_B = (y_B + step) % 5
        ahead_B = z_BK.gather(1, target_B[:, None]).squeeze(1) > z_BK.gather(1, y_B[:, None]).squeeze(1)
        assert torch.equal(logit_difference(z_BK, y_B, target_B) > 0, ahead_B)
        assert torch.equal(targeted_dlr(z_BK, y_B, target_B) > 0, ahead_B)


def test_targeted_gradients_match_finite_differences() -> None:
    y_B, target_B = labels(7), (labels(7) + 1) % 5
    for loss in (logit_difference, targeted_dlr):
        z_BK = logits(7).requires_grad_()
        assert torch.autograd.gradcheck(lambda z_BK, loss=loss: loss(z_BK, y_B, target_B), z_BK)


@pytest.mark.parametrize("classes", [2, 3])
def test_targeted_dlr_needs_four_classes(classes: int) -> None:
    y_B, target_B = torch.tensor([0, 0]), torch.tensor([1, 1])
    with pytest.raises(
        UsageError, match=f"targeted_dlr needs at least 4 classes, got {classes}. Use `logit_difference`"
    ):
        targeted_dlr(torch.zeros(2, classes), y_B, target_B)
    assert targeted_dlr(torch.zeros(2, 4), y_B, target_B).tolist() == [0, 0]
    assert logit_difference(torch.zeros(2, classes), y_B, target_B).tolist() == [0, 0]
