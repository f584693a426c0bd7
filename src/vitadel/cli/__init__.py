"""The command line: parses text, calls `vitadel.api`, prints. Only this package reads `sys.argv` or exits.

Nothing heavy is imported until a command runs, so that `vitadel --help` is fast.
"""

import io
import os
import sys
import warnings
from contextlib import suppress
from typing import Annotated

import typer

from vitadel import __version__
from vitadel.cli import analyze, catalog, data, demo, evaluate, mistakes, report, sweep, train
from vitadel.cli.help import Command, application
from vitadel.core.distributed import set_launch_environment
from vitadel.core.errors import Stopped, UsageError

# spellings of earlier versions
_RENAMED_COMMANDS = {"analyse": "analyze"}
_RENAMED_OPTIONS = {"--batch": "--batch-size", "--classes": "--num-classes"}
# the longest error, in characters, and how many of its first ones are kept; its end says what to write instead
_LONGEST, _BEGINNING = 1500, 1000

app = application("Train, attack, evaluate and explain robust Vision Transformers.")
_CATALOGS = "Lists"
app.command(cls=Command)(demo.demo)
app.command(cls=Command)(train.train)
app.command(cls=Command)(evaluate.evaluate)
app.command(cls=Command)(evaluate.attack)
app.command(cls=Command)(analyze.analyze)
app.command(cls=Command)(sweep.sweep)
app.command(cls=Command)(report.report)
app.command(cls=Command, rich_help_panel=_CATALOGS)(catalog.recipes)
app.command(cls=Command, rich_help_panel=_CATALOGS)(catalog.models)
app.command(cls=Command, rich_help_panel=_CATALOGS)(catalog.attacks)
app.command(cls=Command, rich_help_panel=_CATALOGS)(catalog.scalings)
app.command(cls=Command, rich_help_panel=_CATALOGS)(catalog.suites)
app.command(cls=Command, rich_help_panel=_CATALOGS)(catalog.studies)
app.command(cls=Command, rich_help_panel=_CATALOGS)(catalog.sweeps)
app.add_typer(data.app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"vitadel {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Train, attack, evaluate and explain robust Vision Transformers."""


def main() -> None:
    """Run a command.

    A mistake of the user gives a one-line error and exit code 2, Ctrl-C exit code 130; a traceback is a bug. If the
    output is a closed pipe, as with `| head`, the command ends silently with exit code 1.
    """
    _prepare_output()
    try:
        set_launch_environment()
        code = app(_with_new_names(sys.argv[1:]), prog_name="vitadel", standalone_mode=False)
        sys.stdout.flush()
    except UsageError as error:
        _fail(str(error), 2)
    except Stopped as stopped:
        _fail(str(stopped), 143)
    except (typer.Abort, KeyboardInterrupt):  # the latter before typer has started
        _fail("stopped.", 130)
    except OSError as error:  # of the operating system: a full disk, a name that is too long
        if isinstance(error, BrokenPipeError):
            _flush()
            sys.exit(1)
        _fail(f"{error.filename or 'cannot write the output'}: {error.strerror or error}.", 2)
    except Exception as error:
        # typer's errors about the command line; typer may bundle its own copy of click, so the class is not compared
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError" or not error.format_message():  # no command was given
            _print(error.format_message())
            sys.exit(2)
        _fail(mistakes.sentence(error, sys.argv[1:]), 2)
    if code == 130:
        _fail("stopped. Finished work is kept: the same command resumes.", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _with_new_names(words: list[str]) -> list[str]:
    """The arguments of the command line, with the spellings of earlier versions replaced."""
    if words and words[0] in _RENAMED_COMMANDS:
        words = [_RENAMED_COMMANDS[words[0]], *words[1:]]
    renamed = []
    for word in words:
        option, equals, value = word.partition("=")
        renamed.append(_RENAMED_OPTIONS.get(option, option) + equals + value)
    return renamed


def _prepare_output() -> None:
    """Replace closed streams, escape characters that the terminal's encoding lacks, and say nothing twice."""
    # Pillow's warning of a huge picture, which is refused with an error
    warnings.filterwarnings("ignore", r"Image size \(\d+ pixels\) exceeds limit", RuntimeWarning)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            with suppress(
                OSError
            ):  # a stream redirected to a pipe at the file-descriptor level cannot report its position
                stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    """Flush the output; if that fails, discard it, so that Python does not report the error again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(text: str) -> None:
    """A text on standard output, as it is; nothing if the output is closed."""
    with suppress(OSError):
        sys.stdout.write(f"{text}\n" if text else "")
    _flush()


def _fail(message: str, code: int) -> None:
    _flush()
    with suppress(OSError):
        sys.stderr.write(f"vitadel: {_one_line(message)}\n")
        sys.stderr.flush()
    sys.exit(code)


def _one_line(message: str) -> str:
    """The message on one line, with control characters escaped; the middle of a long message is left out."""
    text = " ".join(message.split())
    text = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
    return text if len(text) <= _LONGEST else f"{text[:_BEGINNING]} [...] {text[_BEGINNING - _LONGEST :]}"
