"""The words of the command line, and the call that a command makes with them."""

import shlex
import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from vitadel.cli import show

Returned = TypeVar("Returned", bound=show.Result)

# spellings of earlier versions
_RENAMED_COMMANDS = {"analyse": "analyze"}
_RENAMED_OPTIONS = {"--batch": "--batch-size", "--classes": "--num-classes"}


def with_new_names(words: list[str]) -> list[str]:
    """The words of a command line with the spellings of earlier versions replaced."""
    if words and words[0] in _RENAMED_COMMANDS:
        words = [_RENAMED_COMMANDS[words[0]], *words[1:]]
    renamed = []
    for word in words:
        option, equals, value = word.partition("=")
        renamed.append(_RENAMED_OPTIONS.get(option, option) + equals + value)
    return renamed


def command_line() -> str:
    """The command as it was typed, for the manifest."""
    return shlex.join(["vitadel", *sys.argv[1:]])


def call(function: Callable[..., Returned], options: Mapping[str, object], **others: object) -> Returned:
    """Call a function of `vitadel.api` with the options of a command, show its progress, print what it returns.

    Args:
        function: Its parameters have the names of the options.
        options: As typer has read them; `json` is for the output.
        **others: Arguments in place of options.
    """
    given = {**options, **others}
    as_json = bool(given.pop("json"))
    with show.progress(quiet=as_json) as notify:
        result = function(**given, progress=notify, command=command_line())
    show.result(result, as_json=as_json)
    return result
