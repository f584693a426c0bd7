"""Adversarial training, and the base class of all objectives with an attack."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

from torch import Tensor, nn

from vitadel.attacks import Attack
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range, check_ranges
from vitadel.goals import Goal, Untargeted, as_goal
from vitadel.losses import cross_entropy
from vitadel.objectives.base import (
    Examples,
    LossOutput,
    Objective,
    ScheduleUnit,
    Smoothing,
    TrainingTime,
    batch_accuracy,
    hard_labels,
    soft_targets,
    unwrapped,
)
from vitadel.threats import Threat

WarmUp = Annotated[float, Range(ge=0, le=1, hint="It is a share of training, such as 10/110 for 10 of 110 epochs.")]


@dataclass(frozen=True, slots=True)
class AdversarialObjective(Objective):
    """An objective with an attack: the inner maximization, with frozen weights and the model in evaluation mode.

    Small ViTs do not learn if adversarial training starts at the full radius, so radius, step size and number of steps
    each have a warm-up.

    Args:
        attack: Makes the adversarial examples; None for clean images.
        threat: The threat model.
        smoothing: Label smoothing of the cross-entropy.
        eps_warmup: The share of training over which the radius grows from 0.
        step_warmup: The same for the step size of the attack.
        steps_warmup: The same for the number of its steps.
        warmup_unit: Whether these grow with every update or with every epoch; an epoch at radius 0 is a clean one.
    """

    former_names: ClassVar[dict[str, str]] = {"each": "warmup_unit"}

    attack: Attack | None
    threat: Threat
    smoothing: Smoothing = 0.0
    eps_warmup: WarmUp = 0.0
    step_warmup: WarmUp = 0.0
    steps_warmup: WarmUp = 0.0
    warmup_unit: ScheduleUnit = ScheduleUnit.STEP

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.step_warmup and getattr(self.attack, "step_size", None) is None:
            raise UsageError(
                f"{type(self).__name__}.step_warmup needs an attack whose step_size is set. Set it, or step_warmup=0."
            )
        if self.steps_warmup and not hasattr(self.attack, "steps"):
            raise UsageError(f"{type(self).__name__}.steps_warmup needs an attack with steps. Write steps_warmup=0.")

    @property
    def passes(self) -> float:
        """A step of the attack is a forward pass and a backward pass to the pixels."""
        steps = 0 if self.attack is None else getattr(self.attack, "steps", 1)
        return 2.0 * steps + self.loss_passes

    def at(self, time: TrainingTime) -> Self:
        eps, step, steps = (
            time.warmup(share, self.warmup_unit) for share in (self.eps_warmup, self.step_warmup, self.steps_warmup)
        )
        if eps == 1 and step == 1 and steps == 1:
            return self
        if eps == 0 or step == 0 or self.attack is None:
            return replace(self, attack=None, step_warmup=0.0, steps_warmup=0.0)
        changed: dict[str, Any] = {}
        if step < 1:
            changed["step_size"] = getattr(self.attack, "step_size") * step  # noqa: B009 - not every attack has one
        if steps < 1:
            changed["steps"] = max(1, round(getattr(self.attack, "steps") * steps))  # noqa: B009
        attack = replace(self.attack, **changed) if changed else self.attack  # type: ignore[type-var]
        return replace(self, attack=attack, threat=self.threat.with_eps(self.threat.eps * eps))

    def adversarial_examples(
        self, model: nn.Module, x: Tensor, goal: Goal, seed: int, index_B: Tensor | None
    ) -> Tensor:
        """The attack's images for `goal`; each process attacks its own images, without communication."""
        if self.attack is None:
            return x
        return self.attack.craft(unwrapped(model), x, goal, self.threat, seed=seed, index_B=index_B)

    def untargeted_examples(
        self, model: nn.Module, x: Tensor, y: Tensor, seed: int, index_B: Tensor | None
    ) -> Examples:
        """The batch with untargeted adversarial examples; of soft targets, the most probable class is the label."""
        goal = Untargeted(hard_labels(y)) if self.attack is None else as_goal(hard_labels(y), self.attack.goal_loss)
        x_adv = self.adversarial_examples(model, x, goal, seed, index_B)
        return Examples(x, y, x_adv)

    def cross_entropy(self, z_BK: Tensor, y: Tensor) -> Tensor:
        """The mean cross-entropy with the smoothed targets."""
        return cross_entropy(z_BK, soft_targets(y, z_BK.shape[1], self.smoothing)).mean()


@dataclass(frozen=True, slots=True)
class Adversarial(AdversarialObjective):
    r"""Adversarial training (Madry et al. 2018, arXiv:1706.06083).

    .. math:: \min_\theta \; \mathbb{E} \max_{x' \in S(x)} \mathrm{CE}(f_\theta(x'), y)

    :math:`S` is ``threat``. There is no forward pass on clean images: with k attack steps an image costs 2k + 3 forward
    passes.

    Example:
        >>> objective = Adversarial(PGD(steps=10, keep_best=False), Linf(8 / 255))
    """

    @property
    def capturable(self) -> bool:
        return True

    @property
    def loss_passes(self) -> float:
        return 3.0

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        return self.untargeted_examples(model, x, y, seed, index_B)

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        z_BK = model(examples.x_adv).float()
        loss = self.cross_entropy(z_BK, examples.y)
        return LossOutput(loss, {"adversarial_accuracy": batch_accuracy(z_BK, examples.y)})
