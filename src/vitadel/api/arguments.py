"""Shared by the API functions: arguments given as text, and error messages for arguments of other libraries."""

import collections.abc
import functools
import inspect
import os
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitadel.core.errors import UsageError, short_repr, unknown_name_error
from vitadel.core.progress import ProgressCallback, progress_bars, silent
from vitadel.core.settings import listed_docs

if TYPE_CHECKING:
    import torch

    from vitadel.threats import Threat

# what values of a type are called, and the classes that a value may have in place of the type
_WORDS = {str: "text", Path: "a path", int: "a whole number", float: "a number", bool: "True or False"}
_ACCEPTED = {Path: os.PathLike, int: Integral, float: Real}


def check_arguments(
    function: Callable[..., object],
    given: Mapping[str, object],
    elsewhere: Mapping[str, str],
    *,
    options: Iterable[str] = (),
) -> None:
    """Refuse unknown keyword arguments, with advice for those of other libraries.

    Args:
        function: The function; its own arguments are read from its signature.
        given: The unknown arguments.
        elsewhere: For arguments of other libraries, what to write instead, with `{value}` for their value.
        options: Names that the function takes through `**options`.

    Raises:
        UsageError: If there are any.
    """
    parameters = inspect.signature(function).parameters.values()
    known = [*(one.name for one in parameters if one.kind is not one.VAR_KEYWORD), *options]
    for name, value in given.items():
        if name in elsewhere:
            raise UsageError(
                f"{function.__name__} has no argument {name!r}, got {name}={short_repr(value)}. "
                f"Write {elsewhere[name].format(value=value)}."
            )
        raise unknown_name_error(f"argument of {function.__name__}", name, known)


def check_types(function: Callable[..., object], given: Mapping[str, object]) -> None:
    """Refuse arguments of a wrong type, which would fail somewhere inside, or be taken for something else.

    Args:
        function: The function; its annotations say what fits, and its docstring what to write.
        given: The arguments by name, as `locals()` has them; names that are not of the function are ignored.

    Raises:
        UsageError: If a value does not fit.
    """
    for name, kind in _annotations(function).items():
        if name not in given or _fits(given[name], kind):
            continue
        about = listed_docs(inspect.getdoc(function) or "", [name]).get(name, "")
        raise UsageError(
            f"{function.__name__} takes {name} as {_in_words(kind)}, got {short_repr(given[name])}. Write one of these"
            f"{f'; {name}: {about}' if about else '.'}"
        )


@functools.cache
def _annotations(function: Callable[..., object]) -> dict[str, Any]:
    """The types of the parameters, without those of `**options`."""
    hints, parameters = typing.get_type_hints(function), inspect.signature(function).parameters
    return {name: hints[name] for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD}


def _fits(value: object, kind: Any) -> bool:
    """Whether a value is of an annotated type; an array or a tensor is a sequence of its values."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is collections.abc.Callable:
        return callable(value)
    if origin is collections.abc.Mapping:
        return (
            isinstance(value, Mapping)
            and all(_fits(key, inner[0]) for key in value)
            and _all_fit(value.values(), inner[1])
        )
    if origin is collections.abc.Sequence:
        several = value.tolist() if hasattr(value, "tolist") else value
        return (
            isinstance(several, Iterable)
            and not isinstance(several, str | bytes | Mapping)
            and _all_fit(several, inner[0])
        )
    # True is an int in Python, but no number here
    return isinstance(value, _ACCEPTED.get(kind, kind)) and not (kind in (int, float) and isinstance(value, bool))


def _all_fit(values: Iterable[object], kind: Any) -> bool:
    """Whether all values are of a type; those of an iterator are not looked at, since that would use them up."""
    return isinstance(values, Iterator) or all(_fits(one, kind) for one in values)


def _in_words(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        *others, last = dict.fromkeys(map(_in_words, inner))
        return f"{', '.join(others)} or {last}" if others else last
    if origin is collections.abc.Callable:
        return "a function"
    if origin in (collections.abc.Mapping, collections.abc.Sequence):
        return "a dict" if origin is collections.abc.Mapping else "a list"
    if kind is type(None):
        return "None"
    return _WORDS.get(kind, f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}")


def check_norm_and_eps(function: str, threat: "str | Threat | None", other: dict[str, object]) -> "str | Threat | None":
    """The threat; `norm=` and `eps=`, as in torchattacks, are refused with the threat to write instead."""
    norm, eps = other.pop("norm", None), other.pop("eps", other.pop("epsilon", None))
    if norm is None and eps is None:
        return threat
    from vitadel.threats import suggested_threat

    given = ", ".join(f"{name}={value!r}" for name, value in (("norm", norm), ("eps", eps)) if value is not None)
    raise UsageError(
        f'{function} takes norm and radius together, got {given}. Write threat="{suggested_threat(norm, eps)}".'
    )


def progress_of(progress: bool | ProgressCallback | None) -> AbstractContextManager[ProgressCallback]:
    """The callback to report progress to.

    Args:
        progress: None for bars on a terminal, True also for plain lines elsewhere, False for nothing, or a callback.
    """
    if progress is None or progress is True:
        return progress_bars(lines=progress is True)
    return nullcontext(silent if progress is False else progress)


def device_of_text(device: "str | torch.device | None") -> "torch.device":
    """The device that `cpu`, `cuda`, `cuda:1` or `mps` names; by default the GPU of this process if available."""
    import torch

    from vitadel.core.distributed import best_device

    if device is None:
        return best_device()
    try:
        with warnings.catch_warnings(action="ignore"):  # the name of a former backend is an error here, not a warning
            chosen = torch.device(device)
            torch.empty(0, device=chosen)
    except Exception as error:  # a backend that is not installed may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"there is no device {str(device)!r} ({reason:.120}). Write cpu, cuda, cuda:1 or mps."
        ) from error
    return chosen
