"""The suites: of attacks, and of perturbed or naturally hard images.

A suite is a frozen dataclass of settings that fills tables in a `vitadel.evaluate.Context` and summarizes them; see
`vitadel.evaluate.suites.base.Suite`. `SUITES` has each by its name, with its default settings.
"""

from vitadel.evaluate.suites.attacks import ATTACK_SUITES, AttackSuite
from vitadel.evaluate.suites.base import (
    Suite,
    SuiteWithFiles,
    SuiteWithRadii,
    attacks_of,
    check_suite,
    evaluate_suite,
    run_suite,
    suite_record,
)
from vitadel.evaluate.suites.corruptions import Corruptions
from vitadel.evaluate.suites.gray_level import GrayLevel
from vitadel.evaluate.suites.natural import ImageNetA, ImageNetR, LabelSpace, NaturalAdversarial
from vitadel.evaluate.suites.shape_bias import ShapeBias
from vitadel.evaluate.suites.spatial import Spatial
from vitadel.evaluate.suites.transfer import Transfer

BENCHMARK_SUITES: tuple[Suite, ...] = (
    Corruptions(),
    GrayLevel(),
    Spatial(),
    Transfer(),
    ShapeBias(),
    NaturalAdversarial(),
    ImageNetA(),
    ImageNetR(),
)
SUITES: dict[str, Suite] = {**ATTACK_SUITES, **{suite.name: suite for suite in BENCHMARK_SUITES}}

__all__ = [
    "ATTACK_SUITES",
    "BENCHMARK_SUITES",
    "SUITES",
    "AttackSuite",
    "Corruptions",
    "GrayLevel",
    "ImageNetA",
    "ImageNetR",
    "LabelSpace",
    "NaturalAdversarial",
    "ShapeBias",
    "Spatial",
    "Suite",
    "SuiteWithFiles",
    "SuiteWithRadii",
    "Transfer",
    "attacks_of",
    "check_suite",
    "evaluate_suite",
    "run_suite",
    "suite_record",
]
