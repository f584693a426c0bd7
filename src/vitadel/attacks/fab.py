"""The fast adaptive boundary attack.

Shape letters: B items (an image, or an image and a target class), K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from vitadel.attacks.engine.iterative import IterativeAttack, Query, State, StepContext
from vitadel.attacks.oracle import Oracle
from vitadel.core.numeric import Range, Steps
from vitadel.goals import Goal, TowardClass, require_untargeted
from vitadel.losses import logit_difference
from vitadel.threats import Threat, per_image

# the paper's settings, the same in every published use
_ALPHA_MAX, _ETA, _BETA = 0.1, 1.05, 0.9


@dataclass(frozen=True, slots=True)
class FAB(IterativeAttack):
    r"""FAB (Croce & Hein 2020, arXiv:1907.02044); FAB-T with `targets`.

    Each step linearizes the decision boundary at the current point, projects point and image on that hyperplane inside
    the box, moves to a mean of the two projections with overshoot, and after a success a tenth of the way back.

    ===================  ==============  ============================================
    paper                here            note
    ===================  ==============  ============================================
    :math:`\alpha_max`   ``_ALPHA_MAX``  the largest weight of the image's projection
    :math:`\eta`         ``_ETA``        overshoot
    :math:`\beta`        ``_BETA``       of the displacement is kept after a success
    ===================  ==============  ============================================

    Differences from the authors' code: a search ends at the first adversarial example within eps instead of minimizing
    the distance further, and there is no final line search.

    Args:
        steps: The number of steps.
        restarts: How often an image that remains robust is attacked; later ones start at a random point at eps / 2.
        targets: FAB-T: the boundary to each of this many classes with the largest clean logits, side by side; 0 for the
            nearest of all boundaries, at a backward pass per class.

    Raises:
        UsageError: If a setting is out of its range, or the goal not untargeted.

    Example:
        >>> result = FAB(targets=9)(model, x, y, "linf:8/255")
    """

    steps: Steps = 100
    restarts: Steps = 1
    targets: Annotated[int, Range(ge=0, hint="0 attacks all classes at once.")] = 0

    def num_steps(self, threat: Threat) -> int:
        return self.steps + 1  # a step evaluates the model first, so the last iterate needs one more

    @property
    def has_own_objective(self) -> bool:
        return True

    @property
    def may_leave_threat(self) -> bool:
        return True

    def branch_goals(self, goal: Goal, others_BT: Tensor, num_classes: int) -> Sequence[Goal]:
        return IterativeAttack.branch_goals(self, require_untargeted(goal, "FAB"), others_BT, num_classes)

    def start(self, model: Oracle, ctx: StepContext) -> State:
        x = ctx.x0
        if self.restarts > 1:  # the first start is the image itself
            x = torch.where(per_image(ctx.restart_B == 0, x), x, _random_at_half_eps(ctx))
        infinite_B = torch.full((len(x),), torch.inf, device=x.device, dtype=x.dtype)
        return {"x": x, "best": ctx.x0, "best_distance": infinite_B}

    def step(self, model: Oracle, ctx: StepContext, state: State) -> tuple[Query, State]:
        x, x0, threat = state["x"], ctx.x0, ctx.threat
        z_BK = model(x)
        success_B, distance_B = ctx.goal.success(z_BK), threat.distance(x, x0)
        nearer_B = success_B & (distance_B < state["best_distance"])
        best = torch.where(per_image(nearer_B, x), x, state["best"])
        biased = torch.where(per_image(success_B, x), x0 + _BETA * (x - x0), x)
        difference_B, normal = _nearest_boundary(model, biased, ctx.goal, threat)
        new = _between_projections(biased, x0, normal, difference_B, threat)
        best_distance_B = torch.where(nearer_B, distance_B, state["best_distance"])
        return Query(x, z_BK, normal), {"x": new, "best": best, "best_distance": best_distance_B}


def _between_projections(x: Tensor, x0: Tensor, normal: Tensor, difference_B: Tensor, threat: Threat) -> Tensor:
    """Toward the hyperplane where the linearized logit difference is zero, and a little toward the image."""
    offset_B = (normal.flatten(1) * x.flatten(1)).sum(1) - difference_B
    both = threat.project_on_hyperplane(
        torch.cat([x, x0]), torch.cat([normal, normal]), torch.cat([offset_B, offset_B])
    )
    length_x, length_x0 = threat.distance(both, torch.zeros_like(both)).clamp_min(1e-8).chunk(2)
    alpha_B = per_image((length_x / (length_x + length_x0)).clamp_max(_ALPHA_MAX), x)
    step_x, step_x0 = (_ETA * half for half in both.chunk(2))
    return ((1 - alpha_B) * (x + step_x) + alpha_B * (x0 + step_x0)).clamp(0, 1)


def _nearest_boundary(model: Oracle, x: Tensor, goal: Goal, threat: Threat) -> tuple[Tensor, Tensor]:
    """The logit difference to the target, or to the class with the nearest boundary, and its gradient."""
    if isinstance(goal, TowardClass):
        difference_B, normal, _ = model.gradient(x, goal)
        return difference_B, normal
    label_B = goal.classes
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        z_BK = model(x)
    num_classes = z_BK.shape[1]
    label_BK = one_hot(label_B, num_classes).to(z_BK.dtype)
    nearest_B = torch.full_like(z_BK[:, 0].detach(), torch.inf)
    nearest_difference_B, normal = torch.zeros_like(nearest_B), torch.zeros_like(x)
    not_finite_B = torch.zeros_like(label_B, dtype=torch.bool)
    for k in range(num_classes - 1):
        other_B = k + (label_B <= k)  # every class but the label
        grad = model.input_gradient(one_hot(other_B, num_classes) - label_BK, z_BK, x, retain_graph=k + 2 < num_classes)
        difference_B = logit_difference(z_BK.detach(), label_B, other_B)
        distance_B = difference_B.abs() / (1e-12 + threat.dual_norm(grad))
        nearer_B = distance_B < nearest_B
        nearest_B = torch.where(nearer_B, distance_B, nearest_B)
        nearest_difference_B = torch.where(nearer_B, difference_B, nearest_difference_B)
        normal = torch.where(per_image(nearer_B, x), grad, normal)
        not_finite_B |= ~distance_B.isfinite()
    # comparisons with NaN are false: without this, a boundary at a distance of NaN would be ignored
    return nearest_difference_B, normal.detach().masked_fill(per_image(not_finite_B, x), torch.nan)


def _random_at_half_eps(ctx: StepContext) -> Tensor:
    noise = ctx.threat.random_direction(ctx.x0, ctx.rng)
    length_B = ctx.threat.distance(noise, torch.zeros_like(noise)).clamp_min(1e-12)
    return (ctx.x0 + noise * per_image(ctx.threat.eps / 2 / length_B, noise)).clamp(0, 1)
