"""Cascades over attacks and surveys of shifts, per-image rows, reliability flags, metrics with intervals."""

from vitadel.core.device import device_name
from vitadel.core.distributed import Ranks, best_device
from vitadel.core.stats import Accuracy, accuracy
from vitadel.evaluate.adversarial_images import read_found
from vitadel.evaluate.attack_suites import SUITES, Entry, Suite
from vitadel.evaluate.attention_scaling import PAPER_PROTOCOL
from vitadel.evaluate.classes import refuse_other_classes, refuse_unwritable_names
from vitadel.evaluate.robustness import Robustness, robustness
from vitadel.evaluate.runner import evaluate, refuse_suite
from vitadel.evaluate.sanity_checks import sanity_flags
from vitadel.evaluate.suites import SURVEYS, Measure, Referring, Survey, refuse_survey, survey
from vitadel.evaluate.validation import validation_scores

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
    "read_found",
    "refuse_other_classes",
    "refuse_suite",
    "refuse_survey",
    "refuse_unwritable_names",
    "robustness",
    "sanity_flags",
    "survey",
    "validation_scores",
]
