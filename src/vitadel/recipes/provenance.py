"""The values of a recipe, each with its source."""

import dataclasses
import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from vitadel.core.numeric import pixel_text
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
        by_default: Whether it is the default of its class.
        source_path: The path that the source is given for: this path, that of an enclosing part, or "*".
        source: The source of the value.
    """

    path: str
    value: str
    by_default: bool
    source_path: str | None
    source: str | None


def leaves(recipe: Recipe) -> list[Leaf]:
    """All values of a recipe in the order of its fields; parts with a fixed class only if these have a source."""
    values = []
    for path, text, by_default in _visit(recipe, ""):
        source_path = _source_path(recipe.sources, path)
        if path in _PLAIN and source_path != path:
            continue
        values.append(
            Leaf(path, text, by_default, source_path, None if source_path is None else recipe.sources[source_path])
        )
    return values


def _source_path(sources: Mapping[str, str], path: str) -> str | None:
    """The path itself, the innermost enclosing part, or "*": the first that has a source."""
    while path:
        if path in sources:
            return path
        path = path.rpartition(".")[0]
    return "*" if "*" in sources else None


def _visit(node: object, path: str) -> Iterator[tuple[str, str, bool]]:
    for name, value, by_default in _parts(node):
        below = f"{path}.{name}".lstrip(".")
        nested = dataclasses.is_dataclass(value) or isinstance(value, Mapping) or _holds_parts(value)
        if not nested:
            yield below, _text(value, pixels=name in _PIXELS), by_default
            continue
        if dataclasses.is_dataclass(value):
            yield below, type(value).__name__, by_default or below in _PLAIN
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


def _text(value: object, *, pixels: bool = False) -> str:
    """The value as `--set` takes it, if possible; pixel values as fractions of 255, as in papers."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, float):
        of_255 = pixel_text(value) if pixels else ""
        return of_255 if of_255.endswith("/255") else _number(value)
    if isinstance(value, tuple):
        return ",".join(_text(part, pixels=pixels) for part in value)
    return str(getattr(value, "__name__", value))


def _number(value: float) -> str:
    """A short decimal if exact, otherwise a short fraction if exact, otherwise a rounded decimal."""
    simple = Fraction(value).limit_denominator(100)
    exact = float(f"{value:g}") != value and math.isclose(simple, value, rel_tol=1e-12)
    return str(simple) if exact else f"{value:g}"
