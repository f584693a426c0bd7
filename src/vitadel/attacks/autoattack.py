"""AutoAttack: attacks in the order and with the budgets of the authors' code.

Croce & Hein 2020 (arXiv:2003.01690), for L1 2021 (arXiv:2103.01208). Shape letters: B images.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitadel.attacks.apgd import APGD
from vitadel.attacks.base import Attack, NamedAttack
from vitadel.attacks.fab import FAB
from vitadel.attacks.oracle import Oracle
from vitadel.attacks.square import Square
from vitadel.core.errors import unknown_name_error
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal, Untargeted, require_untargeted
from vitadel.losses import cross_entropy, dlr, margin
from vitadel.threats import Threat


def standard(threat: Threat) -> tuple[NamedAttack, ...]:
    """APGD-CE, APGD-T, FAB-T and Square; for sparse threats (L1) with more restarts, fewer targets and larger eps."""
    sparse = threat.sparse
    return (
        NamedAttack("apgd-ce", APGD(restarts=5 if sparse else 1, use_larger_eps=sparse), cross_entropy),
        NamedAttack("apgd-t", APGD(targets=5 if sparse else 9, use_larger_eps=sparse), margin),
        NamedAttack("fab-t", FAB(targets=9), margin),
        NamedAttack("square", Square(), margin),
    )


def plus(threat: Threat) -> tuple[NamedAttack, ...]:
    """APGD-CE, APGD-DLR and FAB with five restarts, Square, APGD-T and FAB-T."""
    sparse = threat.sparse
    return (
        NamedAttack("apgd-ce", APGD(restarts=5, use_larger_eps=sparse), cross_entropy),
        NamedAttack("apgd-dlr", APGD(restarts=5, use_larger_eps=sparse), dlr),
        NamedAttack("fab", FAB(restarts=5), margin),
        NamedAttack("square", Square(), margin),
        NamedAttack("apgd-t", APGD(targets=9, use_larger_eps=sparse), margin),
        NamedAttack("fab-t", FAB(targets=9), margin),
    )


def rand(threat: Threat) -> tuple[NamedAttack, ...]:
    """For randomized models: APGD-CE and APGD-DLR with 20 EOT samples per step."""
    sparse = threat.sparse
    return (
        NamedAttack("apgd-ce", APGD(eot_samples=20, use_larger_eps=sparse), cross_entropy),
        NamedAttack("apgd-dlr", APGD(eot_samples=20, use_larger_eps=sparse), dlr),
    )


VERSIONS: dict[str, Callable[[Threat], tuple[NamedAttack, ...]]] = {"standard": standard, "plus": plus, "rand": rand}


@dataclass(frozen=True, slots=True)
class AutoAttack(Attack):
    """AutoAttack, standard version: each attack runs on the images that remain robust after the previous ones.

    Called like any attack it works on one batch; `vitadel.robustness` runs it on a whole data set. Differences from the
    authors' code are those of its attacks; random numbers belong to images, not to batches.

    Args:
        version: "standard", "plus" or "rand".

    Raises:
        UsageError: If the version is unknown, or the goal not untargeted.

    Example:
        >>> result = AutoAttack()(model, x, y, "linf:8/255")
    """

    version: str = "standard"

    def __post_init__(self) -> None:
        if self.version not in VERSIONS:
            raise unknown_name_error("version of AutoAttack", self.version, VERSIONS)

    @property
    def has_own_objective(self) -> bool:
        return True

    def stages(self, threat: Threat) -> tuple[NamedAttack, ...]:
        """Its attacks, in order; their budgets depend on whether the threat is sparse."""
        return VERSIONS[self.version](threat)

    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> Tensor:
        goal = require_untargeted(goal, "AutoAttack")
        x, robust_B = x0.clone(), torch.ones(len(x0), dtype=torch.bool, device=x0.device)
        for number, stage in enumerate(self.stages(threat)):
            index_B = robust_B.nonzero().squeeze(1)
            if len(index_B) == 0:
                break
            goal_left = Untargeted(goal.label_B[index_B], stage.loss)
            candidate = stage.attack.search(model, x0[index_B], goal_left, threat, rng.at(index_B).fold(number))
            x[index_B] = threat.project(candidate.detach(), x0[index_B])
            with torch.no_grad():
                robust_B[index_B] = ~goal_left.success(model(x[index_B]))
        return x


@dataclass(frozen=True, slots=True)
class AutoAttackPlus(AutoAttack):
    """AutoAttack, plus version: six attacks; it has no settings."""

    version: str = field(init=False, default="plus")


@dataclass(frozen=True, slots=True)
class AutoAttackRand(AutoAttack):
    """AutoAttack, rand version, for randomized models: two attacks with 20 EOT samples per step; it has no settings."""

    version: str = field(init=False, default="rand")
