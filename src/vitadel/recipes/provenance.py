"""The values of a recipe, each with its source."""

import dataclasses
import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from vitadel.core.numeric import pixel_text
from vitadel.core.settings import field_docs
from vitadel.recipes.recipe import Recipe

# describe the recipe and have no effect
_ABOUT = ("name", "about", "sources", "expect")
# parts whose class is fixed, so that the class needs no source
_PLAIN = ("model", "plan", "selection")
# settings that are pixel values or differences of them
_PIXELS = ("eps", "step_size", "start_noise", "fill")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a recipe. Parts that may have different classes, such as the objective, are leaves, too.

    Args:
        path: The path for `--set`.
        value: The value as `--set` takes it, or the name of the class.
        text: The same as lists and pages of settings show it, with `+` between the values of a tuple.
        about: The description of the setting; empty for an item of a tuple or a mapping.
        by_default: Whether it is the default of its class.
        source_path: The path that the source is given for: this path, that of an enclosing part, or "*".
        source: The source of the value.
    """

    path: str
    value: str
    text: str
    about: str
    by_default: bool
    source_path: str | None
    source: str | None


def leaves(recipe: Recipe) -> list[Leaf]:
    """All values of a recipe in the order of its fields; parts with a fixed class only if these have a source."""
    values = []
    for path, value, text, about, by_default in _visit(recipe, ""):
        source_path = _source_path(recipe.sources, path)
        if path in _PLAIN and source_path != path:
            continue
        values.append(
            Leaf(
                path,
                value,
                text,
                about,
                by_default,
                source_path,
                None if source_path is None else recipe.sources[source_path],
            )
        )
    return values


def _source_path(sources: Mapping[str, str], path: str) -> str | None:
    """The path itself, the innermost enclosing part, or "*": the first that has a source."""
    while path:
        if path in sources:
            return path
        path = path.rpartition(".")[0]
    return "*" if "*" in sources else None


def _visit(node: object, path: str) -> Iterator[tuple[str, str, str, str, bool]]:
    docs = field_docs(type(node)) if dataclasses.is_dataclass(node) else {}  # type: ignore[arg-type]
    for name, value, by_default in _parts(node):
        below = f"{path}.{name}".lstrip(".")
        nested = dataclasses.is_dataclass(value) or isinstance(value, Mapping) or _holds_parts(value)
        if not nested:
            pixels, about = name in _PIXELS, docs.get(name, "")
            shown = value_text(value, pixels=pixels, separator="+", unset="none")
            yield below, value_text(value, pixels=pixels), shown, about, by_default
            continue
        if dataclasses.is_dataclass(value):
            kind = type(value).__name__
            yield below, kind, kind, docs.get(name, ""), by_default or below in _PLAIN
        yield from _visit(value, below)


def _parts(node: object) -> Iterator[tuple[str, object, bool]]:
    """The names and values of a node's fields, and whether each is the default."""
    if isinstance(node, Mapping):
        yield from ((str(key), value, False) for key, value in node.items())
    elif isinstance(node, tuple):
        yield from ((str(number), value, False) for number, value in enumerate(node))
    else:
        assert dataclasses.is_dataclass(node)
        for field in dataclasses.fields(node):
            if not (isinstance(node, Recipe) and field.name in _ABOUT):
                value = getattr(node, field.name)
                yield field.name, value, value == _default(field)


def _default(field: "dataclasses.Field[object]") -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _holds_parts(value: object) -> bool:
    return isinstance(value, tuple) and any(dataclasses.is_dataclass(part) for part in value)


def value_text(value: object, *, pixels: bool = False, separator: str = ",", unset: str = "null") -> str:
    """A value as `--set` takes it, where it can.

    Args:
        value: The value of a setting.
        pixels: Write it as a fraction of 255, as papers do.
        separator: What separates the values of a tuple; with `+`, an empty one is `()`.
        unset: The text of None.
    """
    if isinstance(value, bool) or value is None:
        return unset if value is None else str(value).lower()
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, float):
        of_255 = pixel_text(value) if pixels else ""
        return of_255 if of_255.endswith("/255") else _number(value)
    if isinstance(value, tuple):
        parts = (value_text(part, pixels=pixels, separator=separator, unset=unset) for part in value)
        return separator.join(parts) or ("()" if separator == "+" else "")
    return str(getattr(value, "__name__", value))


def _number(value: float) -> str:
    """A short decimal if exact, otherwise a short fraction if exact, otherwise a rounded decimal."""
    simple = Fraction(value).limit_denominator(100)
    exact = float(f"{value:g}") != value and math.isclose(simple, value, rel_tol=1e-12)
    return str(simple) if exact else f"{value:g}"
