"""One attack per rival of the label, side by side."""

from collections.abc import Sequence

from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.goals import Goal, Toward, Untargeted
from vitadel.losses import TargetLoss, dlr, logit_difference, margin, targeted_dlr


def toward_each(goal: Goal, others_BT: Tensor, loss: TargetLoss) -> Sequence[Goal]:
    """The same untargeted goal, led towards each of the rivals."""
    if not isinstance(goal, Untargeted):
        raise UsageError(f"an attack with targets of its own wants an Untargeted goal, got {type(goal).__name__}.")
    return [Toward(goal.label_B, other_B, loss) for other_B in others_BT.unbind(1)]


def for_few_classes(goal: Goal, classes: int) -> Goal:
    """DLR compares three classes; with two there is only the margin."""
    if isinstance(goal, Untargeted) and goal.loss is dlr and classes < 3:
        return Untargeted(goal.label_B, margin)
    return goal


def target_loss(classes: int) -> TargetLoss:
    """Targeted DLR compares four classes; with fewer there is only the lead."""
    return logit_difference if classes < 4 else targeted_dlr


def few_targets(targets: int, classes: int) -> tuple[Flag, ...]:
    """A flag if there are fewer rivals than an attack wants for targets."""
    if targets <= classes - 1:
        return ()
    left = "1 target" if classes == 2 else f"{classes - 1} targets"
    sentence = f"{classes} classes leave {left} instead of {targets}"
    return (Flag("few-classes", sentence, {"classes": classes, "targets": classes - 1}),)


def few_classes_for_dlr(targets: int, goal: Goal, classes: int) -> tuple[Flag, ...]:
    """A flag if there are too few classes for the ratio of logits that an attack climbs."""
    needed, instead = (4, "the lead") if targets else (3, "the margin")
    climbs_dlr = targets or (isinstance(goal, Untargeted) and goal.loss is dlr)
    if classes >= needed or not climbs_dlr:
        return ()
    sentence = f"DLR needs {needed} classes and the model has {classes}: {instead} was climbed instead"
    return (Flag("few-classes", sentence, {"classes": classes, "needed": needed}),)
