"""Every attack refuses invalid input, and names what was wrong, what was got and what to write instead."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from vitadel.attacks import FAB, FGSM, GAMA, PGD, Attack, AutoAttack, Engine, IterativeAttack, Square
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.goals import Diverge, Goal, Targeted, Untargeted
from vitadel.threats import L1, L2, Linf, Threat


def three_classes(x: Tensor) -> Tensor:
    return x.flatten(1)[:, :3] * 2


def gray(batch: int = 2) -> Tensor:
    return torch.full((batch, 3, 5, 7), 0.5)


def labels(*numbers: int) -> Goal:
    return Untargeted(torch.tensor(numbers))


@pytest.mark.parametrize(
    ("x0", "message"),
    [
        (gray() * 255, r"pixels in \[0, 1\], got \[128, 128\]. Normalization belongs inside the model"),
        (gray() - 1, r"pixels in \[0, 1\], got \[-0.5, -0.5\]"),
        (torch.where(torch.arange(7) == 3, torch.nan, gray()), r"pixels in \[0, 1\], got \[nan, nan\]"),
        (gray().to(torch.uint8), r"a batch of float images, got torch.uint8 of shape \[2, 3, 5, 7\]"),
        (gray()[:, 0, 0, 0], r"a batch of float images, got torch.float32 of shape \[2\]"),
        (gray(0), r"at least one image, got an empty batch. Check how the images were chosen."),
    ],
    ids=["255", "negative", "nan", "integers", "vector", "empty"],
)
def test_images_outside_the_pixel_range_are_refused(attack: Attack, x0: Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attack(three_classes, x0, Untargeted(torch.zeros(len(x0), dtype=torch.int64)), Linf(0.1), seed=0)


def test_tensors_without_values_are_refused(attack: Attack) -> None:
    zeros = Untargeted(torch.zeros(2, dtype=torch.int64))
    with torch.device("meta"):
        model, x0, goal = nn.Sequential(nn.Flatten(), nn.Linear(105, 3)), gray(), labels(0, 1)
    with pytest.raises(UsageError, match="the weights of the model are on the meta device and have no values"):
        attack(model, gray(), zeros, Linf(0.1), seed=0)
    with pytest.raises(UsageError, match="the images are on the meta device and have no values"):
        attack(three_classes, x0, zeros, Linf(0.1), seed=0)
    with pytest.raises(UsageError, match="the labels are on the meta device and have no values"):
        attack(three_classes, gray(), goal, Linf(0.1), seed=0)


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        (labels(0, -1), r"label -1 is out of range. Write labels from 0 to classes - 1"),
        (labels(0, 3), r"label 3 is out of range: the model returns 3 classes. Give labels from 0 to 2, or the mod"),
        (labels(0, 1, 2), r"the goal has labels for 3 images, got 2. Give one label per image"),
        (labels(0), r"the goal has labels for 1 images, got 2"),
    ],
    ids=["negative", "too-high", "too-many", "too-few"],
)
def test_invalid_labels_are_refused(attack: Attack, goal: Goal, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attack(three_classes, gray(), goal, Linf(0.1), seed=0)


def test_invalid_targets_are_refused(any_goal_attack: Attack) -> None:
    with pytest.raises(UsageError, match=r"label 7 is out of range: the model returns 3 classes"):
        any_goal_attack(three_classes, gray(), Targeted(torch.tensor([0, 7])), Linf(0.1), seed=0)


@pytest.mark.parametrize(
    "goal", [Targeted(torch.tensor([1, 2])), Diverge(torch.zeros(2, 3))], ids=lambda goal: type(goal).__name__
)
def test_attacks_on_any_wrong_class_refuse_other_goals(
    untargeted_only_attack: Attack, goal: Goal, threat: Threat
) -> None:
    calls: list[int] = []

    def model(x: Tensor) -> Tensor:
        calls.append(len(x))
        return three_classes(x)

    with pytest.raises(UsageError, match=rf"needs an Untargeted goal, got {type(goal).__name__}\. Write Untargeted"):
        untargeted_only_attack(model, gray(), goal, threat, seed=0)
    assert calls == []


@pytest.mark.parametrize(
    "attack",
    [FAB(), FAB(targets=2), GAMA(), AutoAttack(), PGD(targets=2)],
    ids=lambda attack: f"{type(attack).__name__}-{getattr(attack, 'targets', 0)}",
)
def test_crafting_refuses_other_goals_too(attack: Attack) -> None:
    with pytest.raises(UsageError, match=r"needs an Untargeted goal, got Targeted\. Write Untargeted"):
        attack.craft(three_classes, gray(), Targeted(torch.tensor([1, 2])), Linf(0.1), seed=0)


def test_square_needs_two_dimensional_images(threat: Threat) -> None:
    with pytest.raises(UsageError, match=r"\[batch, channels, rows, columns\], got \[2, 105\]"):
        Square(queries=3)(three_classes, gray().flatten(1), labels(0, 0), threat, seed=0)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda x: x.flatten(1).sum(1), r"logits of shape \[2, classes\], got \[2\]. Wrap it"),
        (lambda x: three_classes(x)[..., None], r"logits of shape \[2, classes\], got \[2, 3, 1\]"),
        (lambda x: three_classes(x)[:1], r"logits of shape \[2, classes\], got \[1, 3\]"),
    ],
    ids=["no-classes", "extra-axis", "other-batch"],
)
def test_models_that_return_no_logits_are_refused(
    attack: Attack, model: Callable[[Tensor], Tensor], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        attack(model, gray(), labels(1, 1), Linf(0.1), seed=0)


# a search that is checked at every step stops at the first bad logits, the others at the verdict
BAD_LOGITS = (
    r"NaN or infinite logits (for 2 of 2 images|or gradients for 2 images under attack). "
    r"Check its weights and precision: a NaN would count as a success"
)
BAD_GRADIENTS = (
    r"(met NaN or infinite gradients. Check the model's backward pass|"
    r"NaN or infinite logits or gradients for 2 images under attack)"
)


# both labels: the largest of many NaN is class 0, so only label 1 would look misclassified
@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_logits_are_refused(attack: Attack, bad: float, label: int) -> None:
    with pytest.raises(UsageError, match=BAD_LOGITS):
        attack(lambda x: three_classes(x) + bad, gray(), labels(label, label), Linf(0.1), seed=0)


def test_images_with_bad_logits_are_counted() -> None:
    with pytest.raises(UsageError, match="NaN or infinite logits for 1 of 3 images"):
        FGSM()(
            lambda x: three_classes(x) + torch.tensor([[0.0], [torch.inf], [0.0]]),
            gray(3),
            labels(0, 1, 0),
            Linf(0.1),
            seed=0,
        )


def steep_model(steep: float, label: int) -> Callable[[Tensor], Tensor]:
    """sqrt at 0: the logits are finite, the gradient is not; times 0 it is NaN."""

    def model(x: Tensor) -> Tensor:
        inner = (x - x.detach()) if steep == torch.inf else 0 * x
        root = inner.flatten(1)[:, :3].sqrt()
        return root + torch.nn.functional.one_hot(torch.full((len(x),), label), 3)

    return model


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("steep", [torch.nan, torch.inf], ids=["nan", "infinite"])
def test_nan_gradients_are_refused(gradient_attack: Attack, threat: Threat, steep: float, label: int) -> None:
    with pytest.raises(UsageError, match=BAD_GRADIENTS):
        gradient_attack(steep_model(steep, label), gray(), labels(label, label), threat, seed=0)


@pytest.mark.parametrize("steep", [torch.nan, torch.inf], ids=["nan", "infinite"])
def test_the_engine_alone_refuses_nan_gradients(gradient_attack: Attack, threat: Threat, steep: float) -> None:
    """An evaluation runs an engine without counting its gradients."""
    if not isinstance(gradient_attack, IterativeAttack):
        return
    with torch.no_grad(), pytest.raises(UsageError, match="NaN or infinite logits or gradients for 2 images"):
        Engine().search(
            gradient_attack,
            Oracle(steep_model(steep, 1)),
            gray(),
            labels(1, 1),
            threat,
            RandomStreams.of(0, torch.arange(2)),
        )


def test_gradient_free_attacks_do_not_check_gradients(threat: Threat) -> None:
    result = Square(queries=3)(steep_model(torch.nan, 0), gray(), labels(0, 1), threat, seed=0)
    assert result.success.tolist() == [False, True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linf(8), r"Linf.eps must lie in \(0, 1\], got 8. Pixels lie in \[0, 1\]: write 8/255, not 8"),
        (lambda: Linf(0), r"Linf.eps must lie in \(0, 1\], got 0"),
        (lambda: Linf(float("nan")), r"Linf.eps must be a finite number and lie in \(0, 1\], got nan"),
        (lambda: L2(0), r"L2.eps must be positive, got 0. Write for example 0.5 or 128/255"),
        (lambda: L2(float("inf")), r"L2.eps must be a finite number and be positive, got inf"),
        (lambda: L2(float("nan")), r"L2.eps must be a finite number and be positive, got nan"),
        (lambda: L1(-1), r"L1.eps must be positive, got -1. Write for example 12"),
        (lambda: L1(float("nan")), r"L1.eps must be a finite number and be positive, got nan"),
        (lambda: L1(12, active=0), r"L1.active must lie in \(0, 1\], got 0. It is a share of the pixel values"),
        (lambda: L1(12, active=1.5), r"L1.active must lie in \(0, 1\], got 1.5"),
    ],
)
def test_invalid_radii_are_refused(make: Callable[[], Threat], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize(
    ("threat", "message"),
    [
        (L2(128), r"L2.eps of 128 allows every image of shape \(3, 32, 32\) \(the box has diameter 55.43\)"),
        (L1(3073), r"L1.eps of 3073 allows every image of shape \(3, 32, 32\) \(the box has diameter 3072\)"),
    ],
    ids=["l2", "l1"],
)
def test_radii_that_contain_every_image(attack: Attack, threat: Threat, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attack(three_classes, torch.full((2, 3, 32, 32), 0.5), labels(0, 1), threat, seed=0)
