"""Changing one value deep inside a frozen recipe: `plan.epochs=3`."""

import dataclasses
import enum
from collections.abc import Sequence

from vitadel.errors import UsageError, unknown
from vitadel.recipes.recipe import Recipe
from vitadel.threat import read_number


def override(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with each `path=value` applied; a value must be of the kind it replaces."""
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(f"cannot read --set {setting!r}. Write path=value, such as plan.epochs=3.")
        changed = _changed(recipe, path.split("."), text, path)
        assert isinstance(changed, Recipe)
        recipe = changed
    return recipe


def _changed(node: object, names: list[str], text: str, path: str) -> object:
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        raise UsageError(f"--set {path}: there is nothing below a {type(node).__name__}. Shorten the path.")
    fields = {f.name: f for f in dataclasses.fields(node)}
    name, *rest = names
    if name not in fields:
        raise unknown(f"setting of {type(node).__name__}", name, fields)
    old = getattr(node, name)
    new = _changed(old, rest, text, path) if rest else _parsed(old, text, path, optional=_optional(fields[name]))
    return dataclasses.replace(node, **{name: new})


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
    raise UsageError(f"--set {path} stands for a whole {type(old).__name__}. Set the values inside it instead.")
