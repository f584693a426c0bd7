"""How an adversary searches: (model, x, goal, threat, seed) -> AttackResult."""

from vitadel.attacks.base import Attack
from vitadel.attacks.counted import Counted, Model, zero_gradient_flags
from vitadel.attacks.frozen import frozen
from vitadel.attacks.pgd import FGSM, PGD
from vitadel.attacks.result import AttackResult, Flag
from vitadel.attacks.schedule import SCHEDULES, Schedule, constant, cosine, linear

ATTACKS: dict[str, type[Attack]] = {"fgsm": FGSM, "pgd": PGD}

__all__ = [
    "ATTACKS",
    "FGSM",
    "PGD",
    "SCHEDULES",
    "Attack",
    "AttackResult",
    "Counted",
    "Flag",
    "Model",
    "Schedule",
    "constant",
    "cosine",
    "frozen",
    "linear",
    "zero_gradient_flags",
]
