"""Dataclasses as JSON and back: one reader and one writer for every record, driven by the annotations of the fields.

A record is a frozen dataclass whose fields are numbers, texts, sequences, mappings, enums, NumPy arrays and other
records. `to_json` writes it; `from_json` reads it and raises a UsageError of one line if values do not match the
annotations.

- A number that is not finite is written as null; a field for such numbers is annotated `float | None`.
- Characters of a text that UTF-8 cannot encode, which JSON can hold, are read as escapes: no font can draw them.
- An array is written as base64: `{"dtype": "uint8", "shape": [2, 2], "base64": "AAECAw=="}`.
- A field with the metadata `key` is written under that name; `was` lists names of earlier versions, still read.
- A field that has its default may be absent. One with the metadata `omit` is not written while it has its default.
- A class with class variables `kind` and `version` writes them with its fields; in a union of classes, `kind` says
  which one to read.
"""

import base64
import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin

import numpy as np

from vitadel.core.errors import UsageError, short_repr, unknown_name_error
from vitadel.core.files import printable

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

_ARRAY_TYPES = ("uint8", "float32")
_PLAIN = {str: "text", bool: "true or false", int: "a whole number", float: "a number", types.NoneType: "null"}
_TAGS = ("kind", "version")
_MISSING = object()


class Mismatch(ValueError):
    """A value of another type than its annotation; the message starts with the path to it."""


def to_json(value: object) -> Any:
    """`value` as plain JSON values: dicts, lists, numbers, texts, None.

    Args:
        value: A record, or any value that a field of one may have.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, np.ndarray):
        text = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"dtype": str(value.dtype), "shape": list(value.shape), "base64": text}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_json(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [to_json(inner) for inner in value]
    return value


def from_json(kind: type[T], value: object, source: object, remedy: str) -> T:
    """The record of class `kind` in a JSON value.

    Args:
        kind: A dataclass, or a union of dataclasses that each have a `kind`.
        value: The JSON value.
        source: The file it was read from, for the error.
        remedy: What to do about an invalid file, for the error.

    Raises:
        UsageError: A field is missing or of another type, or the record refuses its values; one line with the file,
            the path to the field, and the remedy.
    """
    try:
        return typing.cast("T", _read(kind, value, ""))
    except Mismatch as error:
        raise UsageError(f"{source}: {error}. {remedy}") from error
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error


def tensor_to_json(values: "Tensor") -> dict[str, object]:
    """A tensor as an array in JSON: uint8 unchanged, any other type as float32."""
    import torch  # not above: reports read records without torch

    array = values if values.dtype == torch.uint8 else values.float()
    content: dict[str, object] = to_json(array.detach().cpu().numpy())
    return content


def tensor_from_json(content: Mapping[str, Any]) -> "Tensor":
    """The tensor that `tensor_to_json` wrote."""
    import torch

    flat = np.frombuffer(base64.b64decode(content["base64"]), dtype=content["dtype"])
    return torch.from_numpy(flat.reshape(content["shape"]).copy())


def _object(record: Any) -> dict[str, object]:
    tagged = {f.name for f in dataclasses.fields(record)}.isdisjoint(_TAGS) and hasattr(record, "version")
    content: dict[str, object] = {name: getattr(record, name) for name in _TAGS} if tagged else {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if not (field.metadata.get("omit") and value == field.default):
            content[field.metadata.get("key", field.name)] = to_json(value)
    return content


def _read(kind: Any, value: object, path: str) -> object:
    origin = get_origin(kind)
    if kind is object or kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _read_union(get_args(kind), value, path)
    if origin is np.ndarray:
        return _read_array(kind, value, path)
    if origin is tuple and get_args(kind)[-1] is not Ellipsis:
        return _read_tuple(get_args(kind), value, path)
    if origin in (tuple, list, Sequence):
        entries, (inner, *_) = _expect(value, list, "a list", path), get_args(kind)
        if {type(entry) for entry in entries} <= _plain_types(inner):  # columns of a million images are read at once
            return tuple(printable(entry) if type(entry) is str else entry for entry in entries)
        return tuple(_read(inner, entry, f"{path}[{i}]") for i, entry in enumerate(entries))
    if origin in (dict, Mapping):
        entries = _expect(value, dict, "an object", path)
        return {key: _read(get_args(kind)[1], entry, f"{path}.{key}".lstrip(".")) for key, entry in entries.items()}
    if dataclasses.is_dataclass(kind):
        return _read_object(kind, value, path)
    if issubclass(kind, enum.Enum):
        return _read_enum(kind, value, path)
    return _read_plain(kind, value, path)


def _plain_types(kind: Any) -> set[Any]:
    """The types whose values need no conversion if `kind` is a plain type or a union of plain types."""
    kinds = set(get_args(kind)) if get_origin(kind) in (Union, types.UnionType) else {kind}
    return kinds if kinds <= _PLAIN.keys() else set()


def _read_plain(kind: type, value: object, path: str) -> object:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:  # not isinstance: a bool is not a number
        raise _mismatch(_PLAIN[kind], value, path)
    return printable(value) if isinstance(value, str) else value


def _read_union(kinds: Sequence[Any], value: object, path: str) -> object:
    if value is None and types.NoneType in kinds:
        return None
    kinds = [kind for kind in kinds if kind is not types.NoneType]
    if len(kinds) == 1:
        return _read(kinds[0], value, path)
    if type(value) in kinds:  # a whole number stays one where both are allowed
        return _read_plain(type(value), value, path)
    if not all(dataclasses.is_dataclass(kind) for kind in kinds):
        return _read(float if float in kinds else kinds[0], value, path)
    known = {kind.kind: kind for kind in kinds}
    name, version = (_expect(value, dict, "an object", path).get(tag) for tag in _TAGS)
    if not isinstance(name, str) or name not in known:
        raise unknown_name_error("kind of exhibit", str(name), known)
    if type(version) is not int or version > known[name].version:
        raise UsageError(
            f"{path} has version {short_repr(version)}, and this Vitadel reads up to {known[name].version}. Update it."
        )
    return _read(known[name], value, path)


def _read_tuple(kinds: Sequence[Any], value: object, path: str) -> object:
    entries = _expect(value, list, "a list", path)
    if len(entries) != len(kinds):
        raise Mismatch(f"{path} should have {len(kinds)} entries, got {len(entries)}")
    return tuple(_read(kind, entry, f"{path}[{i}]") for i, (kind, entry) in enumerate(zip(kinds, entries, strict=True)))


def _read_object(kind: Any, value: object, path: str) -> object:
    content = _expect(value, dict, "an object", path)
    hints, values = _hints(kind), dict[str, object]()
    for field in dataclasses.fields(kind):
        key = field.metadata.get("key", field.name)
        names = (key, *field.metadata.get("was", ()))
        entry = next((content[name] for name in names if name in content), _MISSING)
        inner = f"{path}.{key}".lstrip(".")
        if entry is not _MISSING:
            values[field.name] = _read(hints[field.name], entry, inner)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise Mismatch(f"{inner} is missing")
    return kind(**values)


def _read_enum(kind: type[enum.Enum], value: object, path: str) -> object:
    try:
        return kind(value)
    except ValueError:
        raise _mismatch("one of " + ", ".join(str(one.value) for one in kind), value, path) from None


def _read_array(kind: Any, value: object, path: str) -> object:
    content = _expect(value, dict, "an object", path)
    (wanted,) = get_args(get_args(kind)[1])
    dtype, shape, text = content.get("dtype"), content.get("shape"), content.get("base64")
    if dtype not in _ARRAY_TYPES or dtype != np.dtype(wanted).name:
        raise Mismatch(f"{path}.dtype should be {np.dtype(wanted).name}, got {short_repr(dtype)}")
    sides = _expect(shape, list, "a list", f"{path}.shape")
    if not all(type(side) is int and side >= 0 for side in sides):
        raise Mismatch(f"{path}.shape should be whole numbers, got {short_repr(shape)}")
    try:
        data = base64.b64decode(_expect(text, str, "text", f"{path}.base64"), validate=True)
        return np.frombuffer(data, dtype=wanted).reshape(sides)
    except ValueError as error:
        raise (
            error if isinstance(error, Mismatch) else Mismatch(f"{path} is not an array of {sides}: {error}")
        ) from None


def _expect(value: object, kind: type, name: str, path: str) -> Any:
    if not isinstance(value, kind):
        raise _mismatch(name, value, path)
    return value


def _mismatch(wanted: str, value: object, path: str) -> Mismatch:
    return Mismatch(f"{path or 'it'} should be {wanted}, got {short_repr(value)}")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
