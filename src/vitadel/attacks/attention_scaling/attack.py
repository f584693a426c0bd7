"""Attacks that learn from a rescaled model and are judged by the model itself.

Shape letters: B images.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from vitadel.attacks.attention_scaling.factor_search import Factors, Found, Scaling, find_factors
from vitadel.attacks.attention_scaling.rescaled_model import RescaledModel, tapped
from vitadel.attacks.autoattack import AutoAttack
from vitadel.attacks.base import Attack
from vitadel.attacks.engine.iterative import IterativeAttack, Query, State, StepContext
from vitadel.attacks.isolation import isolated
from vitadel.attacks.oracle import Model, Oracle
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.core.numeric import check_seed
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal, Untargeted
from vitadel.losses import Loss
from vitadel.threats import Threat


def rescaled(model: object, factors: Factors) -> RescaledModel:
    """The model with these factors on its attention and its logits."""
    return RescaledModel(tapped(model), factors.attentions, factors.logits)


@dataclass(frozen=True, slots=True)
class ScaledAttack(Attack):
    """`inner` on the rescaled model; what it ends with is judged on the model itself."""

    inner: Attack
    factors: Factors

    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> Tensor:
        with model.seen_through(partial(rescaled, factors=self.factors)):
            return self.inner.search(model, x0, goal, threat, rng)


@dataclass(frozen=True, slots=True)
class ScaledIterativeAttack(IterativeAttack):
    """The same step by step: every point on the way is shown to the model itself, and the first that fools it counts.

    A walk that stopped where it fools the rescaled model would stop too early, or never see that it has won.
    """

    inner: IterativeAttack
    factors: Factors

    def start(self, model: Oracle, items: StepContext) -> State:
        with model.seen_through(partial(rescaled, factors=self.factors)):
            return self.inner.start(model, items)

    def step(self, model: Oracle, items: StepContext, state: State) -> tuple[Query, State]:
        with model.seen_through(self._again):
            answer, moved = self.inner.step(model, items, state)
        with torch.no_grad():
            return replace(answer, z_BK=model(answer.x)), moved

    def _again(self, model: Model) -> Model:
        """What `start` has looked at once: every step would otherwise go through all weights."""
        return RescaledModel(model, self.factors.attentions, self.factors.logits)  # type: ignore[arg-type]

    def num_steps(self, threat: Threat) -> int:
        return self.inner.num_steps(threat)

    @property
    def num_restarts(self) -> int:
        return self.inner.num_restarts

    @property
    def may_leave_threat(self) -> bool:
        return self.inner.may_leave_threat

    @property
    def stops_at_success(self) -> bool:
        return self.inner.stops_at_success

    @property
    def targets(self) -> int:
        return self.inner.targets

    def num_branches(self, classes: int) -> int:
        return self.inner.num_branches(classes)

    def branch_goals(self, goal: Goal, others_BT: Tensor, classes: int) -> Sequence[Goal]:
        return self.inner.branch_goals(goal, others_BT, classes)

    def find_flags(self, goal: Goal, classes: int) -> tuple[Flag, ...]:
        return self.inner.find_flags(goal, classes)


def scaled(inner: Attack, factors: Factors) -> Attack:
    """`inner`, learning from the model with these factors."""
    if isinstance(inner, AutoAttack):
        raise UsageError("AutoAttack is scaled attack by attack. Write AAS(AutoAttack(), ...).")
    if isinstance(inner, IterativeAttack) and getattr(inner, "keep_best", True):
        return ScaledIterativeAttack(inner, factors)
    return ScaledAttack(inner, factors)


@dataclass(frozen=True, slots=True)
class AAS(Attack):
    """Adaptive attention scaling around `inner`: never weaker than it, since images it fells are not touched again.

    The images that `inner` leaves are attacked once more, by the same attack on the rescaled model, and scored on the
    model itself. Factors are those given, or found on the images at hand: on another batch, then, they are others;
    `prepared` finds them once.
    """

    inner: Attack
    scaling: Scaling = field(default_factory=Scaling)
    factors: Factors | None = None

    def prepared(self, model: object, x: Tensor, y: Tensor, threat: Threat, *, seed: int = 0) -> tuple["AAS", Found]:
        """The same attack with factors found on these images, and how they were found."""
        found = search_factors(model, x, y, threat, self.scaling, seed=seed)
        return replace(self, factors=found.best), found

    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> Tensor:
        factors = self.factors or self._found_here(model, x0, goal, threat)
        x = threat.project(self.inner.search(model, x0, goal, threat, rng).detach(), x0)
        for number, (attack, loss) in enumerate(self._parts(threat)):
            with torch.no_grad():
                rows = (~goal.success(model(x))).nonzero().squeeze(1)
            if len(rows) == 0:
                break
            own = goal.at(rows) if loss is None else Untargeted(_untargeted(goal).label_B[rows], loss)
            found = scaled(attack, factors).search(model, x0[rows], own, threat, rng.at(rows).fold(number))
            x[rows] = threat.project(found.detach(), x0[rows])
        return x

    def _parts(self, threat: Threat) -> list[tuple[Attack, Loss | None]]:
        """What is attacked with once more, and the loss each climbs if it is not the goal's own."""
        if isinstance(self.inner, AutoAttack):
            return [(stage.attack, stage.loss) for stage in self.inner.stages(threat)]
        return [(self.inner, None)]

    def _found_here(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat) -> Factors:
        return search_factors(model.model, x0, _untargeted(goal).label_B, threat, self.scaling).best


def search_factors(
    model: object, x: Tensor, y: Tensor, threat: Threat, scaling: Scaling | None = None, *, seed: int = 0
) -> Found:
    """Factors for attacks inside `threat`: candidates are tried by a short attack, judged by the model itself."""
    check_seed(seed)
    chosen = scaling or Scaling()
    held_x, held_y = x[: chosen.held], y[: chosen.held]
    goal = Untargeted(held_y, type(chosen.probe).default_loss)
    with isolated(model, seed, x.device), torch.no_grad():
        right_B = ~goal.success(tapped(model)(held_x))
    forwards, backwards = len(held_x), 0

    def trial(factors: Factors) -> tuple[int, int]:
        nonlocal forwards, backwards
        result = scaled(chosen.probe, factors)(model, held_x, goal, threat, seed=seed)  # type: ignore[arg-type]
        forwards, backwards = forwards + result.forwards, backwards + result.backwards
        return int((result.success & right_B).sum()), int(right_B.sum())

    wanted = chosen.keep == "felled" or bool(chosen.grid)
    found = find_factors(model, x, y, chosen, trial=trial if wanted else None, seed=seed)
    return replace(found, forwards=found.forwards + forwards, backwards=found.backwards + backwards)


def _untargeted(goal: Goal) -> Untargeted:
    if not isinstance(goal, Untargeted):
        raise UsageError(f"AAS wants an Untargeted goal here, got {type(goal).__name__}.")
    return goal
