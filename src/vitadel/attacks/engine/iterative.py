"""Attacks written as `start` and `step`, so that an engine can run images at different steps in one batch.

Every image has one or more *items*: with APGD-T and nine targets it has nine, which start together and end together, as
soon as one of them succeeds. A step works on a batch of items, each at its own step.

Shape letters: B items, K classes, T targets.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from vitadel.attacks.base import Attack
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal, TowardClass, require_untargeted
from vitadel.losses import TargetLoss, logit_difference
from vitadel.threats import Threat

# tensors that a search keeps from one step to the next, one row per item: "x" is the next point to evaluate, "best"
# (optional) the result if no adversarial example is found
State = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class StepContext:
    """The arguments of a step in addition to its state.

    Args:
        x0: [B, C, H, W] the original images.
        goal: The adversary's goal.
        threat: The threat model.
        rng: A random stream per item and restart; a step that draws from it folds its own number into it.
        step_B: How many steps each item has made.
        restart_B: The restart each item is in, from 0.
    """

    x0: Tensor
    goal: Goal
    threat: Threat
    rng: RandomStreams
    step_B: Tensor
    restart_B: Tensor


@dataclass(frozen=True, slots=True)
class Query:
    """An evaluated point: `x`, its logits, and its gradient if one was computed."""

    x: Tensor
    z_BK: Tensor
    grad: Tensor | None = None


class IterativeAttack(Attack):
    """An attack written as `num_steps`, `start` and `step`; the engine handles restarts, targets and early stopping.

    A step must not synchronize with the device (`.item()`, `if tensor:`, `nonzero`), so that a CUDA graph can capture
    it.

    Raises:
        UsageError: If the attack has targets, and the model fewer than two classes or the goal a target of its own.
    """

    # subclasses call `IterativeAttack.find_flags(self, ...)`, because @dataclass(slots=True) creates a new class, in
    # which `super()` without arguments fails

    __slots__ = ()

    @abstractmethod
    def num_steps(self, threat: Threat) -> int:
        """How many steps an item makes if it never succeeds."""

    @abstractmethod
    def start(self, model: Oracle, ctx: StepContext) -> State:
        """The state before the first step."""

    @abstractmethod
    def step(self, model: Oracle, ctx: StepContext, state: State) -> tuple[Query, State]:
        """Evaluate the model at `state["x"]` and choose the next point.

        Args:
            model: Call it for logits, or its `gradient` for objective, gradient and logits.
            ctx: The items and their goal; `step_B` is 0 again at the start of each restart.
            state: The state that `start` or the previous step returned.

        Returns:
            The evaluated point, and the next state. An adversarial example among the evaluated points ends an image,
            unless `stops_at_success` is false, and is its result; the result of a robust image is `state["best"]`, or
            `state["x"]` if there is no best.
        """

    @property
    def restarts(self) -> int:
        """How often an image that remains robust is attacked, each time with fresh random numbers."""
        return 1

    @property
    def targets(self) -> int:
        """How many target classes an image is attacked toward; 0 for an untargeted attack."""
        return 0

    @property
    def may_leave_threat(self) -> bool:
        """Whether iterates may lie outside the threat; successes there do not count."""
        return False

    @property
    def stops_at_success(self) -> bool:
        """Whether the search of an image ends at its first success; for a randomized model that may be chance."""
        return True

    @property
    def uses_engine(self) -> bool:
        """Whether an evaluation runs it step by step in an engine rather than batch by batch."""
        return True

    @property
    def has_own_objective(self) -> bool:
        return self.targets > 0

    def num_branches(self, num_classes: int) -> int:
        """How many items an image has.

        Raises:
            UsageError: If it has targets, and the model has no class but the label.
        """
        if self.targets and num_classes < 2:
            raise UsageError(
                f"an attack with targets needs a model with at least 2 classes, got {num_classes}. Write a model with "
                "one logit z as [-z, z]."
            )
        return max(1, min(self.targets, num_classes - 1))

    def branch_goals(self, goal: Goal, others_BT: Tensor, num_classes: int) -> Sequence[Goal]:
        """The goal of each item of an image.

        Args:
            goal: The goal of the attack.
            others_BT: The classes other than the label, by descending clean logit.
            num_classes: The number of classes.
        """
        return goal_per_target(goal, others_BT, logit_difference) if self.targets else [goal]

    def find_flags(self, goal: Goal, num_classes: int) -> tuple[Flag, ...]:
        """Flags for settings that the number of classes does not allow; here, more targets than other classes."""
        if not self.targets or self.targets < num_classes:
            return ()
        left = "1 target" if num_classes == 2 else f"{num_classes - 1} targets"
        sentence = f"{num_classes} classes leave {left} instead of {self.targets}"
        return (Flag("few-classes", sentence, {"classes": num_classes, "targets": num_classes - 1}),)

    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> Tensor:
        """Run the steps for one batch."""
        from vitadel.attacks.engine.engine import Engine  # which imports this file

        return Engine(cuda_graph=False).search(self, model, x0, goal, threat, rng)


def goal_per_target(goal: Goal, others_BT: Tensor, loss: TargetLoss) -> Sequence[Goal]:
    """For each of T target classes, the untargeted goal whose objective leads toward that class."""
    label_B = require_untargeted(goal, "an attack with targets").label_B
    return [TowardClass(label_B, other_B, loss) for other_B in others_BT.unbind(1)]
