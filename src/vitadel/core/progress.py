"""Progress of long work: a callback that reports it, and bars or lines that show it."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from vitadel.core.distributed import is_first_process

# (task, done, total, numbers); a total of 0 means that the task is a message
ProgressCallback = Callable[[str, int, int, Mapping[str, float]], None]

# seconds between plain lines where there is no terminal
_BETWEEN_LINES = 10.0


def silent(task: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
    """Report nothing."""


def prefixed(notify: ProgressCallback, prefix: str) -> ProgressCallback:
    """A callback that adds `prefix` to the name of every task."""

    def report(task: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        notify(f"{prefix}{task}", done, total, numbers)

    return report


class DeferredProgress:
    """A callback that keeps reports until the work begins, so that an error before it is printed alone."""

    def __init__(self, notify: ProgressCallback) -> None:
        self._notify = notify
        self._reports: list[tuple[str, int, int, Mapping[str, float]]] = []

    def __call__(self, task: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        self._reports.append((task, done, total, numbers))

    def release(self) -> None:
        """Send the reports kept so far."""
        for report in self._reports:
            self._notify(*report)
        self._reports = []


def write_stderr(text: str) -> None:
    """Write to standard error; a closed pipe or a full disk there does not end the work."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


@contextmanager
def progress_bars(*, lines: bool = True) -> Iterator[ProgressCallback]:
    """Show progress on standard error for as long as the context lasts.

    On a terminal each task has a bar with its rate and the time left.

    Args:
        lines: Without a terminal, whether to print a plain line every ten seconds, or nothing.
    """
    if not is_first_process():
        yield silent
    elif sys.stderr is not None and sys.stderr.isatty():
        with _bars() as notify:
            yield notify
    else:
        yield _Lines().notify if lines else silent


@contextmanager
def _bars() -> Iterator[ProgressCallback]:
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

        def notify(task: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
            if total == 0:
                bars.console.print(task, markup=False, highlight=False)
                return
            if task not in tasks:
                tasks[task] = bars.add_task(task, total=total, completed=done, rate="", numbers="")
            speed = bars.tasks[tasks[task]].speed
            rate = f"{speed:.1f}/s" if speed else ""
            bars.update(tasks[task], completed=done, total=total, rate=rate, numbers=_formatted(numbers))

        yield notify


class _Lines:
    """Progress for logs: a line at the end of each task, and every few seconds before."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._begun: dict[str, tuple[float, int]] = {}

    def notify(self, task: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if total == 0:
            write_stderr(f"{task}\n")
            return
        now = time.monotonic()
        start, first = self._begun.setdefault(task, (now, done))
        if done < total and now - self._last < _BETWEEN_LINES:
            return
        self._last = now
        rate = (done - first) / (now - start) if now > start else 0.0
        left = f", {(total - done) / rate:.0f} s left" if rate and done < total else ""
        speed = f" {rate:.1f}/s" if rate else ""
        write_stderr(f"{task}: {done}/{total}{speed}{left} {_formatted(numbers)}".rstrip() + "\n")


def _formatted(numbers: Mapping[str, float]) -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in numbers.items())
