"""An attack with what it maximizes: the unit that suites and AutoAttack are lists of."""

from dataclasses import dataclass

from vitadel.attacks.base import Attack
from vitadel.core.errors import UsageError
from vitadel.goals import Target
from vitadel.losses import Loss, kl_divergence


@dataclass(frozen=True, slots=True)
class NamedAttack:
    """An attack of a suite.

    Args:
        name: What tables and records call it; it also seeds the random numbers.
        attack: The attack.
        loss: The loss that it maximizes, by default the attack's own; one with `targets` ignores it. With
            `kl_divergence`, the reference is the prediction on the clean image.
        target: Chooses the class that it aims for from the clean logits; untargeted if not given.

    Raises:
        UsageError: If the loss takes no target and one is given.

    Example:
        >>> robustness(model, x, y, "linf:8/255", suite=NamedAttack("pgd-margin", PGD(steps=50), margin))
    """

    name: str
    attack: Attack
    loss: Loss = None  # type: ignore[assignment]  # replaced by the attack's own
    target: Target | None = None

    def __post_init__(self) -> None:
        if self.loss is None:
            object.__setattr__(self, "loss", self.attack.goal_loss)
        if self.loss is kl_divergence and self.target is not None:
            raise UsageError("the KL divergence leads away from the clean prediction and has no target. Leave one out.")
