"""The one exception a user of Vitadel is meant to see."""

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """A mistake of the caller's: what was wrong, what was got, what to write instead."""


class Stopped(Exception):
    """The system asked for an end, and what was done is safe."""


def unknown(kind: str, got: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is not in a table: names it, guesses what was meant, lists the table."""
    names = sorted(known)
    near = difflib.get_close_matches(got, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UsageError(f"unknown {kind} {got!r}.{hint} Known: {', '.join(names)}.")
