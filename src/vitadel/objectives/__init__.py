"""Objectives: what training minimizes, (model, x, y, seed) -> LossOutput."""

from vitadel.objectives.adversarial import Adversarial, AdversarialObjective
from vitadel.objectives.ard_prm import ARDPRM
from vitadel.objectives.attention_scaling import AttentionScaling, Scope
from vitadel.objectives.awp import AWP
from vitadel.objectives.base import Examples, LossOutput, Objective, ScheduleUnit, TrainingTime, WrappedObjective
from vitadel.objectives.mart import MART
from vitadel.objectives.standard import Standard
from vitadel.objectives.tora import Order, Output, TORATraining
from vitadel.objectives.trades import TRADES

__all__ = [
    "ARDPRM",
    "AWP",
    "MART",
    "TRADES",
    "Adversarial",
    "AdversarialObjective",
    "AttentionScaling",
    "Examples",
    "LossOutput",
    "Objective",
    "Order",
    "Output",
    "ScheduleUnit",
    "Scope",
    "Standard",
    "TORATraining",
    "TrainingTime",
    "WrappedObjective",
]
