"""One attack per rival: which goals are made, and what stands in for a ratio of more logits than there are."""

from typing import Any

import pytest
import torch

from vitadel.attacks import APGD, FAB, PGD, Square
from vitadel.attacks.engine.iterative import IterativeAttack
from vitadel.attacks.targets import few_classes_for_dlr, few_targets, for_few_classes, target_loss, toward_each
from vitadel.core.errors import UsageError
from vitadel.goals import Targeted, Toward, Untargeted, top_other_classes
from vitadel.losses import cross_entropy, dlr, logit_difference, margin, targeted_dlr

LABELS = torch.tensor([2, 0, 1])
Z_BK = torch.tensor([[0.0, 3.0, 9.0, 1.0, 2.0], [5.0, 4.0, 3.0, 2.0, 1.0], [9.0, 0.0, 7.0, 6.0, 8.0]])


def test_a_goal_for_every_rival_the_likeliest_first() -> None:
    goals = toward_each(Untargeted(LABELS), top_other_classes(Z_BK, LABELS, 3), logit_difference)
    assert all(isinstance(goal, Toward) for goal in goals)
    found = [(goal.label_B.tolist(), goal.target_B.tolist()) for goal in goals if isinstance(goal, Toward)]
    assert found == [([2, 0, 1], [1, 1, 0]), ([2, 0, 1], [4, 2, 4]), ([2, 0, 1], [3, 3, 2])]
    leads = [goal.objective(Z_BK).tolist() for goal in goals]
    assert leads == [[-6, -1, 9], [-7, -2, 8], [-8, -3, 7]]


@pytest.mark.parametrize("walk", [APGD(targets=3), FAB(targets=3), PGD(targets=3)])
def test_targets_of_an_attack_are_not_the_callers(walk: IterativeAttack) -> None:
    with pytest.raises(UsageError, match="wants an Untargeted goal, got Targeted"):
        walk.branch_goals(Targeted(LABELS), top_other_classes(Z_BK, LABELS, 3), 5)


@pytest.mark.parametrize(
    ("classes", "apgd", "other"),
    [
        (2, logit_difference, logit_difference),
        (3, logit_difference, logit_difference),
        (4, targeted_dlr, logit_difference),
    ],
)
def test_losses_of_attacks_with_targets(classes: int, apgd: Any, other: Any) -> None:
    assert target_loss(classes) is apgd
    label_B = torch.zeros(3, dtype=torch.int64)
    for walk, loss in ((APGD(targets=9), apgd), (FAB(targets=9), other), (PGD(targets=9), other)):
        goals = walk.branch_goals(
            Untargeted(label_B, cross_entropy), top_other_classes(Z_BK[:, :classes], label_B, classes - 1), classes
        )
        assert [goal.loss for goal in goals if isinstance(goal, Toward)] == [loss] * (classes - 1)


def test_two_classes_have_a_margin_instead_of_dlr() -> None:
    for classes, expected in ((2, margin), (3, dlr), (10, dlr)):
        goal = for_few_classes(Untargeted(LABELS, dlr), classes)
        assert isinstance(goal, Untargeted)
        assert goal.loss is expected
        assert torch.equal(goal.label_B, LABELS)
        (same,) = APGD().branch_goals(Untargeted(LABELS, dlr), torch.zeros(3, 0, dtype=torch.int64), classes)
        assert isinstance(same, Untargeted)
        assert same.loss is expected
    other = Untargeted(LABELS, cross_entropy)
    assert for_few_classes(other, 2) is other


@pytest.mark.parametrize(
    ("targets", "classes", "num_branches"), [(0, 10, 1), (9, 10, 9), (9, 8, 7), (9, 2, 1), (5, 1000, 5), (3, 4, 3)]
)
def test_an_image_makes_as_many_items_as_it_has_targets(targets: int, classes: int, num_branches: int) -> None:
    assert APGD(targets=targets).num_branches(classes) == num_branches
    assert FAB(targets=targets).num_branches(classes) == num_branches
    assert Square().num_branches(classes) == 1


def test_missing_targets_are_told() -> None:
    assert few_targets(9, 10) == ()
    assert few_targets(0, 2) == ()
    (flag,) = few_targets(9, 8)
    assert flag.code == "few-classes"
    assert flag.sentence == "8 classes leave 7 targets instead of 9"
    assert flag.evidence == {"classes": 8, "targets": 7}


def test_a_replaced_ratio_is_told() -> None:
    untargeted, other = Untargeted(LABELS, dlr), Untargeted(LABELS, margin)
    assert few_classes_for_dlr(0, untargeted, 3) == ()
    assert few_classes_for_dlr(0, other, 2) == ()
    assert few_classes_for_dlr(9, other, 4) == ()
    (flag,) = few_classes_for_dlr(0, untargeted, 2)
    assert flag.evidence == {"classes": 2, "needed": 3}
    assert "the margin was climbed instead" in flag.sentence
    (flag,) = few_classes_for_dlr(9, other, 3)
    assert flag.evidence == {"classes": 3, "needed": 4}
    assert "the lead was climbed instead" in flag.sentence


@pytest.mark.parametrize(
    ("walk", "classes", "evidence"),
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
def test_attacks_doubt_models_with_few_classes(
    walk: IterativeAttack, classes: int, evidence: list[dict[str, int]]
) -> None:
    flags = walk.find_flags(Untargeted(LABELS, dlr), classes)
    assert [flag.evidence for flag in flags] == evidence
    assert {flag.code for flag in flags} <= {"few-classes"}
