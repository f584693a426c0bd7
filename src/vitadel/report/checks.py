"""Checks that a reader would make by hand; one that cannot be made says so and never passes by default."""

import enum
import math
from collections import Counter
from dataclasses import dataclass

from vitadel.report.records import Curve, Evaluation

HALF_WIDTH = 0.05  # a wider interval cannot tell apart most pairs of published models
NEAR_ZERO = 0.05
RISE = 0.01  # what two runs of one honest random attack may differ by
ANYTHING_GOES = 0.5  # at this Linf eps every image can become the same gray one, so no model can stand
_SLACK = 1e-5  # float32 pixels cannot keep an eps more exactly


class State(enum.Enum):
    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Check:
    """One question about a number, its answer, and what the answer rests on."""

    title: str
    state: State
    evidence: str


def of_evaluation(evaluation: Evaluation) -> tuple[Check, ...]:
    return (inside_threat(evaluation), enough_images(evaluation), rows_add_up(evaluation))


def of_curve(curve: Curve) -> tuple[Check, ...]:
    return (falls_to_zero(curve), never_rises(curve))


def inside_threat(evaluation: Evaluation) -> Check:
    """Whether every image that an attack felled is one the attack was allowed to make."""
    title = "fallen inside the threat"
    threat, robust = evaluation.threat, evaluation.robust
    if threat is None or robust is None:
        return _not_measured(title, "no attack was run")
    if threat.eps is None:
        return _not_measured(title, "the threat has no eps")
    if evaluation.is_expected:
        return _not_measured(title, "a random model")
    pairs = zip(evaluation.fell_to, evaluation.size, strict=False)
    sizes = [size for fell_to, size in pairs if fell_to not in ("", "clean")]
    if not sizes or not all(map(math.isfinite, sizes)):
        return _not_measured(title, "no image fell" if evaluation.size and not sizes else "no sizes in the rows")
    largest, allowed = (eps_text(threat.norm, size, digits=6) for size in (max(sizes), threat.eps))
    evidence = f"{len(sizes)} fell, largest {largest}, eps {allowed}"
    return _judged(title, max(sizes) <= threat.eps * (1 + _SLACK) + 1e-7, evidence)


def enough_images(evaluation: Evaluation) -> Check:
    """Whether the interval is narrow enough to be worth quoting."""
    measured = evaluation.robust or evaluation.clean
    evidence = f"\N{PLUS-MINUS SIGN}{100 * measured.half_width:.1f} points at n = {measured.n}"
    return _judged("interval within \N{PLUS-MINUS SIGN}5 points", measured.half_width <= HALF_WIDTH, evidence)


def rows_add_up(evaluation: Evaluation) -> Check:
    """Whether counting the rows again gives the numbers of the summary."""
    title = "rows match the summary"
    if not evaluation.fell_to:
        return _not_measured(title, "no rows with fell_to")
    if evaluation.is_expected:
        return _shares_add_up(title, evaluation)
    counts = Counter(evaluation.fell_to)
    n, right, standing = len(evaluation.fell_to), len(evaluation.fell_to) - counts["clean"], counts[""]
    same = n == evaluation.clean.n and right == evaluation.clean.correct
    same &= evaluation.robust is None or standing == evaluation.robust.correct
    told = "" if evaluation.robust is None else f", {standing} standing"
    return _judged(title, same, f"{n} rows: {right} right{told}")


def _shares_add_up(title: str, evaluation: Evaluation) -> Check:
    """The same for a model that answers at random: the mean share of right answers per image."""
    pairs = [(evaluation.clean, evaluation.clean_right)]
    pairs += [] if evaluation.robust is None else [(evaluation.robust, evaluation.right)]
    same = all(len(shares) == told.n for told, shares in pairs)
    same = same and all(math.isclose(math.fsum(shares) / told.n, told.value, abs_tol=1e-6) for told, shares in pairs)
    means = " \N{RIGHTWARDS ARROW} ".join(f"{100 * math.fsum(v) / max(1, len(v)):.1f}" for _, v in pairs)
    return _judged(title, same, f"{len(evaluation.fell_to)} rows: {means}% right")


def falls_to_zero(curve: Curve) -> Check:
    """Whether the attack wins once it may do anything; where it does not, it is the attack that is weak."""
    title = "falls to zero at the largest eps"
    eps, last = curve.points[-1]
    evidence = f"{last.percent}% left at {eps_text(curve.norm, eps)}"
    if last.value <= NEAR_ZERO:
        return Check(title, State.PASS, evidence)
    if curve.norm == "linf" and eps >= ANYTHING_GOES:
        return Check(title, State.FAIL, f"{evidence}, where every image can be made plain gray")
    return _not_measured(title, f"{evidence}, and no larger eps was tried")


def never_rises(curve: Curve) -> Check:
    """Whether a larger threat never leaves more images standing, as it contains the smaller one."""
    title = "never rises with eps"
    if not curve.swept:
        return _not_measured(title, "only one eps was attacked")
    steps = zip(curve.points, curve.points[1:], strict=False)
    rise, eps = max((after.value - before.value, eps) for (_, before), (eps, after) in steps)
    if rise <= 0:
        return Check(title, State.PASS, f"{len(curve.points)} points, none above the one before")
    return _judged(title, rise <= RISE, f"rises by {100 * rise:.1f} points at {eps_text(curve.norm, eps)}")


def eps_text(norm: str, eps: float, digits: int = 3) -> str:
    """An eps as people say it: Linf in gray levels, the others as they are."""
    return f"{255 * eps:.{digits}g}/255" if norm == "linf" else f"{eps:.{digits}g}"


def _judged(title: str, holds: bool, evidence: str) -> Check:
    return Check(title, State.PASS if holds else State.FAIL, evidence)


def _not_measured(title: str, why: str) -> Check:
    return Check(title, State.NOT_MEASURED, why)
