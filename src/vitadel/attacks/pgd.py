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
from vitadel.attacks.oracle import Oracle
from vitadel.attacks.result import Flag
from vitadel.attacks.schedule import Schedule, constant
from vitadel.attacks.targets import few_targets, towards_each
from vitadel.attacks.walk import Answer, Items, State, Walk
from vitadel.draws import Draws
from vitadel.errors import UsageError
from vitadel.goals import Goal
from vitadel.losses import lead
from vitadel.numeric import Count, Positive, Range, check_ranges
from vitadel.threat import Threat, per_image


@dataclass(frozen=True, slots=True)
class PGD(Walk):
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

    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: Draws) -> Tensor:
        if self.targets:
            return Walk.search(self, model, x0, goal, threat, rng)
        if not self.keep_best:
            return self._climb(model, x0, goal, threat, rng.fold(0)).x
        best = _Best.of(x0)
        for restart in range(self.restarts):
            # an image that fell is not attacked again
            rows = (~best.reached_B).nonzero().squeeze(1) if restart else torch.arange(len(x0), device=x0.device)
            if len(rows) == 0:
                break
            best.take(rows, self._climb(model, x0[rows], goal.at(rows), threat, rng.fold(restart).at(rows)))
        return best.x

    def _climb(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: Draws) -> "_Best":
        step_size = self._step_size(threat)
        x = self._first(x0, threat, rng)
        best = _Best.of(x)
        for step in range(self.steps):
            gain_B, grad, z_BK = model.gradient(x, goal)
            if self.keep_best:
                best.offer(x, gain_B, goal.reached(z_BK))
            x = threat.project(threat.ascend(x, grad, step_size * self.schedule(step, self.steps)), x0)
        if not self.keep_best:
            return _Best(x, best.gain_B, best.reached_B)
        with torch.no_grad():
            z_BK = model(x)
        best.offer(x, goal.gain(z_BK), goal.reached(z_BK))
        return best

    def _first(self, x0: Tensor, threat: Threat, rng: Draws) -> Tensor:
        if not self.random_start:
            return x0
        if self.start_noise is None:
            return threat.sample(x0, rng)
        return threat.project(x0 + self.start_noise * rng.normal(*x0.shape[1:], dtype=x0.dtype), x0)

    def _step_size(self, threat: Threat) -> float:
        return 2.5 * threat.eps / self.steps if self.step_size is None else self.step_size

    def steps_in(self, threat: Threat) -> int:
        return self.steps + 1  # a step begins with a question, so the last point needs one more

    @property
    def waves(self) -> int:
        return self.restarts

    def aim(self, goal: Goal, rivals_BT: Tensor, classes: int) -> Sequence[Goal]:
        return towards_each(goal, rivals_BT, lead) if self.targets else [goal]

    def doubts(self, goal: Goal, classes: int) -> tuple[Flag, ...]:
        return few_targets(self.targets, classes)

    def start(self, model: Oracle, items: Items) -> State:
        x = self._first(items.x0, items.threat, items.rng)
        return {"x": x, "best": x, "gain_best": torch.full((len(x),), -torch.inf, device=x.device, dtype=x.dtype)}

    def step(self, model: Oracle, items: Items, state: State) -> tuple[Answer, State]:
        x, threat = state["x"], items.threat
        gain_B, grad, z_BK = model.gradient(x, items.goal)
        better_B = gain_B > state["gain_best"]
        step_B = self._step_size(threat) * _factors(self.schedule, self.steps, x.device)[items.step_B].to(x.dtype)
        moved = {
            "x": threat.project(threat.ascend(x, grad, step_B), items.x0),
            "best": torch.where(per_image(better_B, x), x, state["best"]),
            "gain_best": gain_B.to(x.dtype).maximum(state["gain_best"]),
        }
        return Answer(x, z_BK, grad), moved


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

    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: Draws) -> Tensor:
        x = threat.sample(x0, rng) if self.random_start else x0
        _, grad, _ = model.gradient(x, goal)
        return threat.ascend(x, grad, threat.eps if self.step_size is None else self.step_size)


@dataclass(slots=True)
class _Best:
    """Per image, the best candidate seen so far."""

    x: Tensor
    gain_B: Tensor
    reached_B: Tensor

    @classmethod
    def of(cls, x: Tensor) -> "_Best":
        worst_B = torch.full((len(x),), -torch.inf, device=x.device, dtype=x.dtype)
        return cls(x, worst_B, torch.zeros_like(worst_B, dtype=torch.bool))

    def offer(self, x: Tensor, gain_B: Tensor, reached_B: Tensor) -> None:
        more_B = (reached_B == self.reached_B) & (gain_B > self.gain_B)
        better_B = more_B | (reached_B & ~self.reached_B)
        self.x = torch.where(per_image(better_B, x), x, self.x)
        self.gain_B = torch.where(better_B, gain_B.to(self.gain_B.dtype), self.gain_B)
        self.reached_B = self.reached_B | reached_B

    def take(self, rows: Tensor, other: "_Best") -> None:
        """Offer the candidates of some of the images."""
        mine = _Best(self.x[rows], self.gain_B[rows], self.reached_B[rows])
        mine.offer(other.x, other.gain_B, other.reached_B)
        self.x = self.x.index_copy(0, rows, mine.x)
        self.gain_B = self.gain_B.index_copy(0, rows, mine.gain_B)
        self.reached_B = self.reached_B.index_copy(0, rows, mine.reached_B)
