"""Numbered cases, each with its own random numbers, run until the time is over, and counted."""

import os
import random
import shlex
import shutil
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

MINUTES = float(os.environ.get("VITADEL_HOSTILE_MINUTES", "30"))
SEED = os.environ.get("VITADEL_HOSTILE_SEED", "0")
# PART:NUMBER,NUMBER repeats these cases and runs no others
_ONLY = os.environ.get("VITADEL_HOSTILE_CASES", "")
_WORKERS = int(os.environ.get("VITADEL_HOSTILE_WORKERS", "2"))
# characters of an argument that are printed
_LONG_WORD = 200


class Bug(Exception):
    """A bug; its text is the same for cases that show the same bug."""


@dataclass
class Case:
    """One of the numbered cases of a part; `steps` records what it did, to repeat it."""

    part: str
    number: int
    folder: Path
    random: random.Random
    steps: list[str] = field(default_factory=list)

    def step(self, *words: str, what: str = "") -> None:
        """One step of a case: a command, or its description, or both."""
        short = (
            word if len(word) < _LONG_WORD else f"{word[:_LONG_WORD]}...({len(word)} characters)" for word in words
        )
        command = shlex.join(("vitadel", *short)) if words else ""
        self.steps.append(f"{command}  # {what}" if command and what else command or what)


@dataclass
class Part:
    """Outcomes of a part of the suite by name, and bugs with their cases."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    bugs: dict[str, list[Case]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def cases(self) -> int:
        return self.outcomes.total()

    def report(self) -> str:
        """One line of counts, then every bug with the first case that showed it."""
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.outcomes.items()))
        lines = [f"{self.name}: {self.cases} cases in {self.seconds / 60:.1f} minutes, seed {SEED}: {counts}"]
        for text, cases in sorted(self.bugs.items(), key=lambda item: -len(item[1])):
            numbers = ",".join(str(case.number) for case in cases[:5])
            lines += ["", f"{len(cases)} cases ({numbers}): {text}"]
            lines += [f"    {step}" for step in cases[0].steps]
            environment = f"VITADEL_HOSTILE_SEED={SEED} VITADEL_HOSTILE_CASES={self.name}:{cases[0].number}"
            lines += [f"    again: {environment} make test-hostile; files: {cases[0].folder}"]
        return "\n".join(lines)

    def check(self) -> None:
        """Fail if there are bugs; the summary at the end shows them."""
        if self.bugs:
            pytest.fail(f"{self.name}: {len(self.bugs)} mistakes in {self.cases} cases", pytrace=False)


def run_cases(name: str, share: float, folder: Path, run: Callable[[Case], str]) -> Part:
    """Cases of one part for its `share` of the time; `run` names the outcome of a case or raises `Bug`."""
    part, began, lock = Part(name), time.monotonic(), threading.Lock()
    numbers = _numbers(name, began + 60 * MINUTES * share)

    def work() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            case = Case(name, number, folder / f"{name}-{number}", random.Random(f"{name}:{SEED}:{number}"))  # noqa: S311
            case.folder.mkdir()
            outcome, bug = "wrong", ""
            try:
                outcome = run(case)
            except Bug as error:
                bug = str(error)
            except Exception as error:  # noqa: BLE001 - one broken case must not end the others
                bug = f"the suite itself fails: {type(error).__name__}: {error}"
                case.steps += traceback.format_exc().splitlines()[-6:]
            with lock:
                part.outcomes[outcome] += 1
                if bug:
                    part.bugs.setdefault(bug, []).append(case)
            if not bug or len(part.bugs[bug]) > 1:
                shutil.rmtree(case.folder, ignore_errors=True)

    with ThreadPoolExecutor(_WORKERS) as pool:
        for future in [pool.submit(work) for _ in range(_WORKERS)]:
            future.result()
    part.seconds = time.monotonic() - began
    return part


def _numbers(name: str, deadline: float) -> Iterator[int]:
    part, _, numbers = _ONLY.partition(":")
    if _ONLY:
        yield from map(int, numbers.split(",") if part == name else [])
        return
    number = 0
    while time.monotonic() < deadline:
        yield number
        number += 1
