"""Goals: the sign, when they succeed, and indexing."""

import pytest
import torch
from torch import Tensor

from vitadel.goals import TARGETS, Diverge, Goal, Targeted, TowardClass, Untargeted, top_other_classes
from vitadel.losses import LOSSES, Loss, cross_entropy, kl_divergence, logit_difference, targeted_dlr

Z_BK = torch.tensor([[3.0, 1.0, 0.0, -2.0], [0.0, 2.0, 1.0, 5.0], [1.0, 4.0, 3.0, 0.0]])
LABELS = torch.tensor([0, 1, 2])

every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


@every_loss
def test_untargeted_maximizes_the_loss_of_the_label(loss: Loss) -> None:
    assert torch.equal(Untargeted(LABELS, loss).objective(Z_BK), loss(Z_BK, LABELS))


@every_loss
def test_targeted_minimizes_the_loss_of_the_target(loss: Loss) -> None:
    assert torch.equal(Targeted(LABELS, loss).objective(Z_BK), -loss(Z_BK, LABELS))


def test_cross_entropy_is_the_default() -> None:
    assert torch.equal(Untargeted(LABELS).objective(Z_BK), cross_entropy(Z_BK, LABELS))
    assert torch.equal(Targeted(LABELS).objective(Z_BK), -cross_entropy(Z_BK, LABELS))


@every_loss
def test_the_objective_increases_towards_the_goal(loss: Loss) -> None:
    """From class 0 to class 1 along a line: the objectives of both goals increase at every step."""
    clean, broken = torch.tensor([[3.0, 1.0, -4.0]]), torch.tensor([[1.0, 3.0, -4.0]])
    way = torch.cat([clean + part * (broken - clean) for part in torch.linspace(0, 1, 9)])
    for goal in (Untargeted(torch.zeros(9, dtype=torch.int64), loss), Targeted(torch.ones(9, dtype=torch.int64), loss)):
        assert bool((goal.objective(way).diff() > 0).all())
        assert goal.success(clean.expand(9, -1)).tolist() == [False] * 9
        assert goal.success(broken.expand(9, -1)).tolist() == [True] * 9


def test_success_is_judged_by_the_prediction() -> None:
    assert Untargeted(LABELS).success(Z_BK).tolist() == [False, True, True]
    assert Targeted(torch.tensor([1, 3, 1])).success(Z_BK).tolist() == [False, True, True]
    assert Diverge(torch.eye(4)[[0, 3, 0]]).success(Z_BK).tolist() == [False, False, True]


def test_diverge_maximizes_the_divergence_from_the_reference() -> None:
    reference = Z_BK.flip(1)
    assert torch.equal(Diverge(reference).objective(Z_BK), kl_divergence(Z_BK, reference))
    torch.testing.assert_close(Diverge(Z_BK).objective(Z_BK), torch.zeros(3))


@pytest.mark.parametrize(
    "goal",
    [
        Untargeted(LABELS, LOSSES["dlr"]),
        Targeted(LABELS, LOSSES["margin"]),
        TowardClass(LABELS, torch.tensor([3, 0, 1]), logit_difference),
        Diverge(Z_BK.flip(1)),
    ],
    ids=["untargeted", "targeted", "toward", "diverge"],
)
@pytest.mark.parametrize("rows", [torch.tensor([2, 0]), torch.tensor([1]), torch.tensor([], dtype=torch.int64)])
def test_a_goal_can_be_indexed(goal: Goal, rows: Tensor) -> None:
    part = goal.at(rows)
    assert type(part) is type(goal)
    assert torch.equal(part.objective(Z_BK[rows]), goal.objective(Z_BK)[rows])
    assert torch.equal(part.success(Z_BK[rows]), goal.success(Z_BK)[rows])
    assert torch.equal(part.classes, goal.classes[rows])


def test_classes_are_those_of_the_goal() -> None:
    assert torch.equal(Untargeted(LABELS).classes, LABELS)
    assert torch.equal(Targeted(LABELS).classes, LABELS)
    assert Diverge(Z_BK).classes.tolist() == [0, 3, 1]


def test_targets_by_name() -> None:
    result = {name: choose(Z_BK).tolist() for name, choose in TARGETS.items()}
    assert result == {"least-likely": [3, 0, 3], "runner-up": [1, 1, 2]}


def test_towards_maximizes_the_logit_difference_of_its_class() -> None:
    target_B = torch.tensor([2, 3, 1])
    assert TowardClass(LABELS, target_B, logit_difference).objective(Z_BK).tolist() == [-3, 3, 1]
    assert torch.equal(TowardClass(LABELS, target_B).objective(Z_BK), targeted_dlr(Z_BK, LABELS, target_B))


def test_towards_succeeds_with_any_wrong_class() -> None:
    """Image 1 is predicted as class 3 though class 0 was the target; image 2 of class 2 as class 1."""
    assert TowardClass(LABELS, torch.tensor([1, 0, 3]), logit_difference).success(Z_BK).tolist() == [False, True, True]


def test_classes_of_label_and_target_are_both_checked() -> None:
    assert TowardClass(LABELS, torch.tensor([3, 0, 1])).classes.tolist() == [3, 1, 2]


def test_top_other_classes_are_ranked_without_the_label() -> None:
    assert top_other_classes(Z_BK, LABELS, 3).tolist() == [[1, 2, 3], [3, 2, 0], [1, 0, 3]]
    assert top_other_classes(Z_BK, LABELS, 1).tolist() == [[1], [3], [1]]
    assert top_other_classes(Z_BK, LABELS, 0).shape == (3, 0)
    torch.testing.assert_close(Z_BK, torch.tensor([[3.0, 1.0, 0.0, -2.0], [0.0, 2.0, 1.0, 5.0], [1.0, 4.0, 3.0, 0.0]]))
    # for a correct image, the first other class is the runner-up
    right_B = Z_BK.argmax(1)
    assert torch.equal(top_other_classes(Z_BK, right_B, 1).squeeze(1), TARGETS["runner-up"](Z_BK))
