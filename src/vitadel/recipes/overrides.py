"""Changing one value deep inside a frozen recipe: `plan.epochs=3`."""

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args, get_type_hints

from vitadel.errors import UsageError, unknown
from vitadel.recipes.recipe import Recipe
from vitadel.threat import read_number


@dataclass(frozen=True, slots=True)
class _Setting:
    """One `path=value`; `rest` is what is left of the path below the node in hand."""

    path: str
    rest: tuple[str, ...]
    text: str


def override(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with every `path=value` applied at once; a value must be of the kind it replaces."""
    read = []
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(f"cannot read --set {setting!r}. Write path=value, such as plan.epochs=3.")
        read.append(_Setting(path, tuple(path.split(".")), text))
    changed = _changed(recipe, read)
    assert isinstance(changed, Recipe)
    return changed


def _changed(node: object, settings: Sequence[_Setting]) -> object:
    """All changes below one node together, because values are checked against each other when a node is made."""
    if not settings:
        return node
    if isinstance(node, Mapping):
        return {**node, **{_only_name(setting): _guessed(setting.text) for setting in settings}}
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        raise UsageError(f"--set {settings[0].path}: there is nothing below a {type(node).__name__}. Shorten the path.")
    fields = {f.name: f for f in dataclasses.fields(node)}
    new: dict[str, object] = {}
    for name in dict.fromkeys(setting.rest[0] for setting in settings):
        if name not in fields:
            raise unknown(f"setting of {type(node).__name__}", name, fields)
        below = [replace(setting, rest=setting.rest[1:]) for setting in settings if setting.rest[0] == name]
        *_, last = below
        new[name] = (
            _changed(_or_blank(node, name), [setting for setting in below if setting.rest])
            if last.rest
            else _parsed(
                _as_declared(getattr(node, name), fields[name]), last.text, last.path, optional=_optional(fields[name])
            )
        )
    return replace(node, **new)


def _or_blank(node: object, name: str) -> object:
    """The part of this name; where there is none yet, one with the values its kind has by itself."""
    part = getattr(node, name)
    kinds = get_args(get_type_hints(type(node))[name]) if part is None else ()
    return next((kind() for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)), part)


def _only_name(setting: _Setting) -> str:
    if len(setting.rest) > 1:
        raise UsageError(f"--set {setting.path}: there is nothing below an option. Shorten the path.")
    return setting.rest[0]


def _guessed(text: str) -> object:
    """An option of a network as JSON would read it, else as text: 0.05, 12, true, avg."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _as_declared(old: object, f: "dataclasses.Field[object]") -> object:
    """A float that happens to be written as a whole number is still a float."""
    return float(old) if type(old) is int and f.type in (float, float | None) else old


def _optional(f: "dataclasses.Field[object]") -> bool:
    return "None" in str(f.type)


def _parsed(old: object, text: str, path: str, *, optional: bool) -> object:
    """`text` as a value of the kind `old` is; an unset number is taken to be a float."""
    if text in ("null", "none") and optional:
        return None
    if isinstance(old, bool):
        if text not in ("true", "false"):
            raise UsageError(f"--set {path} wants true or false, got {text!r}.")
        return text == "true"
    if isinstance(old, enum.Enum):
        kinds = {item.name.lower(): item for item in type(old)}
        if text not in kinds:
            raise unknown(f"value of {path}", text, kinds)
        return kinds[text]
    if isinstance(old, int):
        if not text.lstrip("-").isdecimal():
            raise UsageError(f"--set {path} wants a whole number, got {text!r}.")
        return int(text)
    if isinstance(old, float) or (old is None and optional):
        return read_number(text, f"--set {path}")
    if isinstance(old, str):
        return text
    if isinstance(old, tuple) and old:
        return tuple(_parsed(old[0], part, path, optional=False) for part in text.split(","))
    raise UsageError(f"--set {path} stands for a whole {type(old).__name__}. Set the values inside it instead.")
