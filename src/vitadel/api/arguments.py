"""Shared by the API functions: arguments given as text, and error messages for arguments of other libraries."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from vitadel.core.errors import UsageError, short_repr, unknown_name_error
from vitadel.core.progress import ProgressCallback, progress_bars, silent

if TYPE_CHECKING:
    import torch

    from vitadel.threats import Threat


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
        ) from None
    return chosen
