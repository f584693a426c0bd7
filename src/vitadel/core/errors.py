"""The exception for mistakes of the user, and parts of its messages."""

import difflib
import re
from collections.abc import Iterable

# the global named in torch's error for a refused pickle
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_LONGEST_REASON = 200
# characters of a value that an error quotes
_QUOTED = 60


class UsageError(Exception):
    """A mistake of the caller; the message says what was wrong, what was got and what to write instead."""


class Stopped(Exception):
    """The process received a signal to stop; everything finished so far is saved."""


def short_repr(value: object) -> str:
    """A value as errors show it: its `repr`, truncated."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= _QUOTED else f"{text[: _QUOTED - 3]}..."


def unknown_name_error(kind: str, got: str, known: Iterable[str], *, meant: str | None = None) -> UsageError:
    """The error for a name that is not in a table, with the most similar name and all names of the table.

    Args:
        kind: What the names of the table are names of.
        got: The name that is not among them.
        known: The table.
        meant: The name to suggest; by default the first name that begins with the given one, else the most similar.
    """
    names = sorted(known)
    longer = [name for name in names if got and name.startswith(got)]
    near = [meant] if meant else longer[:1] or difflib.get_close_matches(got[:_QUOTED], names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UsageError(f"unknown {kind} {short_repr(got)}.{hint} Known: {', '.join(names)}.")


def spelled(option: str, value: object = True) -> str:
    """An option as it is written in Python and on the command line: `threat="linf:8/255" (--threat linf:8/255)`."""
    flag = f"--{option.replace('_', '-')}" + ("" if value is True else f" {value}")
    return f"{option}={value} ({flag})" if isinstance(value, bool | int | float) else f'{option}="{value}" ({flag})'


def short_reason(error: Exception) -> str:
    """One line with the reason why a library could not read a file.

    torch and numpy suggest to load a refused file with pickle, which would run its code; that advice is left out.
    """
    text = " ".join(str(error).split())
    if match := _GLOBAL.search(text):
        return f"it references {match[1]:.80}"
    if "TorchScript" in text:
        return "it is a TorchScript archive"
    if "allow_pickle" in text:
        return "it holds Python objects, or no array at all"
    if not text or "weights_only" in text:
        return type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."
