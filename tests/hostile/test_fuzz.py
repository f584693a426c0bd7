"""Random arguments and files: done, or one line and exit code 2, and no folder is left claimed."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import Bug, Case, Part, run_cases
from grammar import Grammar
from hostile_files import CANARY, FILES
from results import complaint, was_met_at_work
from server import Ended, Order, Server

pytestmark = pytest.mark.timeout(0)

_SHARE = 0.3
_LIMIT = 180.0


def test_fuzz(server: Server, work: Path, parts: list[Part]) -> None:
    part = run_cases("fuzz", _SHARE, work, lambda case: _case(server, case))
    parts.append(part)
    part.check()


def _case(server: Server, case: Case) -> str:
    if case.random.random() < 0.6:
        words = Grammar(case.random).command()
    else:
        make = case.random.choice(FILES)
        words = make(case)
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
