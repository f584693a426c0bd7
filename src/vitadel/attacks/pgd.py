"""Projected gradient descent, and schedules of its step size.

Shape letters: B images, K classes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated

import torch
from torch import Tensor

from vitadel.attacks.base import Attack
from vitadel.attacks.engine.iterative import IterativeAttack, Query, State, StepContext
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Positive, Range, Steps
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal
from vitadel.threats import Threat, per_image

# (step, steps) -> the factor in (0, 1] by which the step size is multiplied
Schedule = Callable[[int, int], float]


def constant(step: int, steps: int) -> float:
    """The same step size throughout."""
    return 1.0


def linear(step: int, steps: int) -> float:
    """Linear decay; the last factor is 1/steps."""
    return 1 - step / steps


def cosine(step: int, steps: int) -> float:
    """Cosine annealing."""
    return (1 + math.cos(math.pi * step / steps)) / 2


SCHEDULES: dict[str, Schedule] = {"constant": constant, "linear": linear, "cosine": cosine}


@dataclass(frozen=True, slots=True)
class PGD(IterativeAttack):
    """PGD (Madry et al. 2018, arXiv:1706.06083): steps along the gradient, each projected back into the threat.

    Reference implementations return the last iterate. This one returns the best one per image: an adversarial example
    if there is one, or else the iterate with the highest objective.

    Args:
        steps: The number of gradient steps.
        step_size: The length of a step in the threat's norm; by default 2.5 eps / steps, as in Madry's code.
        random_start: Start at a random point of the threat rather than at the image.
        start_noise: Standard deviation of a normal random start, as in TRADES (0.001); by default the start is uniform.
        restarts: How often an image that remains robust is attacked, from other random starts.
        schedule: Factors for the step size: `constant`, `linear` or `cosine`.
        keep_best: Return the best iterate; False returns the last one, which saves a forward pass in training.
        targets: Multi-targeted PGD (Gowal et al. 2019, arXiv:1910.09338): one search per target class, for this many
            classes with the largest clean logits; 0 for none.

    Raises:
        UsageError: If a setting is out of range, or restarts or targets have no effect.

    Example:
        >>> result = PGD(steps=40, restarts=5)(model, x, y, "linf:8/255")
        >>> result.x_adv, result.success
    """

    steps: Steps = 20
    step_size: Annotated[float, Range(gt=0, hint="Leave it out for 2.5 eps / steps.")] | None = None
    random_start: bool = True
    start_noise: Positive | None = None
    restarts: Steps = 1
    schedule: Schedule = constant
    keep_best: bool = True
    targets: Annotated[int, Range(ge=0, hint="0 attacks without targets.")] = 0

    def __post_init__(self) -> None:
        Attack.__post_init__(self)
        if self.start_noise is not None and not self.random_start:
            raise UsageError(f"PGD.start_noise of {self.start_noise:g} needs random_start. Leave one of them out.")
        if self.restarts > 1 and not (self.random_start and self.keep_best):
            raise UsageError(
                "PGD.restarts repeat the same search unless random_start and keep_best are on. Write restarts=1."
            )
        if self.targets and not self.keep_best:
            raise UsageError(
                "PGD.targets need keep_best: of several searches one has to be chosen. Write keep_best=True."
            )

    @property
    def uses_engine(self) -> bool:
        return self.keep_best

    def num_steps(self, threat: Threat) -> int:
        return self.steps + 1  # a step evaluates the model first, so the last iterate needs one more

    def start(self, model: Oracle, ctx: StepContext) -> State:
        x = self._first_iterate(ctx)
        return {"x": x, "best": x, "best_objective": torch.full((len(x),), -torch.inf, device=x.device, dtype=x.dtype)}

    def step(self, model: Oracle, ctx: StepContext, state: State) -> tuple[Query, State]:
        x = state["x"]
        step_B = self._step_size(ctx.threat) * _factors(self.schedule, self.steps, x.device)[ctx.step_B].to(x.dtype)
        objective_B, query, x_new = self._gradient_step(model, ctx, x, step_B)
        better_B = objective_B > state["best_objective"]
        best_objective_B = objective_B.to(x.dtype).maximum(state["best_objective"])
        best = torch.where(per_image(better_B, x), x, state["best"])
        return query, {"x": x_new, "best": best, "best_objective": best_objective_B}

    def _gradient_step(
        self, model: Oracle, ctx: StepContext, x: Tensor, step: float | Tensor
    ) -> tuple[Tensor, Query, Tensor]:
        """The objective at `x`, the query, and the next iterate."""
        objective_B, grad, z_BK = model.gradient(x, ctx.goal)
        return objective_B, Query(x, z_BK, grad), ctx.threat.project(ctx.threat.ascend(x, grad, step), ctx.x0)

    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> Tensor:
        """All images of a batch together, without early stopping: for training, and for a call on a batch."""
        if self.targets:
            return IterativeAttack.search(self, model, x0, goal, threat, rng)
        every_B = torch.arange(len(x0), device=x0.device)
        if not self.keep_best:
            return self._search(model, x0, goal, threat, rng.fold(0)).x
        best = _Best.of(x0)
        for restart in range(self.restarts):
            index_B = every_B[~best.success_B] if restart else every_B
            if len(index_B) == 0:
                break
            result = self._search(model, x0[index_B], goal.at(index_B), threat, rng.fold(restart).at(index_B))
            best.update(result, index_B)
        return best.x

    def _search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> "_Best":
        """All steps from one start; the best iterate, or the last one without `keep_best`."""
        zero_B = torch.zeros(len(x0), dtype=torch.int64, device=x0.device)
        ctx = StepContext(x0, goal, threat, rng, zero_B, zero_B)
        x, step_size = self._first_iterate(ctx), self._step_size(threat)
        best = _Best.of(x)
        for step in range(self.steps):
            factor = self.schedule(step, self.steps)
            now = replace(ctx, step_B=zero_B + step)
            objective_B, query, x_new = self._gradient_step(model, now, x, step_size * factor)
            if self.keep_best:
                best.update(_Best(x, objective_B, goal.success(query.z_BK)))
            x = x_new
        if not self.keep_best:
            return replace(best, x=x)
        with torch.no_grad():
            z_BK = model(x)
        best.update(_Best(x, goal.objective(z_BK), goal.success(z_BK)))
        return best

    def _first_iterate(self, ctx: StepContext) -> Tensor:
        x0 = ctx.x0
        if not self.random_start:
            return x0
        if self.start_noise is None:
            return ctx.threat.sample(x0, ctx.rng)
        return ctx.threat.project(x0 + self.start_noise * ctx.rng.normal(*x0.shape[1:], dtype=x0.dtype), x0)

    def _step_size(self, threat: Threat) -> float:
        return 2.5 * threat.eps / self.steps if self.step_size is None else self.step_size


@lru_cache(maxsize=64)
def _factors(schedule: Schedule, steps: int, device: torch.device) -> Tensor:
    # zeros, because no step follows the last evaluation
    return torch.tensor([*(schedule(step, steps) for step in range(steps)), 0.0, 0.0], device=device)


@dataclass(slots=True)
class _Best:
    """Per image the best iterate so far: a success if there is one, else the highest objective."""

    x: Tensor
    objective_B: Tensor
    success_B: Tensor

    @classmethod
    def of(cls, x: Tensor) -> "_Best":
        worst_B = torch.full((len(x),), -torch.inf, device=x.device, dtype=x.dtype)
        return cls(x, worst_B, torch.zeros_like(worst_B, dtype=torch.bool))

    def update(self, other: "_Best", index_B: Tensor | None = None) -> None:
        """Replace iterates by better ones of `other`, whose rows are the images `index_B` of this one."""
        if index_B is not None:
            part = _Best(self.x[index_B], self.objective_B[index_B], self.success_B[index_B])
            part.update(other)
            self.x = self.x.index_copy(0, index_B, part.x)
            self.objective_B = self.objective_B.index_copy(0, index_B, part.objective_B)
            self.success_B = self.success_B.index_copy(0, index_B, part.success_B)
            return
        higher_B = (other.success_B == self.success_B) & (other.objective_B > self.objective_B)
        better_B = higher_B | (other.success_B & ~self.success_B)
        self.x = torch.where(per_image(better_B, other.x), other.x, self.x)
        self.objective_B = torch.where(better_B, other.objective_B.to(self.objective_B.dtype), self.objective_B)
        self.success_B = self.success_B | other.success_B
