"""Adaptive attention scaling as an attack: gradients of a rescaled model, success on the model itself.

Shape letters: B images.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from vitadel.attacks.attention_scaling.config import Factors, Scaling
from vitadel.attacks.attention_scaling.factor_search import FactorSearchResult, maximize_factors
from vitadel.attacks.attention_scaling.rescaled_model import RescaledModel, logit_scaling_flags, require_taps
from vitadel.attacks.autoattack import AutoAttack
from vitadel.attacks.base import Attack
from vitadel.attacks.engine.iterative import IterativeAttack, Query, State, StepContext
from vitadel.attacks.isolation import isolated
from vitadel.attacks.oracle import Model, Oracle
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.core.numeric import check_seed
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal, Untargeted, require_untargeted
from vitadel.losses import Loss
from vitadel.threats import Threat


def rescale_model(model: object, factors: Factors) -> RescaledModel:
    """The model with its attention and logits multiplied by factors.

    Raises:
        UsageError: If the model has no taps, is compiled, or computes in half precision.
    """
    return RescaledModel(require_taps(model), factors.attentions, factors.logits)


@dataclass(frozen=True, slots=True)
class RescaledAttack(Attack):
    """`inner` on the rescaled model; its result is judged on the model itself."""

    inner: Attack
    factors: Factors

    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> Tensor:
        with model.with_model(partial(rescale_model, factors=self.factors)):
            return self.inner.search(model, x0, goal, threat, rng)


@dataclass(frozen=True, slots=True)
class RescaledIterativeAttack(IterativeAttack):
    """An iterative attack on the rescaled model; every iterate is judged on the model itself.

    A search that stopped where the rescaled model is fooled would stop too early, or miss a success.
    """

    inner: IterativeAttack
    factors: Factors

    def start(self, model: Oracle, ctx: StepContext) -> State:
        with model.with_model(partial(rescale_model, factors=self.factors)):
            return self.inner.start(model, ctx)

    def step(self, model: Oracle, ctx: StepContext, state: State) -> tuple[Query, State]:
        with model.with_model(self._rescaled_again):
            query, new_state = self.inner.step(model, ctx, state)
        with torch.no_grad():
            return replace(query, z_BK=model(query.x)), new_state

    def _rescaled_again(self, model: Model) -> Model:
        """As `rescale_model`, but without its checks, which `start` has made: they read all weights."""
        return RescaledModel(model, self.factors.attentions, self.factors.logits)  # type: ignore[arg-type]

    def num_steps(self, threat: Threat) -> int:
        return self.inner.num_steps(threat)

    @property
    def restarts(self) -> int:
        return self.inner.restarts

    @property
    def may_leave_threat(self) -> bool:
        return self.inner.may_leave_threat

    @property
    def stops_at_success(self) -> bool:
        return self.inner.stops_at_success

    @property
    def targets(self) -> int:
        return self.inner.targets

    def num_branches(self, num_classes: int) -> int:
        return self.inner.num_branches(num_classes)

    def branch_goals(self, goal: Goal, others_BT: Tensor, num_classes: int) -> Sequence[Goal]:
        return self.inner.branch_goals(goal, others_BT, num_classes)

    def find_flags(self, goal: Goal, num_classes: int) -> tuple[Flag, ...]:
        return self.inner.find_flags(goal, num_classes)


def rescale_attack(inner: Attack, factors: Factors) -> Attack:
    """`inner` with the gradients of the model rescaled by factors.

    Raises:
        UsageError: If `inner` is AutoAttack, whose attacks are rescaled one by one.
    """
    if isinstance(inner, AutoAttack):
        raise UsageError("AutoAttack is scaled attack by attack. Write AAS(AutoAttack(), ...).")
    if isinstance(inner, IterativeAttack) and inner.uses_engine:
        return RescaledIterativeAttack(inner, factors)
    return RescaledAttack(inner, factors)


@dataclass(frozen=True, slots=True)
class AAS(Attack):
    """Adaptive attention scaling (Jain & Dutta 2024) around an attack; never weaker than it.

    Images that remain robust are attacked once more, with gradients of a model whose attention scores are rescaled;
    success is judged on the model itself. For a network without attention, the logits are scaled, and the result is
    flagged `logit-scaling`.

    Args:
        inner: The attack.
        scaling: How factors are searched, on the attacked images.
        factors: The factors, if known; see `prepared`.

    Raises:
        UsageError: If the model has no taps, is compiled or computes in half precision, or the goal is not untargeted.

    Example:
        >>> result = AAS(PGD(steps=20))(model, x, y, "linf:8/255")
    """

    inner: Attack
    scaling: Scaling = field(default_factory=Scaling)
    factors: Factors | None = None

    def prepared(
        self, model: object, x: Tensor, y: Tensor, threat: Threat, *, seed: int = 0
    ) -> tuple["AAS", FactorSearchResult]:
        """The same attack with factors searched once, on these images, and the result of that search."""
        result = find_attack_factors(model, x, y, threat, self.scaling, seed=seed)
        return replace(self, factors=result.best), result

    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> Tensor:
        factors = self.factors or self._search_factors(model, x0, goal, threat)
        x = threat.project(self.inner.search(model, x0, goal, threat, rng).detach(), x0)
        for number, (attack, loss) in enumerate(self._attacks(threat)):
            with torch.no_grad():
                index_B = (~goal.success(model(x))).nonzero().squeeze(1)
            if len(index_B) == 0:
                break
            goal_left = (
                goal.at(index_B) if loss is None else Untargeted(require_untargeted(goal, "AAS").label_B[index_B], loss)
            )
            candidate = rescale_attack(attack, factors).search(
                model, x0[index_B], goal_left, threat, rng.at(index_B).fold(number)
            )
            x[index_B] = threat.project(candidate.detach(), x0[index_B])
        return x

    @property
    def goal_loss(self) -> Loss:
        return self.inner.goal_loss

    @property
    def has_own_objective(self) -> bool:
        return self.inner.has_own_objective

    def model_flags(self, model: object) -> tuple[Flag, ...]:
        return logit_scaling_flags(require_taps(model))

    def _attacks(self, threat: Threat) -> list[tuple[Attack, Loss | None]]:
        """The attacks on the rescaled model, each with the loss it maximizes if it is not the goal's."""
        if isinstance(self.inner, AutoAttack):
            return [(stage.attack, stage.loss) for stage in self.inner.stages(threat)]
        return [(self.inner, None)]

    def _search_factors(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat) -> Factors:
        return find_attack_factors(model.model, x0, require_untargeted(goal, "AAS").label_B, threat, self.scaling).best


def find_attack_factors(
    model: object, x: Tensor, y: Tensor, threat: Threat, scaling: Scaling | None = None, *, seed: int = 0
) -> FactorSearchResult:
    """Search factors for attacks in a threat: a short attack tries each candidate, judged on the model itself.

    Args:
        model: The model, with taps.
        x: [B, C, H, W] the images.
        y: [B] their labels.
        threat: The threat model.
        scaling: How to search.
        seed: Seed of the search.
    """
    check_seed(seed)
    chosen = scaling or Scaling()
    trial_x, trial_y = x[: chosen.trial_images], y[: chosen.trial_images]
    goal = Untargeted(trial_y, chosen.trial_attack.goal_loss)
    with isolated(model, seed, x.device), torch.no_grad():
        correct_B = ~goal.success(require_taps(model)(trial_x))
    forwards, backwards = len(trial_x), 0

    def trial(factors: Factors) -> tuple[int, int]:
        nonlocal forwards, backwards
        result = rescale_attack(chosen.trial_attack, factors)(model, trial_x, goal, threat, seed=seed)  # type: ignore[arg-type]
        forwards, backwards = forwards + result.forwards, backwards + result.backwards
        return int((result.success & correct_B).sum()), int(correct_B.sum())

    by_trial = chosen.keep == "broken" or bool(chosen.grid) or not require_taps(model).taps.attentions()
    search = maximize_factors(model, x, y, chosen, trial=trial if by_trial else None, seed=seed)
    return replace(search, forwards=search.forwards + forwards, backwards=search.backwards + backwards)
