"""Settings as people write them, `NAME:key=value,key=value`, and results as they are printed."""

import dataclasses
import enum
import typing
from collections.abc import Mapping
from typing import TypeVar

from vitadel.core.errors import UsageError, quoted, unknown
from vitadel.core.numeric import read_number, read_whole

Chosen = TypeVar("Chosen")

# what stands between the values of a list, as commas stand between settings
_AND = "+"
# what a study keeps for figures and nobody reads
_BINS = ("counts", "edges")


def with_settings(chosen: Chosen, name: str, text: str) -> Chosen:
    """`chosen`, a frozen dataclass of settings called `name`, with `queries=1000,iterations=10+20` in their place."""
    kinds = {f.name: typing.get_type_hints(type(chosen))[f.name] for f in dataclasses.fields(chosen)}  # type: ignore[arg-type]
    values: dict[str, object] = {}
    for setting in filter(None, text.split(",")):
        key, equals, value = setting.partition("=")
        if not equals or key not in kinds:
            raise unknown(f"setting of {name}", key, kinds)
        values[key] = read_value(kinds[key], value, f"{name}:{key}")
    return dataclasses.replace(chosen, **values)  # type: ignore[type-var]


def read_value(kind: object, text: str, what: str) -> object:
    """The value of a setting: a number, words, true or false, one of a few choices, several of these, or none."""
    inner = typing.get_args(kind)
    if type(None) in inner:
        return None if text == "none" else read_value(next(one for one in inner if one is not type(None)), text, what)
    if typing.get_origin(kind) is tuple:
        # () is written as nothing at all
        return tuple(_single(inner[0], one, what, several=True) for one in text.split(_AND)) if text else ()
    return _single(kind, text, what)


def _single(kind: object, text: str, what: str, *, several: bool = False) -> object:
    from vitadel.attacks import SCALINGS, Scaling

    if kind is Scaling:
        if text not in SCALINGS:
            raise unknown(what, text, SCALINGS)
        return SCALINGS[text]()
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        choices = {str(one.value): one for one in kind}
        if text not in choices:
            raise unknown(what, text, choices)
        return choices[text]
    if kind is bool:
        if text not in ("true", "false"):
            raise UsageError(f"{what} wants true or false, got {quoted(text)}.")
        return text == "true"
    if kind is str:
        if not text:
            raise UsageError(f"{what} wants a word, got nothing. Leave the setting out for the usual one.")
        return text
    if kind is float:
        return read_number(text, what)
    assert kind is int, f"{what} is of a kind that cannot be written: {kind}"
    return read_whole(text, what, more=f", several with {_AND} between them" if several else "")


def without_bulk(result: Mapping[str, object]) -> dict[str, object]:
    """The result without pictures and histograms, which are in the run folder."""
    exhibits = result.get("exhibits")
    if isinstance(exhibits, list):
        return {**result, "exhibits": [_pruned(one, "cells") for one in exhibits]}
    return {key: _pruned(value, *_BINS) for key, value in result.items() if key not in _BINS}


def _pruned(value: object, *names: str) -> object:
    if isinstance(value, dict):
        return {key: _pruned(inner, *names) for key, inner in value.items() if key not in names}
    return [_pruned(inner, *names) for inner in value] if isinstance(value, list) else value
