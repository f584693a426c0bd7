"""The fast gradient sign method."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from vitadel.attacks.base import Attack
from vitadel.attacks.oracle import Oracle
from vitadel.core.numeric import Range
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal
from vitadel.threats import Threat


@dataclass(frozen=True, slots=True)
class FGSM(Attack):
    """FGSM (Goodfellow et al. 2015, arXiv:1412.6572): one step along the sign of the gradient.

    Unlike reference implementations it works for every norm: the step is the threat's steepest ascent.

    Args:
        step_size: The length of the step; by default eps, so that without a random start it ends on the boundary.
        random_start: Start at a random point of the threat, as in Wong et al. 2020 (arXiv:2001.03994).

    Raises:
        UsageError: If a setting is out of its range.

    Example:
        >>> result = FGSM()(model, x, y, "linf:8/255")
    """

    step_size: Annotated[float, Range(gt=0, hint="Leave it out for eps.")] | None = None
    random_start: bool = False

    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> Tensor:
        x = threat.sample(x0, rng) if self.random_start else x0
        _, grad, _ = model.gradient(x, goal)
        return threat.ascend(x, grad, threat.eps if self.step_size is None else self.step_size)
