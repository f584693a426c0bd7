"""Projected gradient ascent that finds its own step size.

Shape letters: B items.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import torch
from torch import Tensor

from vitadel.attacks import apgd_l1
from vitadel.attacks.engine.iterative import IterativeAttack, Query, State, StepContext
from vitadel.attacks.oracle import Oracle
from vitadel.attacks.targets import few_classes_for_dlr, few_targets, for_few_classes, target_loss, toward_each
from vitadel.core.flags import Flag
from vitadel.core.numeric import Count, Range, check_ranges
from vitadel.goals import Goal
from vitadel.threats import L1, L2, Threat, per_image

# the share of steps in a window that must raise the gain for the step size to stay
_RHO = 0.75
# how much of a new displacement is the gradient's; the rest is the last displacement's
_MOMENTUM = 0.75


@dataclass(frozen=True, slots=True)
class APGD(IterativeAttack):
    r"""Auto-PGD (Croce & Hein 2020, arXiv:2003.01690), and for L1 its sparse sister (2021, arXiv:2103.01208).

    ====================  ======================  =============================================================
    paper                 here                    note
    ====================  ======================  =============================================================
    :math:`\eta^{(0)}`    ``2 * threat.eps``      halved at checkpoints
    :math:`w_j`           `checkpoints`           after 22, 41, 57, 70, 80, 87, 93, 99 of 100 steps
    condition 1           ``rises``               too few of the window's steps raised the gain
    condition 2           ``halved``, ``stalled``  not halved at the last checkpoint, and no new best since
    :math:`\alpha`        ``_MOMENTUM``           1 in the first step
    ====================  ======================  =============================================================

    With `targets`, the attack is APGD-T: one search per rival of the label, on the targeted DLR. `draws` gradients are
    averaged in each step for models that answer at random; such a search ends with its best point and no verdict.
    With `wide_start`, an L1 search spends 30% of its steps in three times and 30% in twice the radius.
    """

    steps: Count = 100
    restarts: Count = 1
    targets: Annotated[int, Range(ge=0, hint="0 attacks without targets.")] = 0
    draws: Count = 1
    wide_start: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)

    def num_steps(self, threat: Threat) -> int:
        # a step begins with a question, so the last point needs one more to be judged; so does each phase
        phases = apgd_l1.phases(self.steps, self.wide_start) if isinstance(threat, L1) else [(1, self.steps)]
        return sum(steps + 1 for _, steps in phases)

    @property
    def num_restarts(self) -> int:
        return self.restarts

    @property
    def may_leave_threat(self) -> bool:
        return self.wide_start

    @property
    def stops_at_success(self) -> bool:
        return self.draws == 1

    def branch_goals(self, goal: Goal, others_BT: Tensor, classes: int) -> Sequence[Goal]:
        if not self.targets:
            return [for_few_classes(goal, classes)]
        return toward_each(goal, others_BT, target_loss(classes))

    def find_flags(self, goal: Goal, classes: int) -> tuple[Flag, ...]:
        return few_targets(self.targets, classes) + few_classes_for_dlr(self.targets, goal, classes)

    def start(self, model: Oracle, items: StepContext) -> State:
        if isinstance(items.threat, L1):
            return apgd_l1.start(items, self.steps, self.wide_start)
        x = _on_the_edge(items)
        nothing_B = torch.zeros(len(x), device=x.device, dtype=x.dtype)
        return {
            "x": x,
            "x_old": x,
            "best": x,
            "grad_best": torch.zeros_like(x),
            "gain_best": nothing_B - torch.inf,
            "gain_old": nothing_B,
            "gain_checked": nothing_B,
            "rises": nothing_B,
            "step_size": nothing_B + 2 * items.threat.eps,
            "halved": torch.ones_like(nothing_B, dtype=torch.bool),
        }

    def step(self, model: Oracle, items: StepContext, state: State) -> tuple[Query, State]:
        objective_B, grad, z_BK = self._gradient(model, state["x"], items.goal)
        answer = Query(state["x"], z_BK, grad)
        if isinstance(items.threat, L1):
            return answer, apgd_l1.move(items, state, objective_B, grad, self.steps, self.wide_start)
        x, grad, kept = self._check(items, state["x"], grad, _remember(items, state, objective_B, grad))
        threat, x0 = items.threat, items.x0
        ahead = threat.project(threat.ascend(x, grad, kept["step_size"]), x0)
        share_B = per_image(torch.where(items.step_B == 0, 1.0, _MOMENTUM), x)
        moved = threat.project(x + share_B * (ahead - x) + (1 - share_B) * (x - state["x_old"]), x0)
        return answer, {**kept, "x": moved, "x_old": x}

    def _check(self, items: StepContext, x: Tensor, grad: Tensor, kept: State) -> tuple[Tensor, Tensor, State]:
        """At a checkpoint: halve the step and go back to the best point if the window was not worth it."""
        window_B = _windows(self.steps, x.device)[items.step_B]
        at_check_B = window_B > 0
        stalled_B = ~kept["halved"] & (kept["gain_checked"] >= kept["gain_best"])
        failed_B = (kept["rises"] <= _RHO * window_B) | stalled_B
        back_B = at_check_B & failed_B
        back = per_image(back_B, x)
        checked = {
            "step_size": torch.where(back_B, kept["step_size"] / 2, kept["step_size"]),
            "halved": torch.where(at_check_B, failed_B, kept["halved"]),
            "gain_checked": torch.where(at_check_B, kept["gain_best"], kept["gain_checked"]),
            "rises": kept["rises"].masked_fill(at_check_B, 0),
        }
        return torch.where(back, kept["best"], x), torch.where(back, kept["grad_best"], grad), {**kept, **checked}

    def _gradient(self, model: Oracle, x: Tensor, goal: Goal) -> tuple[Tensor, Tensor, Tensor]:
        """Gain, gradient and logits, averaged over the draws of a random model."""
        answers = [model.gradient(x, goal) for _ in range(self.draws)]
        if self.draws == 1:
            return answers[0]
        objective_B, grad, z_BK = (torch.stack(parts).mean(0) for parts in zip(*answers, strict=True))
        return objective_B, grad, z_BK


def checkpoints(steps: int) -> list[int]:
    """The steps after which the step size is reconsidered: windows of 22%, then 3% less each time, at least 6%."""
    window, shorter, shortest = (max(int(share * steps), 1) for share in (0.22, 0.03, 0.06))
    after, checks = window, []
    while after <= steps:
        checks.append(after)
        window = max(window - shorter, shortest)
        after += window
    return checks


@lru_cache(maxsize=64)
def _windows(steps: int, device: torch.device) -> Tensor:
    """For every step the length of the window that ends there, 0 where none does."""
    table = torch.zeros(steps + 2)
    for last, check in zip([0, *checkpoints(steps)], checkpoints(steps), strict=False):
        table[check] = check - last
    return table.to(device)


def _remember(items: StepContext, state: State, objective_B: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """The state with the point just asked about taken into account."""
    objective_B = objective_B.to(state["gain_old"].dtype)
    first_B, better_B = items.step_B == 0, objective_B > state["gain_best"]
    better = per_image(better_B, grad)
    gain_best_B = torch.where(better_B, objective_B, state["gain_best"])
    return {
        **state,
        "best": torch.where(better, state["x"], state["best"]),
        "grad_best": torch.where(better, grad, state["grad_best"]),
        "gain_best": gain_best_B,
        "gain_checked": torch.where(first_B, gain_best_B, state["gain_checked"]),
        "rises": state["rises"] + ((objective_B > state["gain_old"]) & ~first_B),
        "gain_old": objective_B,
    }


def _on_the_edge(items: StepContext) -> Tensor:
    """A random point on the edge of the ball, cut off at the box."""
    x0, eps, shape = items.x0, items.threat.eps, items.x0.shape[1:]
    if isinstance(items.threat, L2):
        noise = items.rng.normal(*shape, dtype=x0.dtype)
        longest_B = noise.flatten(1).norm(dim=1)
    else:
        noise = 2 * items.rng.uniform(*shape, dtype=x0.dtype) - 1
        longest_B = noise.abs().flatten(1).amax(1)
    return (x0 + eps * noise / per_image(longest_B.clamp_min(1e-12), noise)).clamp(0, 1)
