"""Attacks with several targets: the goals of their items, and what replaces DLR where there are too few classes."""

from typing import Any

import pytest
import torch

from vitadel.attacks import APGD, FAB, PGD, IterativeAttack, Square
from vitadel.core.errors import UsageError
from vitadel.goals import Targeted, TowardClass, Untargeted, top_other_classes
from vitadel.losses import Loss, cross_entropy, dlr, logit_difference, margin, targeted_dlr

LABELS = torch.tensor([2, 0, 1])
Z_BK = torch.tensor([[0.0, 3.0, 9.0, 1.0, 2.0], [5.0, 4.0, 3.0, 2.0, 1.0], [9.0, 0.0, 7.0, 6.0, 8.0]])


def test_targets_are_ordered_by_logit() -> None:
    goals = PGD(targets=3).branch_goals(Untargeted(LABELS), top_other_classes(Z_BK, LABELS, 3), 5)
    assert all(isinstance(goal, TowardClass) for goal in goals)
    result = [(goal.label_B.tolist(), goal.target_B.tolist()) for goal in goals if isinstance(goal, TowardClass)]
    assert result == [([2, 0, 1], [1, 1, 0]), ([2, 0, 1], [4, 2, 4]), ([2, 0, 1], [3, 3, 2])]
    objectives = [goal.objective(Z_BK).tolist() for goal in goals]
    assert objectives == [[-6, -1, 9], [-7, -2, 8], [-8, -3, 7]]


@pytest.mark.parametrize("attack", [APGD(targets=3), FAB(targets=3), PGD(targets=3)])
def test_attacks_with_targets_refuse_targeted_goals(attack: IterativeAttack) -> None:
    with pytest.raises(UsageError, match="needs an Untargeted goal, got Targeted"):
        attack.branch_goals(Targeted(LABELS), top_other_classes(Z_BK, LABELS, 3), 5)


@pytest.mark.parametrize(
    ("classes", "apgd", "other"),
    [
        (2, logit_difference, logit_difference),
        (3, logit_difference, logit_difference),
        (4, targeted_dlr, logit_difference),
    ],
)
def test_losses_of_attacks_with_targets(classes: int, apgd: Any, other: Any) -> None:
    label_B = torch.zeros(3, dtype=torch.int64)
    for attack, loss in ((APGD(targets=9), apgd), (FAB(targets=9), other), (PGD(targets=9), other)):
        goals = attack.branch_goals(
            Untargeted(label_B, cross_entropy), top_other_classes(Z_BK[:, :classes], label_B, classes - 1), classes
        )
        assert [goal.loss for goal in goals if isinstance(goal, TowardClass)] == [loss] * (classes - 1)


def test_two_classes_have_a_margin_instead_of_dlr() -> None:
    nothing_BT = torch.zeros(3, 0, dtype=torch.int64)
    for classes, expected in ((2, margin), (3, dlr), (10, dlr)):
        (goal,) = APGD().branch_goals(Untargeted(LABELS, dlr), nothing_BT, classes)
        assert isinstance(goal, Untargeted)
        assert goal.loss is expected
        assert torch.equal(goal.label_B, LABELS)
    other = Untargeted(LABELS, cross_entropy)
    assert APGD().branch_goals(other, nothing_BT, 2)[0] is other


@pytest.mark.parametrize(
    ("targets", "classes", "num_branches"), [(0, 10, 1), (9, 10, 9), (9, 8, 7), (9, 2, 1), (5, 1000, 5), (3, 4, 3)]
)
def test_an_image_has_one_item_per_target(targets: int, classes: int, num_branches: int) -> None:
    assert APGD(targets=targets).num_branches(classes) == num_branches
    assert FAB(targets=targets).num_branches(classes) == num_branches
    assert Square().num_branches(classes) == 1


@pytest.mark.parametrize(
    ("attack", "loss", "classes", "sentence"),
    [
        (FAB(targets=9), margin, 8, "8 classes leave 7 targets instead of 9"),
        (PGD(targets=9), margin, 2, "2 classes leave 1 target instead of 9"),
        (APGD(), dlr, 2, "DLR needs 3 classes and the model has 2: the margin was maximized instead"),
        (
            APGD(targets=2),
            margin,
            3,
            "DLR needs 4 classes and the model has 3: the logit difference was maximized instead",
        ),
    ],
)
def test_flags_name_the_limits_of_few_classes(attack: IterativeAttack, loss: Loss, classes: int, sentence: str) -> None:
    (flag,) = attack.find_flags(Untargeted(LABELS, loss), classes)
    assert (flag.code, flag.sentence) == ("few-classes", sentence)


@pytest.mark.parametrize(
    ("attack", "classes", "evidence"),
    [
        (APGD(targets=9), 10, []),
        (APGD(targets=9), 8, [{"classes": 8, "targets": 7}]),
        (APGD(targets=9), 3, [{"classes": 3, "targets": 2}, {"classes": 3, "needed": 4}]),
        (APGD(), 3, []),
        (APGD(), 2, [{"classes": 2, "needed": 3}]),
        (FAB(targets=9), 8, [{"classes": 8, "targets": 7}]),
        (FAB(targets=9), 10, []),
        (FAB(), 2, []),
        (PGD(targets=4), 3, [{"classes": 3, "targets": 2}]),
        (Square(), 2, []),
    ],
)
def test_flags_of_attacks_on_models_with_few_classes(
    attack: IterativeAttack, classes: int, evidence: list[dict[str, int]]
) -> None:
    flags = attack.find_flags(Untargeted(LABELS, dlr), classes)
    assert [flag.evidence for flag in flags] == evidence
    assert {flag.code for flag in flags} <= {"few-classes"}


@pytest.mark.parametrize("attack", [APGD(targets=3), FAB(targets=3), PGD(targets=3)])
def test_a_model_with_one_output_has_no_targets(attack: IterativeAttack) -> None:
    x, label_B = torch.rand(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(
        UsageError, match=r"needs a model with at least 2 classes, got 1\. Write a model with one logit"
    ):
        attack(lambda x: x.mean((1, 2, 3))[:, None], x, label_B, "linf:0.1")
