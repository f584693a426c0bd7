"""The verdict on gradient masking: the result of each test, and how they are combined.

A **decisive test** compares the success of attacks. It is evidence for masking if

=============  =======================================================================================================
`square`       Square, which needs no gradient, breaks more than 0.2% and at least 3 of the images that no attack with
               the model's own gradient broke (PGD of every length, again, on the margin, with targets)
`scaling`      the attack on the model with rescaled attention breaks significantly more (exact McNemar, p < 0.01) of
               the images that the plain one left than the plain one does when it is run again from another random
               start; images on which the factors were chosen do not count
`far`          an image is robust at 100/255, where none should be, also after a second, longer attack
`iterations`   the longest attack leaves significantly more images than a shorter one (exact McNemar, p < 0.01 divided
               by the number of comparisons)
=============  =======================================================================================================

**Masked**: at least one of them is. **Not masked**: all ran, on at least 100 images classified correctly, and none is.
**Cannot tell**: all other cases, and these: accuracy at chance level (a constant prediction is robust without masking
anything); 1% or more of the input gradients exactly zero while no decisive test is evidence for masking.

Gradients that are exactly zero and gaps beyond the range of float32 support a verdict but do not determine it: where
attention is one-hot, gradients may still flow through its values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitadel.core.stats import accuracy, mcnemar

MASKED, NOT_MASKED, CANNOT_TELL, NOTHING = "masked", "not masked", "cannot tell", "nothing"
DECISIVE = ("square", "scaling", "far", "iterations")
ENOUGH = 100
LEVEL = 0.01
ZERO_SHARE = 0.01
SQUARE_SHARE, SQUARE_COUNT = 0.002, 3


@dataclass(frozen=True, slots=True)
class Evidence:
    """The result of one test: its code, a sentence, its numbers, and the verdict that it points to."""

    code: str
    sentence: str
    numbers: Mapping[str, float]
    points: str

    @property
    def is_decisive(self) -> bool:
        return self.code in DECISIVE


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict, the reason for it in a sentence, and the evidence."""

    answer: str
    because: str
    evidence: tuple[Evidence, ...]


def verdict_from(evidence: Sequence[Evidence], *, correct: int, n: int, num_classes: int) -> Verdict:
    """The verdict by the rules in the module's docstring."""

    def verdict(answer: str, because: str) -> Verdict:
        return Verdict(answer, because, tuple(evidence))

    clean = accuracy(correct, n)
    if clean.low <= 1 / num_classes:
        return verdict(
            CANNOT_TELL,
            f"{clean.accuracy:.1%} of {n} images are classified correctly, which chance alone may do among "
            f"{num_classes} classes",
        )
    if decisive := [one.code for one in evidence if one.is_decisive and one.points == MASKED]:
        return verdict(MASKED, f"evidence for it from {', '.join(decisive)}")
    if missing := [code for code in DECISIVE if code not in {one.code for one in evidence}]:
        return verdict(CANNOT_TELL, f"not every test was run: {', '.join(missing)} is missing")
    if correct < ENOUGH:
        return verdict(
            CANNOT_TELL,
            f"no test is evidence for it, but only {correct} images are classified correctly, and {ENOUGH} are needed",
        )
    if any(one.code == "zero-gradients" and one.points == MASKED for one in evidence):
        return verdict(CANNOT_TELL, "gradients are exactly zero, yet no attack does better without them")
    return verdict(NOT_MASKED, "no decisive test is evidence for it")


def square(broken: int, left: int, queries: int) -> Evidence:
    """Whether random search breaks images that gradient attacks did not."""
    numbers = {**share("broken", broken, left), "queries": queries} if left else {"left": 0, "queries": queries}
    if left == 0:
        return Evidence("square", "the gradient attacks left no image for Square to try", numbers, NOT_MASKED)
    is_evidence = broken >= SQUARE_COUNT and broken > SQUARE_SHARE * left
    sentence = f"Square, without gradients, breaks {broken} of the {left} images that no gradient attack broke"
    return Evidence("square", sentence, numbers, MASKED if is_evidence else NOT_MASKED)


def scaling(scaled_only: int, again_only: int, both: int, left: int) -> Evidence:
    """Whether rescaled attention helps an attack more than a second restart does."""
    if left == 0:
        return Evidence("scaling", "PGD left no image on which AAS could do better", {"left": 0}, NOT_MASKED)
    p = mcnemar(scaled_only, again_only, "greater")
    numbers: dict[str, float] = {"scaled_only": scaled_only, "again_only": again_only, "both": both, "p": p}
    numbers |= share("scaled", scaled_only + both, left) | share("again", again_only + both, left)
    sentence = (
        f"of {left} images that PGD left (without those the factors were chosen on), AAS breaks {scaled_only + both}, "
        f"and PGD from another start {again_only + both} (exact McNemar, p = {p:.2g})"
    )
    return Evidence("scaling", sentence, numbers, MASKED if p < LEVEL else NOT_MASKED)


def both_break(both: int, broken: int) -> Evidence:
    """How many of the images broken by Square are broken by AAS: whether the softmax is what masks gradients."""
    sentence = f"of the {broken} images that Square breaks there, AAS breaks {both}"
    return Evidence("shared", sentence, share("by_both", both, broken), NOTHING)


def large_eps(robust: int, again: int, n: int, radius: str) -> Evidence:
    """Whether any image is robust at a radius where none should be."""
    numbers = {**share("robust", robust, n), **share("robust_after_another", again, n)} if n else {}
    if robust == 0:
        return Evidence("far", f"no image is robust at {radius}", numbers, NOT_MASKED)
    sentence = (
        f"{robust} of {n} are robust at {radius}, where none should be, and {again} of them after a longer attack"
    )
    return Evidence("far", sentence, numbers, MASKED if again else NOT_MASKED)


def iterations(only_short: Mapping[int, int], only_long: Mapping[int, int], longest: int) -> Evidence:
    """Whether more steps break fewer images; for each number of steps, what only it broke or only the longest broke."""
    chances = {steps: mcnemar(only_short[steps], only_long[steps], "greater") for steps in only_short}
    steps = min(chances, key=lambda one: chances[one])
    numbers: dict[str, float] = {
        "shorter": steps,
        "longest": longest,
        "only_shorter": only_short[steps],
        "only_longest": only_long[steps],
        "p": chances[steps],
        "comparisons": len(chances),
    }
    sentence = (
        f"PGD with {steps} steps breaks {only_short[steps]} that {longest} steps do not, and {longest} steps "
        f"{only_long[steps]} that {steps} do not (p = {chances[steps]:.2g}, the least of {len(chances)})"
    )
    is_evidence = chances[steps] < LEVEL / len(chances)
    return Evidence("iterations", sentence, numbers, MASKED if is_evidence else NOT_MASKED)


def zero_gradients(zero: Mapping[str, int], n: int) -> Evidence:
    """How many input gradients are exactly zero, by loss and point."""
    worst = max(zero, key=lambda one: zero[one])
    numbers = {key: value for name, count in zero.items() for key, value in share(name, count, n).items()}
    points = MASKED if zero[worst] >= ZERO_SHARE * n else NOTHING
    sentence = f"input gradients that are exactly zero: at most {zero[worst]} of {n} ({worst})"
    return Evidence("zero-gradients", sentence, numbers, points)


def gaps(beyond: int, rows: int, block: str, worst: float) -> Evidence:
    """How many rows of attention are one-hot in float32; not decisive, as gradients may flow through the values."""
    here = beyond / rows if rows else 0.0
    numbers = {"beyond": beyond, "rows": rows, "share": here, "worst_block_share": worst}
    sentence = (
        f"{here:.2%} of the {rows} rows of attention are one-hot in float32 (gap beyond 103.3); most in {block}, "
        f"{worst:.2%}"
    )
    return Evidence("gaps", sentence, numbers, MASKED if here >= ZERO_SHARE else NOTHING)


def share(name: str, count: int, n: int) -> dict[str, float]:
    """A count with its share and 95% interval, as numbers of evidence."""
    measured = accuracy(count, n)
    return {
        name: count,
        f"{name}_of": n,
        f"{name}_share": measured.accuracy,
        f"{name}_low": measured.low,
        f"{name}_high": measured.high,
    }
