"""Every long command, interrupted at random times and resumed until it is done: the uninterrupted result."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from cases import Bug, Case, Part, run_cases
from commands import LONG, Long, Reference, References, pick, resume
from results import complaint
from server import CHANGES, Fault, Server

pytestmark = pytest.mark.timeout(0)

_SHARE = 0.3
_BATCHES = (3, 7, 16, 64)
_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# how a command may end that was interrupted: by the signal itself, by its handler, or before either
_ENDS = {
    signal.SIGKILL: (-signal.SIGKILL, 0),
    signal.SIGTERM: (-signal.SIGTERM, 143, 0),
    signal.SIGINT: (-signal.SIGINT, 130, 0),
}


def test_interruptions(server: Server, references: References, work: Path, parts: list[Part]) -> None:
    part = run_cases("interruptions", _SHARE, work, lambda case: _case(server, references, case))
    parts.append(part)
    part.check()


def _case(server: Server, references: References, case: Case) -> str:
    name = pick(case)
    reference, long = references.of(name), LONG[name]
    planned, met = case.random.choice((1, 1, 2, 3, 5)), 0
    for _ in range(planned):
        code = _interrupted(server, case, long, reference)
        met += code != 0
        if code == 0:
            break
    resume(server, case, long, reference)
    return f"the same after {met} interruptions" if met else "not interrupted in time"


def _interrupted(server: Server, case: Case, long: Long, reference: Reference) -> int:
    """The command, given a signal at random: at one of its file operations, or at any time."""
    number = case.random.choice(_SIGNALS)
    order = long.order(case.folder, case.random.choice(_BATCHES))
    if case.random.random() < 0.6:
        fault = Fault("signal", number, case.random.randint(1, reference.changes), CHANGES)
        case.step(*order.words, what=str(fault))
        ended = server.run(replace(order, fault=fault))
    else:
        delay = case.random.uniform(0.05, 1.1 * reference.seconds)
        case.step(*order.words, what=f"{number.name} after {delay:.2f} s")
        started = server.start(order)
        started.process.join(delay)
        started.send(number)
        ended = started.wait(300)
    if result := complaint(ended, _ENDS[number]):
        raise Bug(f"{long.kind}, {number.name}: {result}")
    return ended.code
