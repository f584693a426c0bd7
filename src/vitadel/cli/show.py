"""Printing results."""

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from vitadel.core.distributed import is_first_process
from vitadel.core.progress import ProgressCallback, progress_bars, silent, write_stderr

if TYPE_CHECKING:
    from vitadel.api.catalog import Item, Page
    from vitadel.api.results import ShortTable

# the widest text, in columns, and the longest name that has its text on the same line
_WIDEST, _LONGEST_NAME = 110, 28


class Result(Protocol):
    """What the functions of `vitadel.api` return."""

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values."""

    def tables(self) -> "list[ShortTable]":
        """Short tables."""


def progress(*, quiet: bool = False) -> AbstractContextManager[ProgressCallback]:
    """Bars on a terminal, plain lines elsewhere, nothing if `quiet`."""
    return nullcontext(silent) if quiet else progress_bars()


def result(summary: Result, *, as_json: bool) -> None:
    """A result as JSON or as tables."""
    if as_json:
        json_object(summary.to_dict())
        return
    for one in summary.tables():
        table(one.title, one.columns, one.rows)
        for note in one.notes:
            line(note)


def json_object(value: object) -> None:
    """One JSON object on standard output, and nothing else."""
    if is_first_process():
        sys.stdout.write(json.dumps(value, indent=2) + "\n")


def line(text: str) -> None:
    """One line on standard output."""
    if is_first_process():
        sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """A line on standard error, apart from the result."""
    if is_first_process():
        write_stderr(f"{text}\n")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of text; columns of numbers are right-aligned, except the first column."""
    if not is_first_process():
        return
    if not columns:
        line(title)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Text, not str: rich would interpret names of files and classes as markup
    drawn = Table(title=Text(title, "table.title") if title else None, title_justify="left")
    for i, column in enumerate(columns):
        numbers = i > 0 and all(row[i][:1].isdigit() or row[i] in ("", "-") for row in rows)
        drawn.add_column(Text(column), justify="right" if numbers else "left", no_wrap=i == 0)
    for row in rows:
        drawn.add_row(*map(Text, row))
    Console().print(drawn)


def items(entries: "Iterable[Item]") -> None:
    """A list of names and descriptions, by group."""
    listed = list(entries)
    for number, group in enumerate(dict.fromkeys(item.group for item in listed)):
        if group:
            line(("\n" if number else "") + _wrapped(group))
        _definitions([(item.name, item.about) for item in listed if item.group == group])


def page(content: "Page") -> None:
    """Everything about one item: title, text, settings, details."""
    line(_wrapped(content.title))
    _text(content.text)
    if content.settings:
        line("\n" + _wrapped(content.heading))
        _definitions([(f"{one.name} = {one.value}" if one.value else one.name, one.about) for one in content.settings])
    _text(content.details)


def _text(text: str) -> None:
    """Print paragraphs; within one, `Source: ...` and `- ...` start new lines."""
    for paragraph in text.split("\n\n") if text else []:
        line("")
        for entry in re.split(r"\n\s*(?=- |[A-Z]\w+: )", paragraph):
            line(_wrapped(" ".join(entry.split())))


def _definitions(pairs: Sequence[tuple[str, str]]) -> None:
    """Names with their text in a second column; after a long name the text starts on the next line."""
    width = min(max((len(name) for name, _ in pairs), default=0), _LONGEST_NAME)
    indent = " " * (width + 4)
    for name, text in pairs:
        if len(name) > width:
            line(_wrapped(name, "  ", "      "))
            if text:
                line(_wrapped(text, indent))
        else:
            line(_wrapped(text, f"  {name:<{width}}  ", indent) if text else f"  {name}")


def _wrapped(text: str, first: str = "", later: str | None = None) -> str:
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    later = first if later is None else later
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
