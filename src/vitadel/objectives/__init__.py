"""What training minimizes: (model, x, y, seed) -> Step."""

from vitadel.objectives.adversarial import Adversarial
from vitadel.objectives.adversarial_objective import AdversarialObjective
from vitadel.objectives.attention_scaling import AttentionScaling, Scope
from vitadel.objectives.awp import AWP
from vitadel.objectives.base import Examples, Objective, Step
from vitadel.objectives.mart import MART
from vitadel.objectives.schedule import ScheduleUnit, TrainingTime
from vitadel.objectives.standard import Standard
from vitadel.objectives.tora import TORATraining
from vitadel.objectives.trades import TRADES

__all__ = [
    "AWP",
    "MART",
    "TRADES",
    "Adversarial",
    "AdversarialObjective",
    "AttentionScaling",
    "Examples",
    "Objective",
    "ScheduleUnit",
    "Scope",
    "Standard",
    "Step",
    "TORATraining",
    "TrainingTime",
]
