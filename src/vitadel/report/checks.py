"""Plausibility checks of results; one that lacks data is `not measured`, which is not a pass."""

import enum
import math
from collections import Counter
from dataclasses import dataclass

from vitadel.report.reader import Curve, EvaluatedSuite
from vitadel.report.text import eps_text
from vitadel.runs.schema import ROBUST, WRONG_BEFORE

HALF_WIDTH = 0.05  # with wider intervals, most pairs of published models cannot be distinguished
NEAR_ZERO = 0.05
SAME_ATTACK_TOLERANCE = 0.01  # the largest expected difference of two runs of one random attack
LARGEST_MEANINGFUL_EPS = 0.5  # at this Linf eps every image can be made plain gray, so no model is robust
_TOLERANCE = 1e-5  # float32 pixels cannot keep an eps more exactly


class State(enum.Enum):
    """The outcome of a check."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a number: its outcome and the evidence."""

    title: str
    state: State
    evidence: str


def check_evaluation(evaluation: EvaluatedSuite) -> tuple[Check, ...]:
    """All checks of a suite of attacks."""
    return (inside_threat(evaluation), enough_images(evaluation), rows_add_up(evaluation))


def check_curve(curve: Curve) -> tuple[Check, ...]:
    """All checks of accuracy against eps."""
    return (falls_to_zero(curve), never_rises(curve))


def inside_threat(evaluation: EvaluatedSuite) -> Check:
    """Whether every adversarial example lies within the threat."""
    title = "adversarial examples inside the threat"
    threat, rows = evaluation.record.threat, evaluation.rows
    if threat is None or evaluation.record.robust is None:
        return _not_measured(title, "no attack was run")
    if threat.eps is None:
        return _not_measured(title, "the threat has no eps")
    if evaluation.is_randomized:
        return _not_measured(title, "a randomized model")
    pairs = zip(rows.broken_by, rows.distance, strict=False)
    distances = [distance for broken_by, distance in pairs if broken_by not in (ROBUST, WRONG_BEFORE)]
    known = [distance for distance in distances if distance is not None and math.isfinite(distance)]
    if not known or len(known) < len(distances):
        return _not_measured(title, "no image was broken" if rows.distance and not distances else "no distances")
    largest, allowed = (eps_text(threat.unit, eps, digits=6) for eps in (max(known), threat.eps))
    evidence = f"{len(known)} broken, largest {largest}, eps {allowed}"
    return _judged(title, max(known) <= threat.eps * (1 + _TOLERANCE) + 1e-7, evidence)


def enough_images(evaluation: EvaluatedSuite) -> Check:
    """Whether the interval is narrow enough."""
    measured = evaluation.record.robust or evaluation.clean
    evidence = f"\N{PLUS-MINUS SIGN}{100 * measured.half_width:.1f} points at n = {measured.n}"
    return _judged("interval within \N{PLUS-MINUS SIGN}5 points", measured.half_width <= HALF_WIDTH, evidence)


def rows_add_up(evaluation: EvaluatedSuite) -> Check:
    """Whether the rows give the numbers of the summary."""
    title, broken_by, robust = "rows match the summary", evaluation.rows.broken_by, evaluation.record.robust
    if not broken_by:
        return _not_measured(title, "no rows with broken_by")
    if evaluation.is_randomized:
        return _shares_add_up(title, evaluation)
    counts, n = Counter(broken_by), len(broken_by)
    same = (n, n - counts[WRONG_BEFORE]) == (evaluation.clean.n, evaluation.clean.correct)
    same &= robust is None or counts[ROBUST] == robust.correct
    more = "" if robust is None else f", {counts[ROBUST]} robust"
    return _judged(title, same, f"{n} rows: {n - counts[WRONG_BEFORE]} correct{more}")


def _shares_add_up(title: str, evaluation: EvaluatedSuite) -> Check:
    """The same for a randomized model: the mean share of correct predictions per image."""
    pairs = [(evaluation.clean, evaluation.clean_correct)]
    pairs += [] if evaluation.record.robust is None else [(evaluation.record.robust, evaluation.correct)]
    same = all(
        len(shares) == known.n and math.isclose(math.fsum(shares) / known.n, known.accuracy, abs_tol=1e-6)
        for known, shares in pairs
    )
    means = " \N{RIGHTWARDS ARROW} ".join(f"{100 * math.fsum(v) / max(1, len(v)):.1f}" for _, v in pairs)
    return _judged(title, same, f"{len(evaluation.rows)} rows: {means}% correct")


def falls_to_zero(curve: Curve) -> Check:
    """Whether accuracy drops to zero at the largest eps; if not, the attack is too weak."""
    title = "falls to zero at the largest eps"
    eps, last = curve.points[-1]
    evidence = f"{last.percent}% left at {eps_text(curve.unit, eps)}"
    if last.accuracy <= NEAR_ZERO:
        return Check(title, State.PASS, evidence)
    if curve.unit and eps >= LARGEST_MEANINGFUL_EPS:
        return Check(title, State.FAIL, f"{evidence}, where every image can be made plain gray")
    return _not_measured(title, f"{evidence}, and no larger eps was tried")


def never_rises(curve: Curve) -> Check:
    """Whether accuracy never increases with eps, as a larger ball contains the smaller ones."""
    title = "never rises with eps"
    if not curve.has_several_radii:
        return _not_measured(title, "only one eps was attacked")
    steps = zip(curve.points, curve.points[1:], strict=False)
    rise, eps = max((after.accuracy - before.accuracy, eps) for (_, before), (eps, after) in steps)
    if rise <= 0:
        return Check(title, State.PASS, f"{len(curve.points)} points, none above the one before")
    return _judged(
        title, rise <= SAME_ATTACK_TOLERANCE, f"rises by {100 * rise:.1f} points at {eps_text(curve.unit, eps)}"
    )


def _judged(title: str, holds: bool, evidence: str) -> Check:
    return Check(title, State.PASS if holds else State.FAIL, evidence)


def _not_measured(title: str, why: str) -> Check:
    return Check(title, State.NOT_MEASURED, why)
