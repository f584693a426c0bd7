"""Numbers as text, and the errors of refused numbers."""

import math
import time
from typing import Any

import pytest

from vitadel.analyze import Convergence, Lesion, Masking, RestrictedAttention, Saliency
from vitadel.attacks import APGD, ATTACKS, FAB, GAMA, PGD, Engine, Scaling, Square
from vitadel.core.errors import UsageError, short_repr, unknown_name_error
from vitadel.core.numeric import Range, check_number, check_seed, parse_int, parse_number
from vitadel.evaluate.suites.gray_level import GrayLevel
from vitadel.threats import Linf
from vitadel.train import TrainingConfig
from vitadel.train.optim import SGD, AdamW, Lion


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8/255", 8 / 255),
        ("0.5/255", 0.5 / 255),
        (" 8 / 255 ", 8 / 255),
        ("1/3", 1 / 3),
        ("0.3", 0.3),
        (".5", 0.5),
        ("2.", 2.0),
        ("-3e-2", -0.03),
        ("+1E3", 1000.0),
        ("1e-320", 1e-320),
        ("0/5", 0.0),
        ("0e5", 0.0),
        (repr(0.1 + 0.2), 0.1 + 0.2),
        (f"{0.1:.55f}", 0.1),
    ],
)
def test_a_number_is_a_decimal_or_a_fraction_of_two(text: str, value: float) -> None:
    assert parse_number(text, "eps") == value


@pytest.mark.parametrize(
    "text",
    [
        *("8/255/2", "8//255", "/255", "8/", "1/2/3/4", "8/0", "8/0.0"),
        *("nan", "inf", "-inf", "infinity", "1_000", "1 000", "0x10", "1e", "e5", "1e1.5", "--1", "1,5", "", " "),
        *("\N{FULLWIDTH DIGIT EIGHT}/255", "\N{ARABIC-INDIC DIGIT THREE}", "½", "8\N{DIVISION SLASH}255"),
    ],
)
def test_other_texts_than_numbers_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"eps is not a number: got .* Write a fraction such as 8/255 or a decimal\."):
        parse_number(text, "eps")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1e400", "eps is too large a number: got '1e400'. Write a smaller one."),
        ("1/1e-400", "too large a number"),
        ("1e-400", "eps is too small a number: got '1e-400'. Write a larger one, or 0."),
        ("1/1e400", "too small a number"),
        ("1e999999999", "too many digits: got '1e999999999'"),
        ("1/1e999999999", "too many digits"),
        ("1e-999999999", "too many digits"),
        ("9" * 10**6, "too many digits: got '999"),
        ("0." + "0" * 10**6 + "1", "too many digits"),
    ],
    ids=short_repr,
)
def test_long_numbers_are_fast(text: str, message: str) -> None:
    started = time.perf_counter()
    with pytest.raises(UsageError) as raised:
        parse_number(text, "eps")
    assert message in str(raised.value)
    assert len(str(raised.value)) < 200
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    ("text", "value"), [("12", 12), ("-3", -3), ("007", 7), *((str(n), n) for n in (2**63 - 1, -(2**63)))]
)
def test_an_integer_has_ascii_digits(text: str, value: int) -> None:
    assert parse_int(text, "steps") == value


@pytest.mark.parametrize(
    "text", ["", "-", "+5", "1.0", "1e3", "1_000", " 5", "x", "--5", "\N{FULLWIDTH DIGIT FIVE}", "²"]
)
def test_other_texts_than_integers_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"steps needs a whole number, several with \+, got "):
        parse_int(text, "steps", more=", several with +")


@pytest.mark.parametrize("text", [str(2**63), str(-(2**63) - 1), "9" * 5000], ids=short_repr)
def test_an_integer_has_64_bits(text: str) -> None:
    with pytest.raises(UsageError, match="steps is too large a number: got .* Write a smaller one") as raised:
        parse_int(text, "steps")
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ATTACKS["fgsm"](step_size=-0.1), "FGSM.step_size must be positive, got -0.1. Leave it out for eps."),
        (lambda: PGD(steps=2.5), "PGD.steps must be a whole number and be at least 1, got 2.5."),  # type: ignore[arg-type]
        (lambda: PGD(steps=True), "PGD.steps must be a whole number and be at least 1, got True."),
        (lambda: PGD(steps=2**31 - 1), "PGD.steps must lie in [1, 1000000], got 2147483647."),
        (lambda: PGD(steps=10**5000), "PGD.steps must lie in [1, 1000000], got a number of thousands of digits."),
        (lambda: Masking(targets=2**31), "Masking.targets must lie in [1, 2147483647], got 2147483648."),
        (lambda: SGD(1e38), "SGD.lr must lie in (0, 1e+10], got 1e+38."),
        (lambda: AdamW(0.1, betas=(1, 1)), "AdamW.betas[0] must lie in [0, 1), got 1."),
        (
            lambda: AdamW(0.1, betas=(0.9,)),  # type: ignore[arg-type]
            "AdamW.betas must be a tuple of 2 numbers, got (0.9,). Write for example (0, 0).",
        ),
        (lambda: AdamW(0.1, betas="ab"), "AdamW.betas must be a tuple of numbers, got 'ab'. Write for example (1, 2)."),  # type: ignore[arg-type]
        (lambda: SGD(0.1, momentum=0), "SGD.nesterov needs momentum > 0, got momentum=0."),
        (lambda: Linf("8/255" * 99), "Linf.eps must be a finite number and lie in (0, 1], got '8/2558/255"),  # type: ignore[arg-type]
        (lambda: check_seed(2**64), "the seed must lie in [-9223372036854775808, 9223372036854775807], got 1844674407"),
        (lambda: check_seed(None), "the seed must be a whole number and lie in [-9223372036854775808, 92233720368547"),
    ],
)
def test_the_error_names_range_and_value(make: Any, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        make()
    assert str(raised.value).startswith(message)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("make", "most"),
    [
        *((lambda n, kind=kind: kind(steps=n), 10**6) for kind in (APGD, FAB, GAMA, PGD, Saliency, GrayLevel)),
        *((lambda n, kind=kind: kind(restarts=n), 10**6) for kind in (APGD, FAB, GAMA, PGD, Square)),
        (lambda n: APGD(eot_samples=n), 10**4),
        (lambda n: Square(queries=n), 10**6),
        (lambda n: Scaling(batches=n), 10**6),
        (lambda n: Engine(sync_interval=n), 10**6),
        (lambda n: Convergence(steps=(0, n)), 10**6),
        (lambda n: Convergence(restarts=n), 10**3),
        (lambda n: Masking(iterations=(10, n)), 10**6),
        (lambda n: Masking(steps=n), 10**6),
        (lambda n: Masking(queries=n), 10**6),
        (lambda n: Lesion(draws=n), 10**4),
        (lambda n: RestrictedAttention(draws=n), 10**3),
        (lambda n: AdamW(lr=n), 10**10),
        (lambda n: Lion(lr=0.1, weight_decay=n), 10**10),
        (lambda n: TrainingConfig(1, 1, AdamW(lr=0.1), warmup_lr=n), 10**10),
    ],
)
def test_what_no_machine_can_compute_is_refused(make: Any, most: int) -> None:
    """Tables of 2**31 steps would fill the memory, and rates beyond float32 end in an error of torch."""
    make(most)
    with pytest.raises(UsageError, match=r" must lie in [\[(][01], 1[01e+]*\], got 10*1\."):
        make(most + 1)


def test_ranges_are_described() -> None:
    words = {
        "be at least 2": Range(ge=2),
        "be above 0.5": Range(gt=0.5),
        "be at most 3": Range(le=3),
        "be below 3": Range(lt=3),
        "be positive": Range(gt=0),
        "not be negative": Range(ge=0),
        "lie in [1, 5]": Range(ge=1, le=5),
        "lie in (0, 1)": Range(gt=0, lt=1),
    }
    for text, kind in words.items():
        assert kind.description == text


def test_a_type_without_a_range_accepts_everything() -> None:
    check_number("x", tuple[str, ...], ("a",))
    check_number("x", float | None, math.nan)


def test_a_long_value_is_truncated() -> None:
    assert short_repr("a" * 1000) == "'" + "a" * 56 + "..."
    assert short_repr(0.5) == "0.5"
    assert str(unknown_name_error("name", "b" * 5000, ["a"])) == f"unknown name '{'b' * 56}.... Known: a."
