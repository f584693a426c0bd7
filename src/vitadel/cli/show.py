"""How results and progress reach the person at the terminal."""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from vitadel.core.progress import Notify

# seconds between plain lines where there is no terminal
_QUIET = 10.0


def as_json(value: object) -> None:
    """One JSON object on standard output, and nothing else."""
    if _speaks():
        sys.stdout.write(json.dumps(value, indent=2) + "\n")


def line(text: str) -> None:
    if _speaks():
        sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """One line beside the result, on standard error."""
    if _speaks():
        _to_stderr(f"{text}\n")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of text; the first column is left-aligned, the others are if they hold no numbers."""
    if not _speaks():
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # texts, not strings: rich would read the names of files and classes as markup
    drawn = Table(title=Text(title, "table.title") if title else None, title_justify="left")
    for i, column in enumerate(columns):
        numbers = i > 0 and all(row[i][:1].isdigit() or row[i] in ("", "-") for row in rows)
        drawn.add_column(Text(column), justify="right" if numbers else "left", no_wrap=i == 0)
    for row in rows:
        drawn.add_row(*map(Text, row))
    Console().print(drawn)


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Notify]:
    """A bar with rate and time left on a terminal, a plain line now and then elsewhere, nothing if `quiet`."""
    if quiet or not _speaks():
        yield lambda what, done, total, numbers: None
    elif sys.stderr.isatty():
        with _bars() as notify:
            yield notify
    else:
        yield _Lines().notify


@contextmanager
def _bars() -> Iterator[Notify]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True, emoji=False)) as bars:
        tasks = {}

        def notify(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
            if total == 0:
                bars.console.print(what, markup=False, highlight=False)
                return
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total, completed=done, rate="", numbers="")
            speed = bars.tasks[tasks[what]].speed
            rate = f"{speed:.1f}/s" if speed else ""
            bars.update(tasks[what], completed=done, total=total, rate=rate, numbers=_spelled(numbers))

        yield notify


class _Lines:
    """Progress for logs: at the end of each task, and every few seconds before."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._begun: dict[str, tuple[float, int]] = {}

    def notify(self, what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if total == 0:
            _to_stderr(f"{what}\n")
            return
        now = time.monotonic()
        start, first = self._begun.setdefault(what, (now, done))
        if done < total and now - self._last < _QUIET:
            return
        self._last = now
        rate = (done - first) / (now - start) if now > start else 0.0
        left = f", {(total - done) / rate:.0f} s left" if rate and done < total else ""
        speed = f" {rate:.1f}/s" if rate else ""
        _to_stderr(f"{what}: {done}/{total}{speed}{left} {_spelled(numbers)}".rstrip() + "\n")


def _to_stderr(text: str) -> None:
    """Progress that nobody can read, on a closed pipe or a full disk, is no reason to end the work."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _speaks() -> bool:
    """Of several processes started by a launcher, only the first one talks."""
    return os.environ.get("RANK", "0") == "0"


def _spelled(numbers: Mapping[str, float]) -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in numbers.items())
