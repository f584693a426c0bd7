"""Every branch of the verdict, on constructed evidence."""

import pytest

from vitadel.analyze import masking_verdict as verdict
from vitadel.analyze.masking_verdict import CANNOT_TELL, MASKED, NOT_MASKED, NOTHING, Evidence, Verdict

QUIET = {
    "square": verdict.square(0, 80, 5000),
    "scaling": verdict.scaling(2, 3, 1, 80),
    "far": verdict.large_eps(0, 0, 120, "linf:100/255"),
    "iterations": verdict.iterations({10: 1, 20: 2}, {10: 9, 20: 3}, 50),
    "zero-gradients": verdict.zero_gradients({"cross-entropy, images": 0}, 130),
    "gaps": verdict.gaps(0, 5000, "blocks.0.attn", 0.0),
}


def weighed(*loud: Evidence, correct: int = 120, n: int = 130, num_classes: int = 10, without: str = "") -> Verdict:
    known = {**QUIET, **{one.code: one for one in loud}}
    return verdict.verdict_from(
        [one for code, one in known.items() if code != without], correct=correct, n=n, num_classes=num_classes
    )


def test_unsuspicious_tests_mean_not_masked() -> None:
    result = weighed()
    assert result.answer == NOT_MASKED
    assert {one.points for one in result.evidence if one.is_decisive} == {NOT_MASKED}
    assert {one.points for one in result.evidence if not one.is_decisive} == {NOTHING}


@pytest.mark.parametrize(
    "decisive",
    [
        verdict.square(3, 80, 5000),
        verdict.scaling(10, 1, 4, 80),
        verdict.large_eps(4, 1, 120, "linf:100/255"),
        verdict.iterations({10: 12, 20: 2}, {10: 1, 20: 3}, 50),
    ],
    ids=lambda one: one.code,
)
def test_any_decisive_test_suffices(decisive: Evidence) -> None:
    result = weighed(decisive)
    assert (decisive.points, result.answer) == (MASKED, MASKED)
    assert result.because.endswith(decisive.code)
    assert weighed(decisive, correct=40, n=45).answer == MASKED  # a decisive test needs no hundred images


@pytest.mark.parametrize(
    "inconclusive",
    [
        verdict.square(2, 80, 5000),  # fewer than three
        verdict.square(3, 1500, 5000),  # no more than 0.2%
        verdict.square(0, 0, 5000),
        verdict.scaling(8, 2, 4, 80),  # p = 0.055
        verdict.scaling(6, 0, 0, 80),  # p = 0.016
        verdict.scaling(0, 0, 0, 0),
        verdict.large_eps(4, 0, 120, "linf:100/255"),  # a longer attack breaks them
        verdict.iterations({10: 8, 20: 2}, {10: 1, 20: 3}, 50),  # p = 0.02, of two comparisons
    ],
    ids=lambda one: one.sentence[:30],
)
def test_differences_at_chance_level_do_not_suffice(inconclusive: Evidence) -> None:
    assert inconclusive.points == NOT_MASKED
    assert weighed(inconclusive).answer == NOT_MASKED


def test_the_level_is_divided_among_comparisons() -> None:
    # 7 to 0 has p = 0.0078: enough for one comparison and not for two
    assert verdict.iterations({10: 7}, {10: 0}, 50).points == MASKED
    assert verdict.iterations({10: 7, 20: 0}, {10: 0, 20: 0}, 50).points == NOT_MASKED


def test_too_few_correct_images_give_no_verdict() -> None:
    assert weighed(correct=100).answer == NOT_MASKED
    result = weighed(correct=99)
    assert result.answer == CANNOT_TELL
    assert "only 99 images are classified correctly, and 100 are needed" in result.because


def test_accuracy_at_chance_gives_no_verdict() -> None:
    constant = verdict.large_eps(13, 13, 13, "linf:100/255")  # a constant prediction is robust everywhere
    result = weighed(constant, correct=13, n=130)
    assert result.answer == CANNOT_TELL
    assert "chance" in result.because


@pytest.mark.parametrize("code", verdict.DECISIVE)
def test_a_missing_test_is_reported(code: str) -> None:
    result = weighed(without=code)
    assert result.answer == CANNOT_TELL
    assert f"{code} is missing" in result.because


def test_zero_gradients_alone_are_not_decisive() -> None:
    some = verdict.zero_gradients({"cross-entropy, images": 0, "margin, random points": 2}, 130)
    assert some.points == MASKED
    result = weighed(some)
    assert (result.answer, result.because) == (
        CANNOT_TELL,
        "gradients are exactly zero, yet no attack does better without them",
    )
    assert weighed(some, verdict.square(30, 80, 5000)).answer == MASKED
    assert verdict.zero_gradients({"margin, images": 1}, 130).points == NOTHING  # below one percent


def test_gaps_alone_are_not_decisive() -> None:
    saturated = verdict.gaps(4000, 5000, "blocks.1.attn", 1.0)
    assert saturated.points == MASKED
    assert weighed(saturated).answer == NOT_MASKED


def test_shares_come_with_intervals() -> None:
    numbers = verdict.square(40, 80, 5000).numbers
    assert numbers["broken_share"] == 0.5
    assert 0.39 < numbers["broken_low"] < 0.5 < numbers["broken_high"] < 0.61
