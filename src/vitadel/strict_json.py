"""JSON from files that nobody vouches for: bounded in length, in depth and in the size of its numbers."""

import json

# far beyond anything written here: the pictures of a study are a few megabytes, its lists nest ten deep
MOST_CHARACTERS = 2**28
MOST_LEVELS = 100
# an integer of 40 digits holds every seed and count, and still fits into a float
MOST_DIGITS = 40


def parse_json(text: str | bytes) -> object:
    """The value that a JSON text stands for.

    Raises:
        ValueError: The text is not JSON, or is longer or nested more deeply than any this package writes, or has a
            longer integer. The message is one short line.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has {len(text)} characters, more than {MOST_CHARACTERS}")
    try:
        value: object = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(value)
    return value


_TOO_DEEP = f"it is nested more than {MOST_LEVELS} levels deep"


def _integer(digits: str) -> int:
    # Python's own error for these advises to lift its limit
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"it has an integer of {len(digits)} digits, more than {MOST_DIGITS}")
    return int(digits)


def _check_depth(value: object) -> None:
    """Whoever walks through the value later may do so by recursion."""
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [inner for outer in level for inner in _parts(outer) if isinstance(inner, dict | list)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _parts(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
