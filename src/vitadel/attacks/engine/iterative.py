"""Attacks told step by step, so that an engine can move thousands of them side by side.

An image under attack becomes one or more *items*: an APGD-T with nine targets makes nine, which start together and end
together, as soon as one of them succeeds. Items sit in the rows of a batch; each has its own count of steps, so old and
new ones share a batch.

Shape letters: B items, K classes.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from vitadel.attacks.base import Attack
from vitadel.attacks.oracle import Oracle
from vitadel.core.flags import Flag
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal
from vitadel.threats import Threat

# whatever a walk remembers from one step to the next, one row per item; "x" is where it stands
State = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a step may know of the items beside their state; steps and waves count from 0.

    `rng` has fresh numbers for every wave; a step that draws folds its own number into it.
    """

    x0: Tensor
    goal: Goal
    threat: Threat
    rng: RandomStreams
    step_B: Tensor
    restart_B: Tensor


@dataclass(frozen=True, slots=True)
class Query:
    """A point a step asked the model about, what came back, and the gradient if one was asked for."""

    x: Tensor
    z_BK: Tensor
    grad: Tensor | None = None


class IterativeAttack(Attack):
    """An attack as a start and a step; an author writes `steps`, `start` and `step`, and `branch_goals` if it fans out.

    A step may not ask the device for a number (`.item()`, `if tensor:`, `nonzero`): it is recorded once and replayed.
    """

    __slots__ = ()

    @abstractmethod
    def num_steps(self, threat: Threat) -> int:
        """How many steps an item makes if it never succeeds."""

    @abstractmethod
    def start(self, model: Oracle, items: StepContext) -> State:
        """The state before the first step."""

    @abstractmethod
    def step(self, model: Oracle, items: StepContext, state: State) -> tuple[Query, State]:
        """Ask the model about `state["x"]`, and decide where to go next."""

    @property
    def num_restarts(self) -> int:
        """How often an image that stands is tried anew, with other random numbers."""
        return 1

    @property
    def may_leave_threat(self) -> bool:
        """Whether points on the way may lie outside the threat; successes there do not count."""
        return False

    @property
    def stops_at_success(self) -> bool:
        """Whether the first success ends an image; an attack on a random model knows no success."""
        return True

    @property
    def targets(self) -> int:
        """How many of the label's rivals `branch_goals` wants to know."""
        return 0

    def num_branches(self, classes: int) -> int:
        """How many items an image makes."""
        return max(1, min(self.targets, classes - 1))

    def branch_goals(self, goal: Goal, others_BT: Tensor, classes: int) -> Sequence[Goal]:
        """The goals each image is attacked with side by side; the rivals are ranked by the clean logits."""
        return [goal]

    def find_flags(self, goal: Goal, classes: int) -> tuple[Flag, ...]:
        """What a model with so many classes takes away from this attack."""
        return ()

    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> Tensor:
        """Every image of one batch walked to its end."""
        from vitadel.attacks.engine.engine import Engine  # the engine moves walks, so it imports this file

        return Engine(cuda_graph=False).search(self, model, x0, goal, threat, rng)
