"""Calling a function of `vitadel.api` with the options of a command, and printing its result."""

import shlex
import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from vitadel.cli import show

Returned = TypeVar("Returned", bound=show.Result)


def command_line() -> str:
    """The command line as text, for the manifest."""
    return shlex.join(["vitadel", *sys.argv[1:]])


def call(function: Callable[..., Returned], options: Mapping[str, object], **others: object) -> Returned:
    """Call a function of `vitadel.api` with the options of a command, show progress and print the result.

    Args:
        function: A function whose parameters have the names of the options.
        options: The values parsed by typer; `json` selects the output format.
        **others: Arguments that replace options.
    """
    given = {**options, **others}
    as_json = bool(given.pop("json"))
    with show.progress(quiet=as_json) as notify:
        result = function(**given, progress=notify, command=command_line())
    show.result(result, as_json=as_json)
    return result
