"""Named sets of attacks, from the cheapest to the dearest."""

from dataclasses import dataclass

from vitadel.attacks import FGSM, PGD, Attack, AutoAttack, AutoAttackPlus, AutoAttackRand
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Positive, check_ranges
from vitadel.goals import Target
from vitadel.losses import Loss, cross_entropy, kl_divergence, margin
from vitadel.threats import Linf, Threat, with_eps

# names of pages that are no attack's
_TAKEN = ("clean", "flags")
# how the name of an attack ends that learned from a rescaled model
SCALED = "+scaled"


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
    shares: tuple[Positive, ...] = (1.0,)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.entries and not self.shares:
            raise UsageError("Suite.shares is empty, so no radius is attacked. Write for example (1.0,).")

    def radii(self, threat: Threat | None) -> list[Threat | None]:
        """The threats to try, smallest first; None for a suite without attacks."""
        if not self.entries:
            return [None]
        if threat is None:
            raise UsageError(
                f"suite {self.name!r} attacks, so it needs a threat. Write for example --threat linf:8/255."
            )
        radii = sorted({threat.eps * share for share in self.shares})
        kept: list[Threat | None] = [with_eps(threat, eps) for eps in radii if eps <= 1 or not isinstance(threat, Linf)]
        if not kept:
            raise UsageError(
                f"suite {self.name!r} has no radius up to 1 at {threat.eps:g}, got shares {self.shares}. "
                "Write a smaller threat."
            )
        return kept

    def cascade(self, threat: Threat) -> tuple[Entry, ...]:
        """The attacks one by one; those that AutoAttack consists of depend on the norm."""
        entries = tuple(one for entry in self.entries for one in _stages(entry, threat))
        names = [entry.name for entry in entries]
        if twice := next((name for name in names if names.count(name) > 1 or name in _TAKEN), None):
            raise UsageError(f"an attack of a suite needs a name of its own, got {twice!r}. Name each differently.")
        return entries


def _stages(entry: Entry, threat: Threat) -> tuple[Entry, ...]:
    if not isinstance(entry.attack, AutoAttack):
        return (entry,)
    if entry.target is not None:
        raise UsageError("AutoAttack chooses its targets itself. Leave `target` out.")
    return tuple(Entry(stage.name, stage.attack, stage.loss) for stage in entry.attack.stages(threat))


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
        Suite(
            "adversarial",
            "AutoAttack, standard: APGD-CE, APGD-T, FAB-T and Square with the published budgets",
            (Entry("autoattack", AutoAttack()),),
        ),
        Suite(
            "adversarial-plus",
            "AutoAttack, plus: APGD-CE, APGD-DLR, FAB, Square, APGD-T and FAB-T, five restarts",
            (Entry("autoattack-plus", AutoAttackPlus()),),
        ),
        Suite(
            "adversarial-rand",
            "AutoAttack, rand, for models that answer at random: scored by the expected accuracy over fresh draws",
            (Entry("autoattack-rand", AutoAttackRand()),),
        ),
    )
}
