from dataclasses import replace

import pytest

from vitadel.report import checks
from vitadel.report.checks import Check, State
from vitadel.report.records import Accuracy, Curve, Evaluation, Threat

EPS = 8 / 255


def share(correct: int, n: int = 1000, half: float = 0.02) -> Accuracy:
    return Accuracy(correct, n, correct / n, correct / n - half, correct / n + half)


def evaluation() -> Evaluation:
    """Five images: two stand, two fell to pgd, one was wrong before."""
    return Evaluation(
        name="linf-8_255",
        suite="curve",
        threat=Threat("linf", EPS, "linf:8/255"),
        n=5,
        clean=share(4, 5),
        robust=share(2, 5),
        attacks=(),
        flags=(),
        fell_to=("", "pgd", "pgd", "", "clean"),
        size=(EPS, EPS * (1 + 1e-7), EPS / 2, 1.0, 0.0),
        gallery=None,
    )


def curve(*percents: int, largest: float = 16 / 255, norm: str = "linf") -> Curve:
    steps = len(percents) - 1
    return Curve("vit", norm, "curve", tuple((largest * i / steps, share(10 * p)) for i, p in enumerate(percents)))


def test_a_sound_evaluation_passes_every_check() -> None:
    assert [check.state for check in checks.of_evaluation(evaluation())] == [State.PASS] * 3


def test_a_fallen_image_outside_the_threat_fails() -> None:
    check = checks.inside_threat(replace(evaluation(), size=(0.0, EPS, 9 / 255, 0.0, 0.0)))
    assert check == Check("fallen inside the threat", State.FAIL, "2 fell, largest 9/255, eps 8/255")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"threat": None, "robust": None}, "no attack was run"),
        ({"fell_to": ("", "clean"), "size": (0.1, 0.0)}, "no image fell"),
        ({"size": ()}, "no sizes in the rows"),
        ({"size": (0.0, float("nan"), 0.0, 0.0, 0.0)}, "no sizes in the rows"),
        ({"fell_to": (), "size": ()}, "no sizes in the rows"),
        ({"threat": Threat("rotate", None, "rotate:30")}, "the threat has no eps"),
    ],
)
def test_sizes_that_are_not_there_never_pass(change: dict[str, object], why: str) -> None:
    check = checks.inside_threat(replace(evaluation(), **change))  # type: ignore[arg-type]
    assert (check.state, check.evidence) == (State.NOT_MEASURED, why)


@pytest.mark.parametrize(("half", "state"), [(0.05, State.PASS), (0.051, State.FAIL)])
def test_wide_intervals_fail(half: float, state: State) -> None:
    wide = Accuracy(500, 1000, 0.5, 0.0, 2 * half)
    check = checks.enough_images(replace(evaluation(), robust=wide))
    assert (check.state, check.evidence) == (state, f"±{100 * half:.1f} points at n = 1000")


@pytest.mark.parametrize("change", [{"clean": share(5, 5)}, {"robust": share(3, 5)}, {"clean": share(4, 6)}])
def test_rows_that_tell_another_story_than_the_summary_fail(change: dict[str, Accuracy]) -> None:
    check = checks.rows_add_up(replace(evaluation(), **change))  # type: ignore[arg-type]
    assert (check.state, check.evidence) == (State.FAIL, "5 rows: 4 right, 2 standing")


def test_rows_that_are_not_there_are_not_measured() -> None:
    assert checks.rows_add_up(replace(evaluation(), fell_to=())).state is State.NOT_MEASURED


@pytest.mark.parametrize(
    ("drawn", "state"),
    [
        (curve(95, 40, 0), State.PASS),
        (curve(95, 60, 30), State.NOT_MEASURED),
        (curve(95, 60, 30, largest=0.5), State.FAIL),
        (curve(95, 60, 30, largest=0.5, norm="l2"), State.NOT_MEASURED),
    ],
)
def test_a_curve_must_fall_to_zero_once_anything_goes(drawn: Curve, state: State) -> None:
    assert checks.falls_to_zero(drawn).state is state


def test_a_curve_that_rises_fails_and_says_where() -> None:
    check = checks.never_rises(curve(95, 40, 47))
    assert (check.state, check.evidence) == (State.FAIL, "rises by 7.0 points at 16/255")
    assert checks.never_rises(curve(95, 40, 40)).state is State.PASS
    assert checks.never_rises(curve(95, 40)).state is State.NOT_MEASURED
