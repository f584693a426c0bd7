"""Every value of a recipe, one by one, and where it comes from."""

import dataclasses
import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from vitadel.recipes.recipe import Recipe

# about the recipe, not part of what it does
_ABOUT = ("name", "about", "sources", "expect")
# these parts are always of one kind, which therefore is nobody's choice
_PLAIN = ("model", "plan", "selection")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value: its path as `--set` takes it, the value as text, whether the class has it by default, its source.

    A part that may be of several kinds, such as the objective or an attack, is a leaf too: its value is the kind.
    `said_of` is the path that the source was given for: the leaf's own, that of a part it belongs to, or "*".
    """

    path: str
    value: str
    by_default: bool
    said_of: str | None
    source: str | None


def leaves(recipe: Recipe) -> list[Leaf]:
    """All values of a recipe in the order of its fields; a part of one possible kind only if a source speaks of it."""
    found = []
    for path, text, by_default in _walk(recipe, ""):
        said_of = _said_of(recipe.sources, path)
        if path in _PLAIN and said_of != path:
            continue
        found.append(Leaf(path, text, by_default, said_of, None if said_of is None else recipe.sources[said_of]))
    return found


def _said_of(sources: Mapping[str, str], path: str) -> str | None:
    """The path itself, the nearest part it belongs to, or all: the first that the sources speak of."""
    while path:
        if path in sources:
            return path
        path = path.rpartition(".")[0]
    return "*" if "*" in sources else None


def _walk(node: object, path: str) -> Iterator[tuple[str, str, bool]]:
    for name, value, by_default in _parts(node):
        below = f"{path}.{name}".lstrip(".")
        nested = dataclasses.is_dataclass(value) or isinstance(value, Mapping) or _holds_parts(value)
        if not nested:
            yield below, _told(value), by_default
            continue
        if dataclasses.is_dataclass(value):
            yield below, type(value).__name__, by_default or below in _PLAIN
        yield from _walk(value, below)


def _parts(node: object) -> Iterator[tuple[str, object, bool]]:
    """The names and values right below a node, and which of them are its class's defaults."""
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


def _told(value: object) -> str:
    """As `--set` takes it, where it can."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, tuple):
        return ",".join(_told(part) for part in value)
    return str(getattr(value, "__name__", value))


def _number(value: float) -> str:
    """A short decimal, else a short fraction, else a fraction of 255 as pixels are written, else a decimal cut off."""
    if float(f"{value:g}") == value:
        return f"{value:g}"
    simple, levels = Fraction(value).limit_denominator(100), round(255 * value, 1)
    if math.isclose(simple, value, rel_tol=1e-12):
        return str(simple)
    return f"{levels:g}/255" if math.isclose(levels / 255, value, rel_tol=1e-12) else f"{value:g}"
