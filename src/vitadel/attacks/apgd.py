"""Auto-PGD: projected gradient ascent with momentum and an automatic step size.

Shape letters: B items (an image, or an image and a target class), K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from vitadel.attacks.engine.iterative import IterativeAttack, Query, State, StepContext, goal_per_target
from vitadel.attacks.oracle import Oracle
from vitadel.core.flags import Flag
from vitadel.core.numeric import Range, Steps
from vitadel.goals import Goal, Untargeted
from vitadel.losses import dlr, logit_difference, margin, targeted_dlr
from vitadel.threats import Threat, per_image

# a checkpoint keeps the step size if this share of the steps since the last one increased the objective
_RHO = 0.75
# weight of the new displacement; the rest is momentum
_ALPHA = 0.75
# sparse threats: share of the values changed by the first steps, then that of the best point divided by _GROWTH
_FIRST_SHARE, _GROWTH = 0.2, 1.5
# the step size shrinks by _GROWTH, down to _MIN_STEP eps, and is reset to eps where the best point became sparser than
# this share of its last support
_SPARSER, _MIN_STEP = 0.95, 0.1


@dataclass(frozen=True, slots=True)
class APGD(IterativeAttack):
    r"""Auto-PGD (Croce & Hein 2020, arXiv:2003.01690), for sparse threats (L1) Croce & Hein 2021 (arXiv:2103.01208).

    The goal holds the loss: with plain labels it is APGD-CE, with `Untargeted(y, dlr)` APGD-DLR; with `targets` APGD-T.

    ====================  =======================  ==========================================================
    paper                 here                     note
    ====================  =======================  ==========================================================
    :math:`\eta^{(0)}`    ``2 * threat.eps``       halved at checkpoints
    :math:`w_j`           `checkpoints`            after 22, 41, 57, 70, 80, 87, 93, 99 of 100 steps
    condition 1           ``num_increases``        too few steps of the window increased the objective
    condition 2           ``halved``, ``stalled``  not halved at the last checkpoint, and no new best since
    :math:`\alpha`        ``_ALPHA``               1 in the first step
    ====================  =======================  ==========================================================

    Differences from the authors' code: a search ends at its first success; L2 steps are projected exactly on ball and
    box; with too few classes for DLR, the margin (below 3) or the logit difference (targeted, below 4) is maximized.

    Args:
        steps: The number of gradient steps.
        restarts: How often an image that remains robust is attacked, from other random starts.
        targets: APGD-T: one search on the targeted DLR per target class, for this many classes with the largest clean
            logits; 0 for none.
        eot_samples: Gradients averaged per step, for randomized models; such a search does not stop at a success.
        use_larger_eps: Sparse threats only: 30% of the steps in three times and 30% in twice the radius, then project.

    Raises:
        UsageError: If a setting is out of its range.

    Example:
        >>> result = APGD(steps=100)(model, x, Untargeted(y, dlr), "linf:8/255")  # APGD-DLR
        >>> result = APGD(targets=9)(model, x, y, "linf:8/255")  # APGD-T
    """

    former_names: ClassVar[dict[str, str]] = {"draws": "eot_samples", "wide_start": "use_larger_eps"}

    steps: Steps = 100
    restarts: Steps = 1
    targets: Annotated[int, Range(ge=0, hint="0 attacks without targets.")] = 0
    # their gradients are all kept until the mean is taken
    eot_samples: Annotated[int, Range(ge=1, top=10_000)] = 1
    use_larger_eps: bool = False

    def num_steps(self, threat: Threat) -> int:
        # a step evaluates the model first, so the last iterate needs one more; so does each phase
        phases = eps_phases(self.steps, self.use_larger_eps) if threat.sparse else [(1, self.steps)]
        return sum(steps + 1 for _, steps in phases)

    @property
    def may_leave_threat(self) -> bool:
        return self.use_larger_eps

    @property
    def stops_at_success(self) -> bool:
        return self.eot_samples == 1

    def branch_goals(self, goal: Goal, others_BT: Tensor, num_classes: int) -> Sequence[Goal]:
        if self.targets:
            return goal_per_target(goal, others_BT, logit_difference if num_classes < 4 else targeted_dlr)
        if isinstance(goal, Untargeted) and goal.loss is dlr and num_classes < 3:
            return [Untargeted(goal.label_B, margin)]
        return [goal]

    def find_flags(self, goal: Goal, num_classes: int) -> tuple[Flag, ...]:
        flags = IterativeAttack.find_flags(self, goal, num_classes)
        needed, instead = (4, "the logit difference") if self.targets else (3, "the margin")
        uses_dlr = self.targets or (isinstance(goal, Untargeted) and goal.loss is dlr)
        if num_classes >= needed or not uses_dlr:
            return flags
        sentence = f"DLR needs {needed} classes and the model has {num_classes}: {instead} was maximized instead"
        return (*flags, Flag("few-classes", sentence, {"classes": num_classes, "needed": needed}))

    def start(self, model: Oracle, ctx: StepContext) -> State:
        if ctx.threat.sparse:
            return self._sparse_start(ctx)
        x = ctx.threat.sample_boundary(ctx.x0, ctx.rng)
        zero_B = torch.zeros(len(x), device=x.device, dtype=x.dtype)
        return {
            "x": x,
            "x_old": x,
            "best": x,
            "best_grad": torch.zeros_like(x),
            "best_objective": zero_B - torch.inf,
            "last_objective": zero_B,
            "checkpoint_objective": zero_B,
            "num_increases": zero_B,
            "step_size": zero_B + 2 * ctx.threat.eps,
            # condition 2 compares with the previous checkpoint, so it must not hold at the first one
            "halved": torch.ones_like(zero_B, dtype=torch.bool),
        }

    def step(self, model: Oracle, ctx: StepContext, state: State) -> tuple[Query, State]:
        objective_B, grad, z_BK = self._gradient(model, state["x"], ctx.goal)
        query = Query(state["x"], z_BK, grad)
        if ctx.threat.sparse:
            return query, self._sparse_step(ctx, state, objective_B, grad)
        x, grad, state = self._checkpoint(ctx, grad, _update_best(ctx, state, objective_B, grad))
        threat, x0 = ctx.threat, ctx.x0
        ascended = threat.project(threat.ascend(x, grad, state["step_size"]), x0)
        alpha_B = per_image(torch.where(ctx.step_B == 0, 1.0, _ALPHA), x)
        new = threat.project(x + alpha_B * (ascended - x) + (1 - alpha_B) * (x - state["x_old"]), x0)
        return query, {**state, "x": new, "x_old": x}

    def _gradient(self, model: Oracle, x: Tensor, goal: Goal) -> tuple[Tensor, Tensor, Tensor]:
        """Objective [B], gradient [B, C, H, W] and logits [B, K] as `Oracle.gradient` returns them, without a graph.

        For a randomized model they are averages over its EOT samples.
        """
        samples = [model.gradient(x, goal) for _ in range(self.eot_samples)]
        if self.eot_samples == 1:
            return samples[0]
        objective_B, grad, z_BK = (torch.stack(parts).mean(0) for parts in zip(*samples, strict=True))
        return objective_B, grad, z_BK

    def _checkpoint(self, ctx: StepContext, grad: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """At a checkpoint: if condition 1 or 2 holds, halve the step size and restart from the best point."""
        window_B = _windows(self.steps, grad.device)[ctx.step_B]
        at_checkpoint_B = window_B > 0
        stalled_B = ~state["halved"] & (state["checkpoint_objective"] >= state["best_objective"])
        failed_B = (state["num_increases"] <= _RHO * window_B) | stalled_B
        restart_B = at_checkpoint_B & failed_B
        restart = per_image(restart_B, grad)
        checked = {
            "step_size": torch.where(restart_B, state["step_size"] / 2, state["step_size"]),
            "halved": torch.where(at_checkpoint_B, failed_B, state["halved"]),
            "checkpoint_objective": torch.where(
                at_checkpoint_B, state["best_objective"], state["checkpoint_objective"]
            ),
            "num_increases": state["num_increases"].masked_fill(at_checkpoint_B, 0),
        }
        x = torch.where(restart, state["best"], state["x"])
        return x, torch.where(restart, state["best_grad"], grad), {**state, **checked}

    # ---------------------------------------------------- sparse threats (L1)

    def _sparse_start(self, ctx: StepContext) -> State:
        """Normal noise projected on the ball of the first phase."""
        x0 = ctx.x0
        eps = ctx.threat.eps * eps_phases(self.steps, self.use_larger_eps)[0][0]
        x = ctx.threat.with_eps(eps).sample_boundary(x0, ctx.rng)
        zero_B = torch.zeros(len(x0), device=x0.device, dtype=x0.dtype)
        values = x0[0].numel()
        support_B = _support(x, x0) if self.use_larger_eps else zero_B + values
        return {
            "x": x,
            "best": x,
            "best_grad": torch.zeros_like(x0),
            "best_objective": zero_B - torch.inf,
            "step_size": zero_B + eps,
            "share": support_B / values / _GROWTH if self.use_larger_eps else zero_B + _FIRST_SHARE,
            "support": support_B,
        }

    def _sparse_step(self, ctx: StepContext, state: State, objective_B: Tensor, grad: Tensor) -> State:
        """A sparse step, whose sparsity and length depend on the support of the best point."""
        threat, x, x0, values = ctx.threat, state["x"], ctx.x0, ctx.x0[0].numel()
        radii, checkpoint, phase_end = _sparse_tables(self.steps, self.use_larger_eps, x.device)
        eps_B, next_eps_B = (radii[ctx.step_B + ahead].to(x.dtype) * threat.eps for ahead in (0, 1))
        checkpoint_B, phase_end_B = checkpoint[ctx.step_B], phase_end[ctx.step_B]
        better_B = objective_B > state["best_objective"]
        better = per_image(better_B, x)
        best, best_grad = torch.where(better, x, state["best"]), torch.where(better, grad, state["best_grad"])
        best_objective_B = torch.where(better_B, objective_B.to(x.dtype), state["best_objective"])

        now_B = _support(best, x0)
        sparser_B = checkpoint_B & (now_B / state["support"].clamp_min(1) < _SPARSER)
        step_B = torch.where(sparser_B, eps_B, state["step_size"] / torch.where(checkpoint_B, _GROWTH, 1.0))
        step_B = step_B.maximum(_MIN_STEP * eps_B).minimum(eps_B)
        share_B = torch.where(checkpoint_B, now_B / values / _GROWTH, state["share"])
        support_B = torch.where(checkpoint_B, now_B, state["support"])
        restart = per_image(sparser_B, x)
        x, grad = torch.where(restart, best, x), torch.where(restart, best_grad, grad)
        new = threat.project_within(threat.sparse_step(x, grad, step_B, share_B), x0, eps_B)

        # the last iterate of a phase has just been evaluated: the next phase starts from the best one
        projected = threat.project_within(best, x0, next_eps_B) if self.use_larger_eps else best
        projected_support_B = _support(projected, x0)
        ends = per_image(phase_end_B, x)
        return {
            "x": torch.where(ends, projected, new),
            "best": torch.where(ends, projected, best),
            "best_grad": best_grad,
            "best_objective": best_objective_B.masked_fill(phase_end_B, -torch.inf),
            "step_size": torch.where(phase_end_B, next_eps_B, step_B),
            "share": torch.where(phase_end_B, projected_support_B / values / _GROWTH, share_B),
            "support": torch.where(phase_end_B, projected_support_B, support_B),
        }


def checkpoints(steps: int) -> list[int]:
    """The steps after which the step size may be halved: windows of 22%, then 3% less each time, at least 6%."""
    window, decrease, shortest = (max(int(share * steps), 1) for share in (0.22, 0.03, 0.06))
    after, positions = window, []
    while after <= steps:
        positions.append(after)
        window = max(window - decrease, shortest)
        after += window
    return positions


def eps_phases(steps: int, use_larger_eps: bool) -> list[tuple[int, int]]:
    """(multiple of eps, steps) of every phase of a search in a sparse threat."""
    if not use_larger_eps:
        return [(1, steps)]
    part = min(-(-3 * steps // 10), (steps - 1) // 2)
    return [(factor, count) for factor, count in ((3, part), (2, part), (1, steps - 2 * part)) if count > 0]


@lru_cache(maxsize=64)
def _windows(steps: int, device: torch.device) -> Tensor:
    """For every step the number of steps since the last checkpoint if it is one, else 0.

    Of ten steps, with checkpoints 2, 3, ..., 10: 0, 0, 2, 1, ..., 1, 0.
    """
    table = torch.zeros(steps + 2)
    for last, checkpoint in zip([0, *checkpoints(steps)], checkpoints(steps), strict=False):
        table[checkpoint] = checkpoint - last
    return table.to(device)


@lru_cache(maxsize=64)
def _sparse_tables(steps: int, use_larger_eps: bool, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For every step: the multiple of eps, whether it is a checkpoint, whether a phase ends."""
    radius: list[float] = []
    checkpoint: list[bool] = []
    phase_end: list[bool] = []
    phases = eps_phases(steps, use_larger_eps)
    for number, (factor, count) in enumerate(phases):
        every = max(int(0.04 * count), 1)
        radius += [float(factor)] * (count + 1)
        checkpoint += [step > 0 and step % every == 0 for step in range(count + 1)]
        phase_end += [False] * count + [number + 1 < len(phases)]
    radius.append(radius[-1])  # the last step reads one ahead
    return (
        torch.tensor(radius, device=device),
        torch.tensor([*checkpoint, False], device=device),
        torch.tensor([*phase_end, False], device=device),
    )


def _update_best(ctx: StepContext, state: State, objective_B: Tensor, grad: Tensor) -> State:
    """The state after evaluating `state["x"]`."""
    objective_B = objective_B.to(state["last_objective"].dtype)
    first_B, better_B = ctx.step_B == 0, objective_B > state["best_objective"]
    better = per_image(better_B, grad)
    best_objective_B = torch.where(better_B, objective_B, state["best_objective"])
    return {
        **state,
        "best": torch.where(better, state["x"], state["best"]),
        "best_grad": torch.where(better, grad, state["best_grad"]),
        "best_objective": best_objective_B,
        "checkpoint_objective": torch.where(first_B, best_objective_B, state["checkpoint_objective"]),
        "num_increases": state["num_increases"] + ((objective_B > state["last_objective"]) & ~first_B),
        "last_objective": objective_B,
    }


def _support(x: Tensor, x0: Tensor) -> Tensor:
    """[B] numbers of changed values."""
    return (x != x0).flatten(1).sum(1).to(x.dtype)
