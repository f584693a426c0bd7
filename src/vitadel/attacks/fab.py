"""The fast adaptive boundary attack: walks along the decision boundary towards the image.

Shape letters: B items, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from vitadel.attacks.engine.iterative import IterativeAttack, Query, State, StepContext
from vitadel.attacks.oracle import Oracle
from vitadel.attacks.targets import few_targets, toward_each
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.core.numeric import Count, Range, check_ranges
from vitadel.goals import Goal, Toward, Untargeted
from vitadel.losses import logit_difference
from vitadel.threats import L1, L2, Threat, per_image
from vitadel.threats.hyperplane import project_on_plane

# the paper's settings, the same in every published use
_ALPHA_MAX, _OVERSHOOT, _BACK = 0.1, 1.05, 0.9


@dataclass(frozen=True, slots=True)
class FAB(IterativeAttack):
    r"""FAB (Croce & Hein 2020, arXiv:1907.02044), stopped as soon as it is inside the threat.

    Each step linearizes the boundary at the current point, projects the point and the image on that plane inside the
    box, goes between the two projections a little too far, and, if that fools the model, a tenth of the way back.

    ===================  ==============  ==========================================
    paper                here            note
    ===================  ==============  ==========================================
    :math:`\alpha_max`   ``_ALPHA_MAX``  how much the image attracts
    :math:`\eta`         ``_OVERSHOOT``  beyond the plane
    :math:`\beta`        ``_BACK``       of the displacement is kept after a success
    ===================  ==============  ==========================================

    With `targets`, FAB-T: the boundary towards one rival of the label after the other, side by side. Without, the
    nearest of all boundaries, which takes a backward pass per rival.
    """

    steps: Count = 100
    restarts: Count = 1
    targets: Annotated[int, Range(ge=0, hint="0 looks at all classes at once.")] = 0

    def __post_init__(self) -> None:
        check_ranges(self)

    def num_steps(self, threat: Threat) -> int:
        return self.steps + 1  # a step begins with a question, so the last point needs one more

    @property
    def num_restarts(self) -> int:
        return self.restarts

    @property
    def may_leave_threat(self) -> bool:
        return True

    def branch_goals(self, goal: Goal, others_BT: Tensor, classes: int) -> Sequence[Goal]:
        if not isinstance(goal, Untargeted):
            raise UsageError(f"FAB looks for any wrong class and wants an Untargeted goal, got {type(goal).__name__}.")
        return toward_each(goal, others_BT, logit_difference) if self.targets else [goal]

    def find_flags(self, goal: Goal, classes: int) -> tuple[Flag, ...]:
        return few_targets(self.targets, classes)

    def start(self, model: Oracle, items: StepContext) -> State:
        x = torch.where(per_image(items.restart_B == 0, items.x0), items.x0, _half_way_out(items))
        return {"x": x, "best": items.x0, "size_best": torch.full((len(x),), torch.inf, device=x.device, dtype=x.dtype)}

    def step(self, model: Oracle, items: StepContext, state: State) -> tuple[Query, State]:
        x, x0, threat = state["x"], items.x0, items.threat
        z_BK = model(x)
        fooled_B, size_B = items.goal.success(z_BK), threat.distance(x, x0)
        nearer_B = fooled_B & (size_B < state["size_best"])
        best = torch.where(per_image(nearer_B, x), x, state["best"])
        y = torch.where(per_image(fooled_B, x), x0 + _BACK * (x - x0), x)
        gap_B, normal = _nearest_boundary(model, y, items.goal, threat)
        moved = _between_projections(y, x0, normal, gap_B, threat)
        size_best_B = torch.where(nearer_B, size_B, state["size_best"])
        return Query(x, z_BK, normal), {"x": moved, "best": best, "size_best": size_best_B}


def _between_projections(x: Tensor, x0: Tensor, normal: Tensor, gap_B: Tensor, threat: Threat) -> Tensor:
    """Towards the boundary, where the linearized gap `gap_B` closes, and a little towards the image."""
    here, there, w = x.flatten(1), x0.flatten(1), normal.flatten(1)
    offset_B = (w * here).sum(1) - gap_B
    both = project_on_plane(torch.cat([here, there]), torch.cat([w, w]), torch.cat([offset_B, offset_B]), threat)
    zero = torch.zeros_like(both)
    length_here, length_there = threat.distance(both, zero).clamp_min(1e-8).chunk(2)
    alpha_B = per_image((length_here / (length_here + length_there)).clamp_max(_ALPHA_MAX), x)
    step_here, step_there = (_OVERSHOOT * half.view_as(x) for half in both.chunk(2))
    return ((1 - alpha_B) * (x + step_here) + alpha_B * (x0 + step_there)).clamp(0, 1)


def _nearest_boundary(model: Oracle, x: Tensor, goal: Goal, threat: Threat) -> tuple[Tensor, Tensor]:
    """The lead of a rival over the label and its gradient; of all rivals the one whose boundary is nearest."""
    if isinstance(goal, Toward):
        gap_B, normal, _ = model.gradient(x, goal)
        return gap_B, normal
    label_B = goal.classes
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        z_BK = model(x)
    classes = z_BK.shape[1]
    label_BK = one_hot(label_B, classes).to(z_BK.dtype)
    nearest_B = torch.full_like(z_BK[:, 0].detach(), torch.inf)
    gap_B, normal = torch.zeros_like(nearest_B), torch.zeros_like(x)
    broken_B = torch.zeros_like(label_B, dtype=torch.bool)
    for k in range(classes - 1):
        other_B = k + (label_B <= k)  # every class but the label
        grad = model.pull_back(one_hot(other_B, classes) - label_BK, z_BK, x, again=k + 2 < classes)
        difference_B = logit_difference(z_BK.detach(), label_B, other_B)
        distance_B = difference_B.abs() / (1e-12 + _dual_norm(grad, threat))
        nearer_B = distance_B < nearest_B
        nearest_B = torch.where(nearer_B, distance_B, nearest_B)
        gap_B = torch.where(nearer_B, difference_B, gap_B)
        normal = torch.where(per_image(nearer_B, x), grad, normal)
        broken_B |= ~distance_B.isfinite()
    # NaN is nearer than nothing: it must not pass for a boundary that is far away
    return gap_B, normal.detach().masked_fill(per_image(broken_B, x), torch.nan)


def _dual_norm(grad: Tensor, threat: Threat) -> Tensor:
    """How fast a value changes at most per unit of the threat's norm."""
    flat = grad.flatten(1)
    if isinstance(threat, L2):
        return flat.norm(dim=1)
    return flat.abs().amax(1) if isinstance(threat, L1) else flat.abs().sum(1)


def _half_way_out(items: StepContext) -> Tensor:
    """A random point at half the radius."""
    x0, threat, shape = items.x0, items.threat, items.x0.shape[1:]
    if isinstance(threat, (L2, L1)):
        noise = items.rng.normal(*shape, dtype=x0.dtype)
    else:
        noise = 2 * items.rng.uniform(*shape, dtype=x0.dtype) - 1
    length_B = threat.distance(noise, torch.zeros_like(noise)).clamp_min(1e-12)
    return (x0 + noise * per_image(threat.eps / 2 / length_B, noise)).clamp(0, 1)
