"""What objectives with an adversary inside have in common: its attack, its threat, and how both grow."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

from torch import Tensor, nn

from vitadel.attacks import Attack
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range, check_ranges
from vitadel.goals import Goal
from vitadel.objectives.base import Objective, Smoothing, undistributed
from vitadel.objectives.schedule import ScheduleUnit, TrainingTime
from vitadel.threats import Threat, with_eps

_SHARE_OF_TRAINING = "It is a share of training, such as 10/110 for 10 of 110 epochs."
WarmUp = Annotated[float, Range(ge=0, le=1, hint=_SHARE_OF_TRAINING)]


@dataclass(frozen=True, slots=True)
class AdversarialObjective(Objective):
    """The inner maximum: what `attack` finds inside `threat`, with the weights frozen and the model in evaluation mode.

    Over the first `eps_warmup` of training the threat's radius grows from nothing: small ViTs never leave chance level
    if the full threat meets them untrained. The attack's own step size grows over `step_warmup` and its number of steps
    over `steps_warmup`, whatever the radius does; by default they are full from the start. `each` says whether all
    three grow with every update or, as in the thesis, with every epoch; an epoch at radius 0 is a clean one. An attack
    of None leaves the images alone.
    """

    attack: Attack | None
    threat: Threat
    smoothing: Smoothing = 0.0
    eps_warmup: WarmUp = 0.0
    step_warmup: WarmUp = 0.0
    steps_warmup: WarmUp = 0.0
    each: ScheduleUnit = ScheduleUnit.STEP

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.step_warmup and getattr(self.attack, "step_size", None) is None:
            raise UsageError(f"{type(self).__name__}.step_warmup needs an attack whose step_size is set.")
        if self.steps_warmup and not hasattr(self.attack, "steps"):
            raise UsageError(f"{type(self).__name__}.steps_warmup needs an attack with steps.")

    @property
    def passes(self) -> float:
        """A step of the attack is a forward pass and one back to the pixels."""
        steps = 0 if self.attack is None else getattr(self.attack, "steps", 1)
        return 2.0 * steps + self.loss_passes

    def at(self, moment: TrainingTime) -> Self:
        size, step, steps = (
            moment.grown(share, self.each) for share in (self.eps_warmup, self.step_warmup, self.steps_warmup)
        )
        if size == 1 and step == 1 and steps == 1:
            return self
        if size == 0 or step == 0 or self.attack is None:
            return replace(self, attack=None, step_warmup=0.0, steps_warmup=0.0)
        changed: dict[str, Any] = {}
        if step < 1:
            changed["step_size"] = getattr(self.attack, "step_size") * step  # noqa: B009 - not every attack has one
        if steps < 1:
            changed["steps"] = max(1, round(getattr(self.attack, "steps") * steps))  # noqa: B009
        attack = replace(self.attack, **changed) if changed else self.attack  # type: ignore[type-var]
        return replace(self, attack=attack, threat=with_eps(self.threat, self.threat.eps * size))

    def found(self, model: nn.Module, x: Tensor, goal: Goal, seed: int, index_B: Tensor | None) -> Tensor:
        """The worst images the attack finds; on one device at a time, since no weight gradients are made."""
        if self.attack is None:
            return x
        return self.attack.craft(undistributed(model), x, goal, self.threat, seed=seed, index_B=index_B)
