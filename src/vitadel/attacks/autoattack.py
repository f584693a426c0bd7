"""AutoAttack: four attacks one after the other, with the budgets and in the order that were published.

Croce & Hein 2020 (arXiv:2003.01690), for L1 2021 (arXiv:2103.01208). The same name means the same budgets: something
cheaper is called something else. Shape letters: B images.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vitadel.attacks.apgd import APGD
from vitadel.attacks.base import Attack
from vitadel.attacks.fab import FAB
from vitadel.attacks.oracle import Oracle
from vitadel.attacks.square import Square
from vitadel.core.errors import UsageError, unknown
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal, Untargeted
from vitadel.losses import Loss, cross_entropy, dlr, margin
from vitadel.threats import L1, Threat


@dataclass(frozen=True, slots=True)
class Stage:
    """One attack of a cascade and the loss it climbs; an attack with targets brings its own."""

    name: str
    attack: Attack
    loss: Loss


def standard(threat: Threat) -> tuple[Stage, ...]:
    """Untargeted APGD, APGD-T, FAB-T and Square; in L1 with more restarts, fewer targets and a wide start."""
    sparse = isinstance(threat, L1)
    return (
        Stage("apgd-ce", APGD(restarts=5 if sparse else 1, wide_start=sparse), cross_entropy),
        Stage("apgd-t", APGD(targets=5 if sparse else 9, wide_start=sparse), margin),
        Stage("fab-t", FAB(targets=9), margin),
        Stage("square", Square(), margin),
    )


def plus(threat: Threat) -> tuple[Stage, ...]:
    """Six attacks with five restarts."""
    sparse = isinstance(threat, L1)
    return (
        Stage("apgd-ce", APGD(restarts=5, wide_start=sparse), cross_entropy),
        Stage("apgd-dlr", APGD(restarts=5, wide_start=sparse), dlr),
        Stage("fab", FAB(restarts=5), margin),
        Stage("square", Square(), margin),
        Stage("apgd-t", APGD(targets=9, wide_start=sparse), margin),
        Stage("fab-t", FAB(targets=9), margin),
    )


def rand(threat: Threat) -> tuple[Stage, ...]:
    """For models that answer at random: two attacks that average 20 gradients in every step."""
    sparse = isinstance(threat, L1)
    return (
        Stage("apgd-ce", APGD(draws=20, wide_start=sparse), cross_entropy),
        Stage("apgd-dlr", APGD(draws=20, wide_start=sparse), dlr),
    )


VERSIONS: dict[str, Callable[[Threat], tuple[Stage, ...]]] = {"standard": standard, "plus": plus, "rand": rand}


@dataclass(frozen=True, slots=True)
class AutoAttack(Attack):
    """AutoAttack, standard: APGD-CE, APGD-T, FAB-T and Square, each on the images that the ones before left.

    Called like any attack it works on one batch; an evaluation runs its stages over a whole data set.
    """

    version: str = "standard"

    def __post_init__(self) -> None:
        if self.version not in VERSIONS:
            raise unknown("version of AutoAttack", self.version, VERSIONS)

    def stages(self, threat: Threat) -> tuple[Stage, ...]:
        return VERSIONS[self.version](threat)

    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> Tensor:
        if not isinstance(goal, Untargeted):
            raise UsageError(f"AutoAttack wants an Untargeted goal, got {type(goal).__name__}.")
        x, standing_B = x0.clone(), torch.ones(len(x0), dtype=torch.bool, device=x0.device)
        for number, stage in enumerate(self.stages(threat)):
            rows = standing_B.nonzero().squeeze(1)
            if len(rows) == 0:
                break
            own = Untargeted(goal.label_B[rows], stage.loss)
            found = stage.attack.search(model, x0[rows], own, threat, rng.at(rows).fold(number))
            x[rows] = threat.project(found.detach(), x0[rows])
            with torch.no_grad():
                standing_B[rows] = ~own.success(model(x[rows]))
        return x


@dataclass(frozen=True, slots=True)
class AutoAttackPlus(AutoAttack):
    """AutoAttack, plus: six attacks with five restarts."""

    version: str = "plus"


@dataclass(frozen=True, slots=True)
class AutoAttackRand(AutoAttack):
    """AutoAttack, rand: two attacks that average 20 gradients per step, for models that answer at random."""

    version: str = "rand"
