"""Malicious JSON is refused with one short line; other JSON is read as by the json module."""

import json

import pytest

from vitadel.core import files
from vitadel.core.files import MOST_LEVELS, parse_json


def test_ordinary_json_matches_the_json_module() -> None:
    text = '{"a": [1, -2.5, 1e3, true, null, "\\u00e4"], "b": {"c": []}, "seed": -9223372036854775808}'
    assert parse_json(text) == json.loads(text)
    assert parse_json(text.encode()) == json.loads(text)
    assert parse_json("7") == 7


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_depth_is_bounded(opened: str, closed: str) -> None:
    deepest = opened * MOST_LEVELS + "0" + closed * MOST_LEVELS
    assert parse_json(deepest) == json.loads(deepest)
    for levels in (MOST_LEVELS + 1, 900, 100_000):
        with pytest.raises(ValueError, match="^it is nested more than 100 levels deep$"):
            parse_json(opened * levels + "0" + closed * levels)
    with pytest.raises(ValueError, match=r"nested|Expecting"):
        parse_json(opened * 100_000)


def test_integers_are_bounded_without_advice_to_lift_the_limit() -> None:
    assert parse_json("9" * 40) == 10**40 - 1
    for digits in (41, 5_000, 1_000_000):
        with pytest.raises(ValueError, match=f"^it has an integer of {digits} digits, more than 40$"):
            parse_json("[" + "9" * digits + "]")


def test_length_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_CHARACTERS", 10)
    assert parse_json("[1, 2, 34]") == [1, 2, 34]
    with pytest.raises(ValueError, match="^it has 11 characters, more than 10$"):
        parse_json("[1, 2, 345]")


def test_invalid_json_is_a_value_error() -> None:
    for text in ("", "{", b"\xff\xfe\xff", "nul", "{'a': 1}"):
        with pytest.raises(ValueError, match=r"."):
            parse_json(text)
