"""Cascades over attacks and surveys of shifts, per-image rows, reliability flags, metrics with intervals."""

from vitadel.evaluate.classes import refuse_other_classes, refuse_unwritable_names
from vitadel.evaluate.device import device_name
from vitadel.evaluate.found import read_found
from vitadel.evaluate.metrics import Accuracy, accuracy
from vitadel.evaluate.quick import quick_scores
from vitadel.evaluate.ranks import Ranks, best_device
from vitadel.evaluate.robustness import Robustness, robustness
from vitadel.evaluate.runner import evaluate, refuse_suite
from vitadel.evaluate.scaled import PAPER_PROTOCOL
from vitadel.evaluate.suites import SUITES, Entry, Suite
from vitadel.evaluate.surveys import SURVEYS, Measure, Referring, Survey, refuse_survey, survey
from vitadel.evaluate.suspicion import suspicions

__all__ = [
    "PAPER_PROTOCOL",
    "SUITES",
    "SURVEYS",
    "Accuracy",
    "Entry",
    "Measure",
    "Ranks",
    "Referring",
    "Robustness",
    "Suite",
    "Survey",
    "accuracy",
    "best_device",
    "device_name",
    "evaluate",
    "quick_scores",
    "read_found",
    "refuse_other_classes",
    "refuse_suite",
    "refuse_survey",
    "refuse_unwritable_names",
    "robustness",
    "survey",
    "suspicions",
]
