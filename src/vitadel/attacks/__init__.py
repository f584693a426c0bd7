"""How an adversary searches: (model, x, goal, threat, seed) -> AttackResult."""

from vitadel.attacks.apgd import APGD
from vitadel.attacks.attention_scaling.attack import (
    AAS,
    ScaledAttack,
    ScaledIterativeAttack,
    rescaled,
    scaled,
    search_factors,
)
from vitadel.attacks.attention_scaling.factor_search import SCALINGS, Factors, Found, Scaling, find_factors
from vitadel.attacks.attention_scaling.rescaled_model import RescaledModel, tapped
from vitadel.attacks.autoattack import VERSIONS, AutoAttack, AutoAttackPlus, AutoAttackRand, Stage
from vitadel.attacks.base import Attack
from vitadel.attacks.counting import is_zero, zero_gradient_flags
from vitadel.attacks.engine.engine import Engine
from vitadel.attacks.engine.iterative import IterativeAttack, Query, State, StepContext
from vitadel.attacks.engine.precision import FALLBACK, PRECISIONS, in_precision, searcher
from vitadel.attacks.engine.queue import ImageResult, NonFiniteError, WorkQueue
from vitadel.attacks.fab import FAB
from vitadel.attacks.gama import GAMA
from vitadel.attacks.isolation import KeptBuffers, frozen, isolated
from vitadel.attacks.oracle import Model, Oracle, as_logits, in_own_precision
from vitadel.attacks.pgd import FGSM, PGD
from vitadel.attacks.result import AttackResult
from vitadel.attacks.square import Square
from vitadel.attacks.step_schedules import SCHEDULES, Schedule, constant, cosine, linear
from vitadel.core.cuda_graph import generator_survives, warm_up
from vitadel.core.flags import Flag

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
    "Attack",
    "AttackResult",
    "AutoAttack",
    "AutoAttackPlus",
    "AutoAttackRand",
    "Engine",
    "Factors",
    "Flag",
    "Found",
    "ImageResult",
    "IterativeAttack",
    "KeptBuffers",
    "Model",
    "NonFiniteError",
    "Oracle",
    "Query",
    "RescaledModel",
    "ScaledAttack",
    "ScaledIterativeAttack",
    "Scaling",
    "Schedule",
    "Square",
    "Stage",
    "State",
    "StepContext",
    "WorkQueue",
    "as_logits",
    "constant",
    "cosine",
    "find_factors",
    "frozen",
    "generator_survives",
    "in_own_precision",
    "in_precision",
    "is_zero",
    "isolated",
    "linear",
    "rescaled",
    "scaled",
    "search_factors",
    "searcher",
    "tapped",
    "warm_up",
    "zero_gradient_flags",
]
