"""Attacks: searches for adversarial images within a threat model.

Example:
    >>> result = PGD(steps=20)(model, x, y, "linf:8/255")
    >>> result.success, result.x_adv
"""

from typing import TYPE_CHECKING

from vitadel.attacks.apgd import APGD
from vitadel.attacks.attention_scaling.attack import AAS
from vitadel.attacks.attention_scaling.config import SCALINGS, Factors, Scaling
from vitadel.attacks.autoattack import AutoAttack, AutoAttackPlus, AutoAttackRand
from vitadel.attacks.base import Attack, NamedAttack
from vitadel.attacks.engine.engine import Engine
from vitadel.attacks.engine.iterative import IterativeAttack, Query, State, StepContext
from vitadel.attacks.fab import FAB
from vitadel.attacks.fgsm import FGSM
from vitadel.attacks.gama import GAMA
from vitadel.attacks.other_libraries import class_advice
from vitadel.attacks.parsing import ATTACKS, parse_attack, parse_scaling
from vitadel.attacks.pgd import PGD, SCHEDULES, Schedule, constant, cosine, linear
from vitadel.attacks.result import AttackResult
from vitadel.attacks.square import Square

__all__ = [
    "AAS",
    "APGD",
    "ATTACKS",
    "FAB",
    "FGSM",
    "GAMA",
    "PGD",
    "SCALINGS",
    "SCHEDULES",
    "Attack",
    "AttackResult",
    "AutoAttack",
    "AutoAttackPlus",
    "AutoAttackRand",
    "Engine",
    "Factors",
    "IterativeAttack",
    "NamedAttack",
    "Query",
    "Scaling",
    "Schedule",
    "Square",
    "State",
    "StepContext",
    "constant",
    "cosine",
    "linear",
    "parse_attack",
    "parse_scaling",
]

if not TYPE_CHECKING:  # a type checker would allow any name

    def __getattr__(name: str) -> object:
        """Refuse classes of other attack libraries; the error has the attack to use instead."""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{class_advice(name)}")
