"""Texts of errors are short, and name what is known."""

import sys

import pytest

from vitadel.core.errors import short_reason, short_repr, spelled, unknown_name_error


def test_long_errors_are_truncated() -> None:
    assert short_repr("x" * 58) == repr("x" * 58)
    assert short_repr("x" * 59) == "'" + "x" * 56 + "..."
    assert len(short_repr("x" * 59)) == 60
    assert short_repr(10**5000) == "a number of thousands of digits" or sys.get_int_max_str_digits() == 0
    assert short_reason(ValueError("y" * 200)) == "y" * 200
    assert short_reason(ValueError("y" * 201)) == "y" * 200 + "..."
    assert short_reason(ValueError("set weights_only=False")) == "ValueError"
    assert short_reason(ValueError("GLOBAL os.system was not allowed")) == "it references os.system"
    assert str(unknown_name_error("suite", "quik", ["quick", "clean"])) == (
        "unknown suite 'quik'. Did you mean 'quick'? Known: clean, quick."
    )
    assert str(unknown_name_error("suite", "zzz", ["b", "a"])) == "unknown suite 'zzz'. Known: a, b."


def test_a_name_that_is_cut_short_is_completed() -> None:
    """By difflib alone `digits-adv` is nearer to a shorter name that it does not begin."""
    known = ["digits-aas", "digits-adversarial", "digits-adversarial-awp", "cifar10"]
    assert "Did you mean 'digits-adversarial'?" in str(unknown_name_error("recipe", "digits-adv", known))
    assert "Did you mean 'cifar10'?" in str(unknown_name_error("recipe", "cifr10", known))
    assert "Did you mean 'cifar10'?" in str(unknown_name_error("recipe", "digits", known, meant="cifar10"))
    assert "Did you mean" not in str(unknown_name_error("recipe", "", known))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 200 + "..."),
        ("two\n  lines", "two lines"),
        ("", "ValueError"),
        ("Weights only load failed; set weights_only=False", "ValueError"),
        ("Unsupported global: GLOBAL os.system was not allowed", "it references os.system"),
        ("GLOBAL " + "m" * 90, "it references " + "m" * 80),
        ("PytorchStreamReader: a TorchScript archive", "it is a TorchScript archive"),
        ("Object arrays cannot be loaded when allow_pickle=False", "it holds Python objects, or no array at all"),
    ],
)
def test_reasons_of_libraries_are_one_short_line_without_dangerous_advice(text: str, reason: str) -> None:
    assert short_reason(ValueError(text)) == reason


def test_options_are_spelled_for_python_and_the_command_line() -> None:
    assert spelled("keep_images") == "keep_images=True (--keep-images)"
    assert spelled("threat", "l2:1") == 'threat="l2:1" (--threat l2:1)'


def test_similar_names_are_suggested() -> None:
    names = ["pgd", "apgd", "square"]
    assert "Did you mean 'square'? Known: apgd, pgd, square." in str(unknown_name_error("attack", "sq", names))
    assert "Did you mean 'apgd'?" in str(unknown_name_error("attack", "apgdd", names))
    assert str(unknown_name_error("attack", "zzz", names)) == "unknown attack 'zzz'. Known: apgd, pgd, square."
    assert "Did you mean 'fgsm'?" in str(unknown_name_error("attack", "pgd1", names, meant="fgsm"))
    assert "Did you mean" not in str(unknown_name_error("attack", "", names))
