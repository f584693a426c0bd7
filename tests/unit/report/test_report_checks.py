from dataclasses import replace
from typing import Any

import pytest

from vitadel.core.stats import Accuracy
from vitadel.report import checks
from vitadel.report.checks import Check, State
from vitadel.report.reader import Curve, EvaluatedSuite
from vitadel.runs.schema import ImageRows, SuiteRecord, ThreatRecord

EPS = 8 / 255


def share(correct: int, n: int = 1000, half: float = 0.02) -> Accuracy:
    return Accuracy(correct, n, correct / n, correct / n - half, correct / n + half)


RECORD = SuiteRecord(
    "linf-8_255",
    "curve",
    5,
    clean=share(4, 5),
    threat=ThreatRecord("linf", EPS, "linf:8/255"),
    robust=share(2, 5),
    attacks=(),
    flags=(),
    seconds=1.0,
)
# two images are robust, two were broken by pgd, one was misclassified before
ROWS = ImageRows(
    range(5), broken_by=("", "pgd", "pgd", "", "clean"), distance=(EPS, EPS * (1 + 1e-7), EPS / 2, 1.0, 0.0)
)


def evaluation(record: dict[str, Any] | None = None, rows: dict[str, Any] | None = None) -> EvaluatedSuite:
    """Five images under attack, with some fields of the summary or of the rows changed."""
    return EvaluatedSuite("linf-8_255", replace(RECORD, **(record or {})), replace(ROWS, **(rows or {})))


def curve(*percents: int, largest: float = 16 / 255, norm: str = "linf") -> Curve:
    steps = len(percents) - 1
    points = tuple((largest * i / steps, share(10 * p)) for i, p in enumerate(percents))
    return Curve("vit", norm, "curve", points, "1/255" if norm == "linf" else "")


def test_a_sound_evaluation_passes_every_check() -> None:
    assert [check.state for check in checks.check_evaluation(evaluation())] == [State.PASS] * 3


def test_an_adversarial_example_outside_the_threat_fails() -> None:
    check = checks.inside_threat(evaluation(rows={"distance": (0.0, EPS, 9 / 255, 0.0, 0.0)}))
    evidence = "2 broken, largest 9/255, eps 8/255"
    assert check == Check("adversarial examples inside the threat", State.FAIL, evidence)


@pytest.mark.parametrize(
    ("record", "rows", "why"),
    [
        ({"threat": None, "robust": None}, {}, "no attack was run"),
        ({}, {"broken_by": ("", "clean"), "distance": (0.1, 0.0)}, "no image was broken"),
        ({}, {"distance": ()}, "no distances"),
        ({}, {"distance": (0.0, float("nan"), 0.0, 0.0, 0.0)}, "no distances"),
        ({}, {"distance": (0.0, None, 0.0, 0.0, 0.0)}, "no distances"),
        ({}, {"broken_by": (), "distance": ()}, "no distances"),
        ({"threat": ThreatRecord("rotate", None, "rotate:30")}, {}, "the threat has no eps"),
        ({}, {"robust": (0.5, 0.0, 0.0, 1.0, 0.0)}, "a randomized model"),
    ],
)
def test_missing_distances_never_pass(record: dict[str, Any], rows: dict[str, Any], why: str) -> None:
    check = checks.inside_threat(evaluation(record, rows))
    assert (check.state, check.evidence) == (State.NOT_MEASURED, why)


@pytest.mark.parametrize(("half", "state"), [(0.05, State.PASS), (0.051, State.FAIL)])
def test_wide_intervals_fail(half: float, state: State) -> None:
    wide = Accuracy(500, 1000, 0.5, 0.0, 2 * half)
    check = checks.enough_images(evaluation({"robust": wide}))
    assert (check.state, check.evidence) == (state, f"±{100 * half:.1f} points at n = 1000")


@pytest.mark.parametrize("change", [{"clean": share(5, 5)}, {"robust": share(3, 5)}, {"clean": share(4, 6)}])
def test_rows_that_contradict_the_summary_fail(change: dict[str, Any]) -> None:
    check = checks.rows_add_up(evaluation(change))
    assert (check.state, check.evidence) == (State.FAIL, "5 rows: 4 correct, 2 robust")


def test_missing_rows_are_not_measured() -> None:
    assert checks.rows_add_up(evaluation(rows={"broken_by": ()})).state is State.NOT_MEASURED


@pytest.mark.parametrize(
    ("drawn", "state"),
    [
        (curve(95, 40, 0), State.PASS),
        (curve(95, 60, 30), State.NOT_MEASURED),
        (curve(95, 60, 30, largest=0.5), State.FAIL),
        (curve(95, 60, 30, largest=0.5, norm="l2"), State.NOT_MEASURED),
    ],
)
def test_a_curve_must_reach_zero_at_large_eps(drawn: Curve, state: State) -> None:
    assert checks.falls_to_zero(drawn).state is state


def test_an_increasing_curve_fails_with_its_radius() -> None:
    check = checks.never_rises(curve(95, 40, 47))
    assert (check.state, check.evidence) == (State.FAIL, "rises by 7.0 points at 16/255")
    assert checks.never_rises(curve(95, 40, 40)).state is State.PASS
    assert checks.never_rises(curve(95, 40)).state is State.NOT_MEASURED
