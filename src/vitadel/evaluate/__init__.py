"""Suites of attacks and of perturbed images: per-image rows, sanity checks, metrics with intervals.

A suite is a frozen dataclass of settings (`SUITES`). `evaluate_suite` runs it in a `Context`, whose store keeps all
results, so an interrupted evaluation resumes.
"""

from vitadel.attacks import NamedAttack
from vitadel.evaluate.adversarial_images import read_adversarial_images
from vitadel.evaluate.attack_runner import AttackRunner
from vitadel.evaluate.context import Batch, Context
from vitadel.evaluate.images import TensorImages, check_class_count, check_writable_names
from vitadel.evaluate.sanity_checks import sanity_flags
from vitadel.evaluate.scaled_suites import PAPER_PROTOCOL
from vitadel.evaluate.store import MemoryStore, ResultStore
from vitadel.evaluate.suites import (
    ATTACK_SUITES,
    SUITES,
    AttackSuite,
    Suite,
    SuiteWithFiles,
    SuiteWithRadii,
    attacks_of,
    check_suite,
    evaluate_suite,
    run_suite,
    suite_record,
)
from vitadel.evaluate.validation import validation_scores

__all__ = [
    "ATTACK_SUITES",
    "PAPER_PROTOCOL",
    "SUITES",
    "AttackRunner",
    "AttackSuite",
    "Batch",
    "Context",
    "MemoryStore",
    "NamedAttack",
    "ResultStore",
    "Suite",
    "SuiteWithFiles",
    "SuiteWithRadii",
    "TensorImages",
    "attacks_of",
    "check_class_count",
    "check_suite",
    "check_writable_names",
    "evaluate_suite",
    "read_adversarial_images",
    "run_suite",
    "sanity_flags",
    "suite_record",
    "validation_scores",
]
