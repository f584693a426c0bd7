"""Settings written as text: `NAME:key=value,...`, `--set path=value` and `--axis path=value,value`.

A value is read as its field's type annotation says, and a path such as `scaling.steps` leads into dataclasses, tuples
(`steps.0`) and mappings. Types of other packages, such as a threat or an attack, bring a function that reads them
(`Notation.readers`), because this package knows none of them.
"""

import ast
import dataclasses
import enum
import functools
import inspect
import itertools
import math
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from vitadel.core.errors import UsageError, short_repr, unknown_name_error
from vitadel.core.files import parse_json
from vitadel.core.numeric import parse_int, parse_number

Settings = TypeVar("Settings")
# (text, what an error calls the setting) -> value
Reader = Callable[[str, str], object]

_NONE = ("none", "null")
_WORD = re.compile(r"[\w.+-]+", re.ASCII)
_OPTION = "needs a number, true, false or a word, got {}. Write one of these."


@dataclass(frozen=True, slots=True)
class Notation:
    """How settings are written in one place.

    Args:
        prefix: What an error puts before the path of a setting: `--set ` or `pgd:`.
        separator: What separates the values of a tuple.
        owner: What an error calls the object whose settings these are; its class name if empty.
        readers: Functions that read types of other packages, by type.
    """

    prefix: str = ""
    separator: str = "+"
    owner: str = ""
    readers: Mapping[Any, Reader] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Setting:
    """One setting; `rest` is what remains of its path below the current node, `value` is text or an object."""

    path: str
    rest: tuple[str, ...]
    value: object

    def below(self) -> "_Setting":
        return replace(self, rest=self.rest[1:])


def split_name(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The name and the settings of `masking:queries=1000,iterations=10+20`."""
    name, _, rest = text.partition(":")
    settings = []
    for setting in filter(None, rest.split(",")):
        key, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"the setting {short_repr(key)} of {name} has no value. Write {name}:{key}=VALUE.")
        settings.append((key, value))
    return name, settings


def split_assignment(text: str, option: str, example: str) -> tuple[str, str]:
    """The path and the value of `path=value`.

    Args:
        text: What the user wrote.
        option: The option it was given to, for the error.
        example: What to write instead, for the error.
    """
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise UsageError(f"cannot read {option} {short_repr(text)}. Write {example}.")
    return path, value


def with_settings(
    chosen: Settings, settings: Iterable[tuple[str, object]], notation: Notation, *, also: Iterable[str] = ()
) -> Settings:
    """A copy of a frozen dataclass with every setting applied at once.

    Args:
        chosen: The dataclass.
        settings: Pairs of path and value. A text is read as the field's annotation says; numbers, None, tuples and
            objects of the right type are taken as they are. If a path occurs twice, the last value is used.
        notation: How the settings are written.
        also: Further names for the list in an error: settings that the caller reads itself.

    Raises:
        UsageError: If there is no such setting, or its value is not of the field's type.
    """
    read = [_Setting(path, tuple(path.split(".")), value) for path, value in settings]
    if not read:
        return chosen
    _check_root(chosen, read, notation, tuple(also))
    changed = _changed(chosen, read, notation)
    assert isinstance(changed, type(chosen))
    return changed


def as_text(value: object, separator: str) -> str | None:
    """The text of a plain value; None for an object, which has no text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        parts = [as_text(one, separator) for one in value]
        return None if None in parts else separator.join(filter(None, parts))
    return str(value) if isinstance(value, str | int | float | Path) else None


def choices(kind: type[enum.Enum]) -> dict[str, enum.Enum]:
    """The members of an enumeration by the text that chooses them: their values where all are words, else names."""
    by_value = all(isinstance(item.value, str) and _WORD.fullmatch(item.value) for item in kind)
    return {str(item.value) if by_value else item.name.lower(): item for item in kind}


def one_of(kind: str, known: Mapping[str, object]) -> Reader:
    """A reader of names from a table; `kind` is what an error calls them."""

    def read(text: str, what: str) -> object:
        if text not in known:
            raise unknown_name_error(kind or what, text, known)
        return known[text]

    return read


def former_names(kind: type) -> Mapping[str, str]:
    """Former names of fields, which are still accepted, with their present names.

    A dataclass declares them as a class variable: `former_names = {"batch": "batch_size"}`.
    """
    names: Mapping[str, str] = getattr(kind, "former_names", {})
    return names


def setting_names(settings: object) -> Iterator[str]:
    """The paths of all settings of a dataclass, those of nested ones included."""
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        parts = [(f.name, getattr(settings, f.name)) for f in dataclasses.fields(settings)]
    elif isinstance(settings, tuple):
        parts = [(str(number), part) for number, part in enumerate(settings) if dataclasses.is_dataclass(part)]
    else:
        return
    for name, value in parts:
        yield name
        yield from (f"{name}.{below}" for below in setting_names(value))


@functools.cache
def field_docs(kind: type) -> dict[str, str]:
    """The description of each field in the source of a dataclass.

    The first of these that exists: a string below the field's declaration, an entry of `Args:` or `Attributes:` in the
    docstring of the class, the first sentence of that docstring with the name of the field in backticks.
    """
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base) and base.__module__ != "builtins":
            text = inspect.cleandoc(base.__doc__ or "")
            names = [f.name for f in dataclasses.fields(base)]
            docs |= _mentioned(text, names) | listed_docs(text, names) | _below_declarations(base)
    return docs


def _below_declarations(kind: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    texts = {}
    for declared, after in itertools.pairwise(body):
        if not (isinstance(declared, ast.AnnAssign) and isinstance(declared.target, ast.Name)):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            texts[declared.target.id] = " ".join(after.value.value.split())
    return texts


def listed_docs(text: str, names: Iterable[str]) -> dict[str, str]:
    """The entries of these names under `Args:` or `Attributes:` of a docstring, each on one line."""
    section = re.search(r"^(?:Args|Attributes):\n((?:[ ]+.*\n?|\n)+)", text, re.M)
    entries = re.findall(r"^ {4}(\w+)(?: \([^)]*\))?: (.*(?:\n {5,}.*)*)", section[1] if section else "", re.M)
    wanted = set(names)
    return {name: " ".join(text.split()) for name, text in entries if name in wanted}


def _mentioned(text: str, names: Sequence[str]) -> dict[str, str]:
    sentences = [" ".join(one.split()) for one in re.split(r"(?<=[.:;])\s+|\n\n", text)]
    return {
        name: sentence.rstrip(";:")
        for name in names
        if (sentence := next((one for one in sentences if f"`{name}`" in one), ""))
    }


def _check_root(chosen: object, settings: Sequence[_Setting], notation: Notation, also: tuple[str, ...]) -> None:
    """Refuse a path that does not begin at the root; if it is the end of a longer path, suggest that one."""
    known = [*_fields(type(chosen)), *also]
    for setting in settings:
        if setting.rest[0] in known or setting.rest[0] in former_names(type(chosen)):
            continue
        path = ".".join(setting.rest)
        meant = next((name for name in setting_names(chosen) if name.endswith(f".{path}")), None)
        raise unknown_name_error(f"setting of {notation.owner or type(chosen).__name__}", path, known, meant=meant)


def _fields(kind: type) -> dict[str, object]:
    """The fields of a dataclass with their types, without the ranges."""
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind) if f.init}


def _changed(node: object, settings: Sequence[_Setting], notation: Notation) -> object:
    """All changes below one node at once, because the constructor of a node checks its values against each other."""
    first = settings[0]
    if isinstance(node, Mapping):
        return {**node, **{_option(setting, notation): _option_value(setting, notation) for setting in settings}}
    if isinstance(node, tuple):
        return _changed_items(node, settings, notation)
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        what = f"{notation.prefix}{first.path}"
        if node is None:
            whole = first.path.removesuffix("." + ".".join(first.rest))
            raise UsageError(f"{what}: {whole} is not set. Set {whole} as a whole first.")
        raise UsageError(f"{what}: there is nothing below a {type(node).__name__}. Shorten the path.")
    kinds, former = _fields(type(node)), former_names(type(node))
    by_field: dict[str, list[_Setting]] = {}
    for setting in settings:
        name = setting.rest[0]
        name = former.get(name, name)
        if name not in kinds:
            raise unknown_name_error(f"setting of {type(node).__name__}", name, kinds)
        by_field.setdefault(name, []).append(setting.below())
    new = {name: _changed_field(kinds[name], getattr(node, name), below, notation) for name, below in by_field.items()}
    return replace(node, **new)


def _changed_field(kind: object, old: object, settings: Sequence[_Setting], notation: Notation) -> object:
    """One field: the last value for the field itself, then the settings inside of it."""
    value, inside = old, [setting for setting in settings if setting.rest]
    for setting in settings:
        if not setting.rest:
            value = _value(kind, setting, old, notation)
    if not inside or not settings[-1].rest:
        return value
    if value is None and (value := _default(kind)) is None and not _has_text(kind, notation):
        path = inside[0].path
        whole = path.removesuffix("." + ".".join(inside[0].rest))
        raise UsageError(
            f"{notation.prefix}{path}: {whole} is not set, and no text describes one. Give an object in Python."
        )
    return _changed(value, inside, notation)


def _has_text(kind: Any, notation: Notation) -> bool:
    """Whether a value of this type can be written as text."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_has_text(one, notation) for one in inner if one is not type(None))
    plain = isinstance(kind, type) and issubclass(kind, bool | int | float | str | Path | enum.Enum)
    return kind in notation.readers or origin in (tuple, Literal) or plain


def _default(kind: object) -> object:
    """The default object for a field that is not set; None if its type is not a dataclass."""
    kinds = (one for one in typing.get_args(kind) if isinstance(one, type) and dataclasses.is_dataclass(one))
    return next((one() for one in kinds), None)


def _changed_items(node: tuple[object, ...], settings: Sequence[_Setting], notation: Notation) -> tuple[object, ...]:
    """A tuple with changes in some of its items, such as `plan.augment.steps.0.pad`."""
    numbers = [str(number) for number in range(len(node))]
    for setting in settings:
        if setting.rest[0] not in numbers:
            known = (
                f"there are {len(node)} parts, called 0 to {len(node) - 1}. Name one."
                if node
                else "there are no parts."
            )
            raise UsageError(f"{notation.prefix}{setting.path}: {known}")
        if len(setting.rest) == 1:
            raise _a_whole(type(node[int(setting.rest[0])]), setting, node[int(setting.rest[0])], notation)
    below = {number: [setting.below() for setting in settings if setting.rest[0] == number] for number in numbers}
    return tuple(
        _changed(part, below[number], notation) if below[number] else part
        for number, part in zip(numbers, node, strict=True)
    )


def _value(kind: object, setting: _Setting, old: object, notation: Notation) -> object:
    """The value of a setting: objects as they are, plain values and text by the declared type."""
    value = setting.value
    if not isinstance(value, str):
        text = as_text(value, notation.separator)
        if text is None:
            return value
        value = text
    return _read(kind, value, setting, old, notation)


def _read(kind: Any, text: str, setting: _Setting, old: object, notation: Notation, *, several: bool = False) -> object:
    """Text as a value of the declared type."""
    what = f"{notation.prefix}{setting.path}"
    if kind in notation.readers:
        return notation.readers[kind](text, what)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _read_union(inner, text, setting, old, notation)
    if origin is tuple:
        return _read_tuple(inner, text, setting, old, notation)
    if origin is Literal:
        return one_of("", {str(one): one for one in inner})(text, what)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        known = choices(kind)
        if text not in known:
            raise unknown_name_error(what if several or notation.owner else f"value of {setting.path}", text, known)
        return known[text]
    if kind is bool:
        if text not in ("true", "false"):
            raise UsageError(f"{what} needs true or false, got {short_repr(text)}. Write one of them.")
        return text == "true"
    if kind is int:
        return parse_int(text, what, more=f", several with {notation.separator} between them" if several else "")
    if kind is float:
        return parse_number(text, what)
    if kind is str or kind is Path:
        if not text and notation.separator != ",":
            raise UsageError(f"{what} needs a word, got nothing. Leave the setting out for its default.")
        return kind(text)
    raise _a_whole(kind if old is None else type(old), setting, old, notation)


def _read_union(kinds: Sequence[object], text: str, setting: _Setting, old: object, notation: Notation) -> object:
    """The first type of several that can read the text; the error of the last if none can."""
    if type(None) in kinds and text in _NONE:
        return None
    *others, last = (kind for kind in kinds if kind is not type(None))
    for kind in others:
        try:
            return _read(kind, text, setting, old, notation)
        except UsageError:
            continue
    return _read(last, text, setting, old, notation)


def _read_tuple(
    kinds: Sequence[object], text: str, setting: _Setting, old: object, notation: Notation
) -> tuple[object, ...]:
    """Values with a separator between them; an empty text is the empty tuple, for tuples of any length."""
    if text == "()":
        text = ""
    # lists of catalogs have + between, which every option takes; the one in 1e+5 is of a number
    separator = notation.separator if notation.separator in text else "+"
    parts = re.split(r"(?<![0-9][eE])\+" if separator == "+" else separator, text) if text else []
    if kinds[-1] is Ellipsis:
        kinds = [kinds[0]] * len(parts)
    if len(parts) != len(kinds):
        between = {",": "commas", "+": "+"}[notation.separator]
        raise UsageError(
            f"{notation.prefix}{setting.path} needs {len(kinds)} values with {between} between, "
            f"got {short_repr(text)}. Write {notation.separator.join(['VALUE'] * len(kinds))}."
        )
    pairs = zip(kinds, parts, strict=True)
    return tuple(_read(kind, part, setting, old, notation, several=True) for kind, part in pairs)


def _option(setting: _Setting, notation: Notation) -> str:
    if len(setting.rest) > 1:
        raise UsageError(f"{notation.prefix}{setting.path}: there is nothing below an option. Shorten the path.")
    return setting.rest[0]


def _option_value(setting: _Setting, notation: Notation) -> object:
    """A value of a mapping, which has no declared type: read as JSON or else as text, such as 0.05, 12, true, avg."""
    text, what = setting.value, f"{notation.prefix}{setting.path}"
    if not isinstance(text, str):
        return text
    if re.fullmatch("-?[0-9]+", text):
        return parse_int(text, what)
    try:
        value = parse_json(text)
    except ValueError:
        if text.startswith(("[", "{")):
            raise UsageError(f"{what} {_OPTION.format(short_repr(text))}") from None
        return text
    if isinstance(value, float) and math.isinf(value) and text[-1:].isdigit():
        return parse_number(text, what)  # this raises the error
    if isinstance(value, dict | list) or (isinstance(value, float) and not math.isfinite(value)):
        raise UsageError(f"{what} {_OPTION.format(short_repr(text))}")
    return value


def _a_whole(kind: object, setting: _Setting, old: object, notation: Notation) -> UsageError:
    """The error for a text in place of an object: no text describes it, but the values inside it may be set."""
    name = getattr(kind, "__name__", str(kind))
    inside = [f"{setting.path}.{below}" for below in setting_names(old)]
    instead = f"Set a value inside it, such as {inside[0]}, or give an object in Python." if inside else ""
    return UsageError(
        f"{notation.prefix}{setting.path} is a whole {name}, which no text describes, got {short_repr(setting.value)}. "
        f"{instead or 'Give an object in Python.'}"
    )
