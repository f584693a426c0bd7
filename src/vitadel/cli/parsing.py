"""Text of the command line that more than one command reads."""

import shlex
import sys

from vitadel.core.errors import UsageError, quoted
from vitadel.core.numeric import read_number

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


def numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    """One number per channel: `0.5,0.5,0.5`."""
    if text is None:
        return None
    values = tuple(read_number(part, option) for part in text.split(","))
    if len(values) != 3:
        raise UsageError(f"{option} wants three numbers, one per channel, got {quoted(text)}.")
    return values


def mean_and_std(mean: str | None, std: str | None) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """The values of --mean and --std."""
    if (mean is None) != (std is None):
        raise UsageError("--mean and --std go together. Write both, such as --mean 0.5,0.5,0.5 --std 0.5,0.5,0.5.")
    return numbers("--mean", mean), numbers("--std", std)
