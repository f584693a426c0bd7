"""How an adversary searches: (model, x, goal, threat, seed) -> AttackResult."""

from vitadel.attacks.aas import AAS, Scaled, ScaledWalk, rescaled, scaled, search_factors
from vitadel.attacks.apgd import APGD
from vitadel.attacks.autoattack import VERSIONS, AutoAttack, AutoAttackPlus, AutoAttackRand, Stage
from vitadel.attacks.base import Attack
from vitadel.attacks.counted import is_zero, zero_gradient_flags
from vitadel.attacks.engine import Engine
from vitadel.attacks.fab import FAB
from vitadel.attacks.frozen import KeptBuffers, frozen, refuse_meta, undisturbed
from vitadel.attacks.gama import GAMA
from vitadel.attacks.lowered import FALLBACK, PRECISIONS, lowered, searcher
from vitadel.attacks.oracle import Model, Oracle, as_logits, in_own_precision
from vitadel.attacks.pgd import FGSM, PGD
from vitadel.attacks.pool import Finding, NotFinite, Pool
from vitadel.attacks.replay import generator_survives, warm_up
from vitadel.attacks.rescaled import Rescaled, tapped
from vitadel.attacks.result import AttackResult, Flag
from vitadel.attacks.scaling import SCALINGS, Factors, Found, Scaling, find_factors
from vitadel.attacks.schedule import SCHEDULES, Schedule, constant, cosine, linear
from vitadel.attacks.square import Square
from vitadel.attacks.walk import Answer, Items, State, Walk

ATTACKS: dict[str, type[Attack]] = {
    "fgsm": FGSM,
    "pgd": PGD,
    "apgd": APGD,
    "fab": FAB,
    "square": Square,
    "gama": GAMA,
    "autoattack": AutoAttack,
    "autoattack-plus": AutoAttackPlus,
    "autoattack-rand": AutoAttackRand,
}

__all__ = [
    "AAS",
    "APGD",
    "ATTACKS",
    "FAB",
    "FALLBACK",
    "FGSM",
    "GAMA",
    "PGD",
    "PRECISIONS",
    "SCALINGS",
    "SCHEDULES",
    "VERSIONS",
    "Answer",
    "Attack",
    "AttackResult",
    "AutoAttack",
    "AutoAttackPlus",
    "AutoAttackRand",
    "Engine",
    "Factors",
    "Finding",
    "Flag",
    "Found",
    "Items",
    "KeptBuffers",
    "Model",
    "NotFinite",
    "Oracle",
    "Pool",
    "Rescaled",
    "Scaled",
    "ScaledWalk",
    "Scaling",
    "Schedule",
    "Square",
    "Stage",
    "State",
    "Walk",
    "as_logits",
    "constant",
    "cosine",
    "find_factors",
    "frozen",
    "generator_survives",
    "in_own_precision",
    "is_zero",
    "linear",
    "lowered",
    "refuse_meta",
    "rescaled",
    "scaled",
    "search_factors",
    "searcher",
    "tapped",
    "undisturbed",
    "warm_up",
    "zero_gradient_flags",
]
