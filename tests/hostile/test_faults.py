"""File operations that fail: one line, and the same command finishes the run once they work again."""

import contextlib
import errno
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cases import Bug, Case, Part, run_cases
from commands import LONG, Long, Reference, References, pick, resume
from results import complaint
from server import CHANGES, Fault, Server

Mend = Callable[[], object]

pytestmark = pytest.mark.timeout(0)

_SHARE = 0.15
_ERRORS = (errno.ENOSPC, errno.EIO, errno.EPERM, errno.EACCES, errno.EROFS, errno.EDQUOT)
# bytes that a file may have: writers outside Python, which no audit hook sees, meet this limit too
_LIMITS = (0, 1, 100, 1000, 4096, 20_000, 100_000, 500_000, 1_000_000)


def test_faults(server: Server, references: References, work: Path, parts: list[Part]) -> None:
    ways = ("error", "error", "limit", *(["disk"] if _may_mount(work) else []))
    part = run_cases("faults", _SHARE, work, lambda case: _case(server, references, case, case.random.choice(ways)))
    parts.append(part)
    part.check()


def _case(server: Server, references: References, case: Case, way: str) -> str:
    name = pick(case, leave_out=("demo",))
    reference, long = references.of(name), LONG[name]
    if way != "disk":
        fault = _failing(case, reference) if way == "error" else _limited(case, reference)
        return _judged(server, case, long, reference, fault, lambda: None)
    size = max(4096, int(reference.size * case.random.uniform(0.01, 1.0)))
    with _disk(case.folder, size) as grow:
        case.step(what=f"on a disk of {size} bytes")
        return _judged(server, case, long, reference, None, grow)


def _failing(case: Case, reference: Reference) -> Fault:
    counts = reference.operations
    kind = case.random.choice(sorted(counts))
    kinds, count = case.random.choice(((frozenset((kind,)), counts[kind]), (CHANGES, reference.changes)))
    number, at = case.random.choice(_ERRORS), case.random.randint(1, count)
    return Fault("error", number, at, kinds, lasting=case.random.random() < 0.5)


def _limited(case: Case, reference: Reference) -> Fault:
    return Fault("limit", case.random.choice(_LIMITS), case.random.randint(1, reference.changes), CHANGES)


def _judged(server: Server, case: Case, long: Long, reference: Reference, fault: Fault | None, mend: Mend) -> str:
    """The command with the fault: done or refused; then without: done, and nothing is lost or wrong."""
    order = replace(long.order(case.folder), fault=fault)
    case.step(*order.words, what=str(fault or ""))
    ended = server.run(order)
    if result := complaint(ended):
        raise Bug(f"{long.kind}: {result}")
    mend()
    resume(server, case, long, reference)
    return "refused, then the same" if ended.code else "not hindered"


def _mount(*words: str) -> bool:
    return subprocess.run(("mount", "-t", "tmpfs", *words), capture_output=True, check=False).returncode == 0


def _may_mount(work: Path) -> bool:
    """Whether this user may make disks; without, limits on files have to do."""
    place = work / "disk"
    place.mkdir()
    may = _mount("-o", "size=64k", "tmpfs", str(place))
    if may:
        subprocess.run(("umount", str(place)), check=True)
    return may


@contextlib.contextmanager
def _disk(folder: Path, size: int) -> Iterator[Mend]:
    """A disk of so many bytes at `folder`, and what makes it large enough."""
    assert _mount("-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield lambda: subprocess.run(("mount", "-o", "remount,size=256m", str(folder)), check=True)
    finally:
        subprocess.run(("umount", "--lazy", str(folder)), check=True)
