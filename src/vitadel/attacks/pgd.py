"""Projected gradient ascent, and its one-step ancestor.

Shape letters: B images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import torch
from torch import Tensor

from vitadel.attacks.base import Attack
from vitadel.attacks.engine.iterative import IterativeAttack, Query, State, StepContext
from vitadel.attacks.oracle import Oracle
from vitadel.attacks.step_schedules import Schedule, constant
from vitadel.attacks.targets import few_targets, toward_each
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.core.numeric import Count, Positive, Range, check_ranges
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal
from vitadel.losses import logit_difference
from vitadel.threats import Threat, per_image


@dataclass(frozen=True, slots=True)
class PGD(IterativeAttack):
    """Projected gradient ascent (Madry et al. 2018, arXiv:1706.06083); keeps, per image, the best iterate.

    Best means: reaches the goal, and among those that do (or do not), gains most. `step_size` defaults to
    2.5 eps / steps, which crosses the threat with some steps to spare. A random start is anywhere in the threat; with
    `start_noise` it is normal noise of that deviation, as often in TRADES. With `keep_best=False` the last iterate is
    returned unjudged, one forward cheaper: what training wants.

    With `targets`, the attack is multi-targeted (Gowal et al. 2019, arXiv:1910.09338): one search per rival of the
    label, each climbing that rival's lead. Such searches, and every search in an evaluation, end at the first success.
    """

    steps: Count = 20
    step_size: Annotated[float, Range(gt=0, hint="Leave it out for 2.5 eps / steps.")] | None = None
    random_start: bool = True
    start_noise: Positive | None = None
    restarts: Count = 1
    schedule: Schedule = constant
    keep_best: bool = True
    targets: Annotated[int, Range(ge=0, hint="0 attacks without targets.")] = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.start_noise is not None and not self.random_start:
            raise UsageError(f"PGD.start_noise of {self.start_noise:g} needs random_start. Leave one of them out.")
        if self.restarts > 1 and not (self.random_start and self.keep_best):
            raise UsageError("PGD.restarts repeat the same search unless random_start and keep_best are on.")
        if self.targets and not self.keep_best:
            raise UsageError("PGD.targets need keep_best: of several searches one has to be chosen.")

    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> Tensor:
        if self.targets:
            return IterativeAttack.search(self, model, x0, goal, threat, rng)
        if not self.keep_best:
            return self._maximize(model, x0, goal, threat, rng.fold(0)).x
        best = _Best.of(x0)
        for restart in range(self.restarts):
            # an image that fell is not attacked again
            rows = (~best.success_B).nonzero().squeeze(1) if restart else torch.arange(len(x0), device=x0.device)
            if len(rows) == 0:
                break
            best.take(rows, self._maximize(model, x0[rows], goal.at(rows), threat, rng.fold(restart).at(rows)))
        return best.x

    def _maximize(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> "_Best":
        step_size = self._step_size(threat)
        x = self._first(x0, threat, rng)
        best = _Best.of(x)
        for step in range(self.steps):
            objective_B, grad, z_BK = model.gradient(x, goal)
            if self.keep_best:
                best.offer(x, objective_B, goal.success(z_BK))
            x = threat.project(threat.ascend(x, grad, step_size * self.schedule(step, self.steps)), x0)
        if not self.keep_best:
            return _Best(x, best.objective_B, best.success_B)
        with torch.no_grad():
            z_BK = model(x)
        best.offer(x, goal.objective(z_BK), goal.success(z_BK))
        return best

    def _first(self, x0: Tensor, threat: Threat, rng: RandomStreams) -> Tensor:
        if not self.random_start:
            return x0
        if self.start_noise is None:
            return threat.sample(x0, rng)
        return threat.project(x0 + self.start_noise * rng.normal(*x0.shape[1:], dtype=x0.dtype), x0)

    def _step_size(self, threat: Threat) -> float:
        return 2.5 * threat.eps / self.steps if self.step_size is None else self.step_size

    def num_steps(self, threat: Threat) -> int:
        return self.steps + 1  # a step begins with a question, so the last point needs one more

    @property
    def num_restarts(self) -> int:
        return self.restarts

    def branch_goals(self, goal: Goal, others_BT: Tensor, classes: int) -> Sequence[Goal]:
        return toward_each(goal, others_BT, logit_difference) if self.targets else [goal]

    def find_flags(self, goal: Goal, classes: int) -> tuple[Flag, ...]:
        return few_targets(self.targets, classes)

    def start(self, model: Oracle, items: StepContext) -> State:
        x = self._first(items.x0, items.threat, items.rng)
        return {"x": x, "best": x, "gain_best": torch.full((len(x),), -torch.inf, device=x.device, dtype=x.dtype)}

    def step(self, model: Oracle, items: StepContext, state: State) -> tuple[Query, State]:
        x, threat = state["x"], items.threat
        objective_B, grad, z_BK = model.gradient(x, items.goal)
        better_B = objective_B > state["gain_best"]
        step_B = self._step_size(threat) * _factors(self.schedule, self.steps, x.device)[items.step_B].to(x.dtype)
        moved = {
            "x": threat.project(threat.ascend(x, grad, step_B), items.x0),
            "best": torch.where(per_image(better_B, x), x, state["best"]),
            "gain_best": objective_B.to(x.dtype).maximum(state["gain_best"]),
        }
        return Query(x, z_BK, grad), moved


@lru_cache(maxsize=64)
def _factors(schedule: Schedule, steps: int, device: torch.device) -> Tensor:
    # the last point is asked about, but nobody goes on from it
    return torch.tensor([*(schedule(step, steps) for step in range(steps)), 0.0, 0.0], device=device)


@dataclass(frozen=True, slots=True)
class FGSM(Attack):
    """One step along the sign of the gradient (Goodfellow et al. 2015, arXiv:1412.6572).

    With `random_start`, the step sets out from a random image of the threat (Wong et al. 2020, arXiv:2001.03994).
    `step_size` defaults to eps, so that without a random start the step ends on the edge.
    """

    step_size: Annotated[float, Range(gt=0, hint="Leave it out for eps.")] | None = None
    random_start: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)

    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> Tensor:
        x = threat.sample(x0, rng) if self.random_start else x0
        _, grad, _ = model.gradient(x, goal)
        return threat.ascend(x, grad, threat.eps if self.step_size is None else self.step_size)


@dataclass(slots=True)
class _Best:
    """Per image, the best candidate seen so far."""

    x: Tensor
    objective_B: Tensor
    success_B: Tensor

    @classmethod
    def of(cls, x: Tensor) -> "_Best":
        worst_B = torch.full((len(x),), -torch.inf, device=x.device, dtype=x.dtype)
        return cls(x, worst_B, torch.zeros_like(worst_B, dtype=torch.bool))

    def offer(self, x: Tensor, objective_B: Tensor, success_B: Tensor) -> None:
        more_B = (success_B == self.success_B) & (objective_B > self.objective_B)
        better_B = more_B | (success_B & ~self.success_B)
        self.x = torch.where(per_image(better_B, x), x, self.x)
        self.objective_B = torch.where(better_B, objective_B.to(self.objective_B.dtype), self.objective_B)
        self.success_B = self.success_B | success_B

    def take(self, rows: Tensor, other: "_Best") -> None:
        """Offer the candidates of some of the images."""
        mine = _Best(self.x[rows], self.objective_B[rows], self.success_B[rows])
        mine.offer(other.x, other.objective_B, other.success_B)
        self.x = self.x.index_copy(0, rows, mine.x)
        self.objective_B = self.objective_B.index_copy(0, rows, mine.objective_B)
        self.success_B = self.success_B.index_copy(0, rows, mine.success_B)
