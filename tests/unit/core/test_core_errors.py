"""Texts of errors are short, and name what is known."""

import sys

from vitadel.core.errors import quoted, reason, unknown


def test_long_errors_are_truncated() -> None:
    assert quoted("x" * 58) == repr("x" * 58)
    assert quoted("x" * 59) == "'" + "x" * 56 + "..."
    assert len(quoted("x" * 59)) == 60
    assert quoted(10**5000) == "a number of thousands of digits" or sys.get_int_max_str_digits() == 0
    assert reason(ValueError("y" * 200)) == "y" * 200
    assert reason(ValueError("y" * 201)) == "y" * 200 + "..."
    assert reason(ValueError("set weights_only=False")) == "ValueError"
    assert reason(ValueError("GLOBAL os.system was not allowed")) == "it asks for os.system"
    assert str(unknown("suite", "quik", ["quick", "clean"])) == (
        "unknown suite 'quik'. Did you mean 'quick'? Known: clean, quick."
    )
    assert str(unknown("suite", "zzz", ["b", "a"])) == "unknown suite 'zzz'. Known: a, b."
