"""Changing one value deep inside a frozen recipe: `plan.epochs=3`."""

import dataclasses
import enum
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args, get_origin, get_type_hints

from vitadel.core.errors import UsageError, quoted, unknown
from vitadel.core.files import parse_json
from vitadel.core.numeric import read_number, read_whole
from vitadel.recipes.recipe import Recipe


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
            raise UsageError(f"cannot read --set {quoted(setting)}. Write path=value, such as plan.epochs=3.")
        read.append(_Setting(path, tuple(path.split(".")), text))
    changed = _changed(recipe, read)
    assert isinstance(changed, Recipe)
    return changed


def _changed(node: object, settings: Sequence[_Setting]) -> object:
    """All changes below one node together, because values are checked against each other when a node is made."""
    if not settings:
        return node
    if isinstance(node, Mapping):
        return {**node, **{_only_name(setting): _guessed(setting) for setting in settings}}
    if isinstance(node, tuple):
        _check_numbers(settings, len(node))
        return tuple(_changed_item(str(at), part, settings) for at, part in enumerate(node))
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        raise UsageError(f"--set {settings[0].path}: there is nothing below a {type(node).__name__}. Shorten the path.")
    kinds = {f.name: get_type_hints(type(node))[f.name] for f in dataclasses.fields(node)}
    new: dict[str, object] = {}
    for name in dict.fromkeys(setting.rest[0] for setting in settings):
        if name not in kinds:
            raise unknown(f"setting of {type(node).__name__}", name, kinds)
        below = _below(name, settings)
        *_, last = below
        if last.rest:
            new[name] = _changed(_or_blank(node, name), [setting for setting in below if setting.rest])
        else:
            new[name] = _parsed(kinds[name], last, getattr(node, name))
    return replace(node, **new)


def _below(name: str, settings: Sequence[_Setting]) -> list[_Setting]:
    return [replace(setting, rest=setting.rest[1:]) for setting in settings if setting.rest[0] == name]


def _check_numbers(settings: Sequence[_Setting], count: int) -> None:
    for setting in settings:
        if setting.rest[0] not in map(str, range(count)):
            known = f"there are {count} parts, called 0 to {count - 1}. Name one." if count else "there are no parts."
            raise UsageError(f"--set {setting.path}: {known}")


def _changed_item(at: str, part: object, settings: Sequence[_Setting]) -> object:
    """One of several parts, such as `plan.augment.steps.0`."""
    below = _below(at, settings)
    if whole := next((setting for setting in below if not setting.rest), None):
        raise _a_whole(type(part), whole)
    return _changed(part, below)


def _or_blank(node: object, name: str) -> object:
    """The part of this name; where there is none yet, one with the values its kind has by itself."""
    part = getattr(node, name)
    kinds = get_args(get_type_hints(type(node))[name]) if part is None else ()
    return next((kind() for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)), part)


def _only_name(setting: _Setting) -> str:
    if len(setting.rest) > 1:
        raise UsageError(f"--set {setting.path}: there is nothing below an option. Shorten the path.")
    return setting.rest[0]


def _guessed(setting: _Setting) -> object:
    """An option of a network as JSON would read it, else as text: 0.05, 12, true, avg."""
    text, what = setting.text, f"--set {setting.path}"
    if re.fullmatch("-?[0-9]+", text):
        return read_whole(text, what)
    try:
        value = parse_json(text)
    except ValueError:
        if text.startswith(("[", "{")):
            raise UsageError(f"{what} wants a number, true, false or a word, got {quoted(text)}.") from None
        return text
    if isinstance(value, float) and math.isinf(value) and text[-1:].isdigit():
        return read_number(text, what)  # which refuses it
    if isinstance(value, dict | list) or (isinstance(value, float) and not math.isfinite(value)):
        raise UsageError(f"{what} wants a number, true, false or a word, got {quoted(text)}.")
    return value


def _parsed(kind: object, setting: _Setting, old: object) -> object:
    """The value as one of the declared kind."""
    inner, text, path = get_args(kind), setting.text, setting.path
    if type(None) in inner:
        known = next(one for one in inner if one is not type(None))
        return None if text in ("null", "none") else _parsed(known, setting, old)
    if get_origin(kind) is tuple:
        return _several(inner, setting, old)
    if kind is bool:
        if text not in ("true", "false"):
            raise UsageError(f"--set {path} wants true or false, got {quoted(text)}.")
        return text == "true"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        choices = {item.name.lower(): item for item in kind}
        if text not in choices:
            raise unknown(f"value of {path}", text, choices)
        return choices[text]
    if kind is int:
        return read_whole(text, f"--set {path}")
    if kind is float:
        return read_number(text, f"--set {path}")
    if kind is str:
        return text
    raise _a_whole(kind if old is None else type(old), setting)


def _several(kinds: Sequence[object], setting: _Setting, old: object) -> tuple[object, ...]:
    """Values with commas between; nothing at all is none of them, where any number will do."""
    parts = setting.text.split(",") if setting.text else []
    if kinds[-1] is Ellipsis:
        kinds = [kinds[0]] * len(parts)
    if len(parts) != len(kinds):
        raise UsageError(
            f"--set {setting.path} wants {len(kinds)} values with commas between, got {quoted(setting.text)}."
        )
    return tuple(_parsed(kind, replace(setting, text=part), old) for kind, part in zip(kinds, parts, strict=True))


def _a_whole(kind: object, setting: _Setting) -> UsageError:
    name = getattr(kind, "__name__", str(kind))
    return UsageError(f"--set {setting.path} stands for a whole {name}. Set the values inside it instead.")
