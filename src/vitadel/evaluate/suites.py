"""Named sets of attacks, from the cheapest to the dearest."""

from dataclasses import dataclass

from vitadel.attacks import FGSM, PGD, Attack
from vitadel.errors import UsageError
from vitadel.goals import Target
from vitadel.losses import Loss, cross_entropy, kl_divergence, margin


@dataclass(frozen=True, slots=True)
class Entry:
    """An attack in a cascade, the loss it climbs, and the class it aims for, found from the clean logits.

    With `kl_divergence` for a loss, the reference is the model's answer to the clean image.
    """

    name: str
    attack: Attack
    loss: Loss = cross_entropy
    target: Target | None = None

    def __post_init__(self) -> None:
        if self.loss is kl_divergence and self.target is not None:
            raise UsageError("the KL divergence leads away from the clean answer and has no target. Leave one out.")


@dataclass(frozen=True, slots=True)
class Suite:
    """What to evaluate: a cascade of attacks at every given share of the threat's radius; none means clean accuracy."""

    name: str
    about: str
    entries: tuple[Entry, ...] = ()
    shares: tuple[float, ...] = (1.0,)


_QUICK = (
    Entry("fgsm", FGSM()),
    Entry("pgd-ce", PGD(steps=20)),
    Entry("pgd-margin", PGD(steps=20), margin),
)

SUITES = {
    suite.name: suite
    for suite in (
        Suite("clean", "accuracy on the images as they are"),
        Suite("quick", "FGSM, then PGD-20 on cross-entropy, then PGD-20 on the margin, at the threat's radius", _QUICK),
        Suite("curve", "the attacks of `quick` at 1/4, 1/2, 1, 2 and 4 times the radius", _QUICK, (0.25, 0.5, 1, 2, 4)),
    )
}
