"""The command line: parses text, calls `vitadel.api`, prints. Only this package reads `sys.argv` or exits.

Nothing heavy is imported until a command runs, so that `vitadel --help` is fast.
"""

import io
import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from vitadel import __version__
from vitadel.cli import analyze, catalog, data, demo, evaluate, report, sweep, train
from vitadel.cli.help import Command, application
from vitadel.cli.parsing import with_new_names
from vitadel.core.distributed import set_launch_environment
from vitadel.core.errors import Stopped, UsageError

# characters of an error, and how many of them are its beginning: what to write instead is at its end
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
    """Run a command; a user's mistake is one line and exit code 2, Ctrl-C is 130, a traceback is our bug.

    A closed pipe at the output, as after `| head`, ends the command silently and with exit code 1.
    """
    _prepare_output()
    try:
        set_launch_environment()
        code = app(with_new_names(sys.argv[1:]), prog_name="vitadel", standalone_mode=False)
        sys.stdout.flush()
    except UsageError as error:
        _fail(str(error), 2)
    except Stopped as stopped:
        _fail(str(stopped), 143)
    except typer.Abort:
        _fail("stopped.", 130)
    except OSError as error:  # of the system, not of the program: a full disk, a name that is too long
        if isinstance(error, BrokenPipeError):
            _flush()
            sys.exit(1)
        _fail(f"{error.filename or 'cannot write the output'}: {error.strerror or error}.", 2)
    except Exception as error:
        # typer's own errors about the command line, of any copy of click it was built with
        if not hasattr(error, "format_message"):
            raise
        if not error.format_message():  # no command was named, and the help is already on the screen
            sys.exit(2)
        _fail(f"{error.format_message()} See `vitadel --help`.", 2)
    if code == 130:
        _fail("stopped. Finished work is kept: the same command resumes.", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _prepare_output() -> None:
    """Somewhere to print to, and a way to print what the terminal's encoding lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):  # one redirected to a pipe at the file-descriptor level has no position
                stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    """Write out what is waiting; if that cannot be, drop it, or Python complains once more when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> None:
    _flush()
    with suppress(OSError):
        sys.stderr.write(f"vitadel: {_one_line(message)}\n")
        sys.stderr.flush()
    sys.exit(code)


def _one_line(message: str) -> str:
    """The message without line breaks and control characters, which a file name may hold, its middle cut if long."""
    text = " ".join(message.split())
    text = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
    return text if len(text) <= _LONGEST else f"{text[:_BEGINNING]} [...] {text[_BEGINNING - _LONGEST :]}"
