"""GAMA-PGD: the guided adversarial margin attack.

Shape letters: B items, K classes.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitadel.attacks.engine.iterative import IterativeAttack, Query, State, StepContext
from vitadel.attacks.oracle import Oracle
from vitadel.core.numeric import NonNegative, Steps
from vitadel.goals import require_untargeted
from vitadel.losses import margin
from vitadel.threats import Threat, per_image

# the authors' initial weight of the guiding term
GUIDANCE_WEIGHT = 50.0


@dataclass(frozen=True, slots=True)
class GAMA(IterativeAttack):
    r"""GAMA-PGD (Sriramanan et al. 2020, arXiv:2011.14969): the margin of the probabilities, with a guiding term.

    .. math:: \max_{i \neq y} p_i - p_y + \lambda_t \, \lVert p - p(x_0) \rVert_2^2

    The second term moves the output away from that on the clean image; its weight decays linearly to zero within the
    first quarter of the steps. Steps of 2 eps are divided by 10 after 60% and 85%. Difference from the authors' code:
    there, the reference is the output at the random start; in the paper, and here, on the clean image.

    Args:
        steps: The number of gradient steps.
        restarts: How often an image that remains robust is attacked, from other random starts.
        guidance_weight: The initial weight of the guiding term, lambda.

    Raises:
        UsageError: If the goal is not untargeted.

    Example:
        >>> result = GAMA(steps=100)(model, x, y, "linf:8/255")
    """

    former_names: ClassVar[dict[str, str]] = {"guide": "guidance_weight"}

    steps: Steps = 100
    restarts: Steps = 1
    guidance_weight: NonNegative = GUIDANCE_WEIGHT

    @property
    def has_own_objective(self) -> bool:
        return True

    def num_steps(self, threat: Threat) -> int:
        return self.steps + 1  # a step evaluates the model first, so the last iterate needs one more

    def start(self, model: Oracle, ctx: StepContext) -> State:
        require_untargeted(ctx.goal, "GAMA")
        x0 = ctx.x0
        x = ctx.threat.sample_vertex(x0, ctx.rng)
        worst_B = torch.full((len(x0),), -torch.inf, device=x0.device, dtype=x0.dtype)
        return {"x": x, "best": x, "best_objective": worst_B, "reference": model(x0).softmax(1)}

    def step(self, model: Oracle, ctx: StepContext, state: State) -> tuple[Query, State]:
        x, x0, threat = state["x"], ctx.x0, ctx.threat
        progress_B = ctx.step_B.to(x.dtype) / self.steps
        weight_B = self.guidance_weight * (1 - 4 * progress_B).clamp_min(0)
        _, grad, z_BK = model.gradient(x, _Guided(ctx.goal.classes, state["reference"], weight_B))
        margin_B = margin(z_BK, ctx.goal.classes).to(x.dtype)
        better_B = margin_B > state["best_objective"]
        step_B = (
            2 * threat.eps * torch.where(progress_B < 0.6, 1.0, torch.where(progress_B < 0.85, 0.1, 0.01)).to(x.dtype)
        )
        new = {
            "x": threat.project(threat.ascend(x, grad, step_B), x0),
            "best": torch.where(per_image(better_B, x), x, state["best"]),
            "best_objective": torch.where(better_B, margin_B, state["best_objective"]),
        }
        return Query(x, z_BK, grad), new


def guided_margin(z_BK: Tensor, label_B: Tensor, reference_BK: Tensor, weight: float | Tensor) -> Tensor:
    """[B] the margin of the probabilities, plus a weight times their squared distance from reference probabilities."""
    p_BK = z_BK.softmax(1)
    return margin(p_BK, label_B) + weight * (p_BK - reference_BK).square().sum(1)


@dataclass(frozen=True, slots=True)
class _Guided:
    """The goal of a step: the label, the reference probabilities and the current weight of the guiding term."""

    label_B: Tensor
    reference_BK: Tensor
    weight_B: Tensor

    def objective(self, z_BK: Tensor) -> Tensor:
        return guided_margin(z_BK, self.label_B, self.reference_BK, self.weight_B)

    def success(self, z_BK: Tensor) -> Tensor:
        return z_BK.argmax(1) != self.label_B

    def at(self, rows: Tensor) -> "_Guided":
        return _Guided(self.label_B[rows], self.reference_BK[rows], self.weight_B[rows])

    @property
    def classes(self) -> Tensor:
        return self.label_B
