"""Values as a study told them in JSON; one that is of another kind raises a TypeError that says so."""

from collections.abc import Mapping

Told = Mapping[str, object]


def mapping(value: object) -> Told:
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected, got {value!r:.40}")
    return value


def values(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"a list was expected, got {value!r:.40}")
    return value


def mappings(value: object) -> list[Told]:
    return [mapping(one) for one in values(value)]


def number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"a number was expected, got {value!r:.40}")
    return float(value)


def whole(value: object) -> int:
    return int(number(value))


def text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text was expected, got {value!r:.40}")
    return value


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"true or false was expected, got {value!r:.40}")
    return value
