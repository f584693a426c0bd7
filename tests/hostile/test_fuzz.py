"""Random arguments and files: done, or one line and exit code 2, and no folder is left claimed."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cases import Bug, Case, Part, run_cases
from commands import LONG, References, pick
from grammar import Grammar
from hostile_files import CANARY, FILES
from hostile_runs import spoil, use_of
from results import complaint, was_met_at_work
from server import CHANGES, Ended, Fault, Order, Server

pytestmark = pytest.mark.timeout(0)

_SHARE = 0.3
_LIMIT = 180.0


def test_fuzz(server: Server, references: References, work: Path, parts: list[Part]) -> None:
    part = run_cases("fuzz", _SHARE, work, lambda case: _case(server, references, case))
    parts.append(part)
    part.check()


def _case(server: Server, references: References, case: Case) -> str:
    kind = case.random.random()
    if kind < 0.2:
        return _hostile_run(server, references, case)
    words = Grammar(case.random).command() if kind < 0.6 else case.random.choice(FILES)(case)
    folder = case.folder / "run"
    before = folder.exists()
    words = [word.replace("\0", "") for word in words]
    case.step(*words)
    begun = _begun(folder, before)
    ended = server.start(Order(tuple(words), case.folder)).wait(_LIMIT, works=begun)
    _judge(case, ended, claimed=not before and begun())
    if ended.working:
        return "worked until stopped"
    return "done" if ended.code == 0 else "refused"


def _hostile_run(server: Server, references: References, case: Case) -> str:
    """A run, finished or interrupted, in which somebody replaced a file."""
    name = pick(case, leave_out=("demo",))
    reference, long = references.of(name), LONG[name]
    order = long.order(case.folder)
    if case.random.random() < 0.5:
        shutil.copytree(reference.folder / "run", case.folder / "run")
        case.step(*order.words)
    else:
        fault = Fault("signal", 9, case.random.randint(1, reference.changes), CHANGES)
        case.step(*order.words, what=str(fault))
        server.run(replace(order, fault=fault))
    case.step(what=spoil(case.folder / "run", case.random))
    words = use_of(case, long)
    case.step(*words)
    ended = server.start(replace(order, words=words)).wait(_LIMIT, works=lambda: True)
    _judge(case, ended, claimed=False)
    return "done" if ended.code == 0 or ended.working else "refused"


def _begun(folder: Path, before: bool) -> Callable[[], bool]:
    return lambda: (folder / "manifest.json").exists()


def _judge(case: Case, ended: Ended, *, claimed: bool) -> None:
    if result := complaint(ended):
        raise Bug(_without_what_was_typed(result))
    if (case.folder / CANARY).exists():
        raise Bug("code in a file was run")
    if ended.code == 2 and claimed and not was_met_at_work(ended):
        raise Bug(f"the folder is claimed, then refused: {_without_what_was_typed(ended.error_lines[0])}")


def _without_what_was_typed(text: str) -> str:
    """A message that is the same for cases of the same kind."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", text)
    return re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "N", text)[:220]
