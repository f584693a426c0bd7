"""Files of a run folder that are damaged: refused with one line that names the file, or harmless."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cases import Bug, Case, Part, run_cases
from commands import LONG, Long, Reference, References, difference_in, pick
from results import PROVENANCE, TIMINGS, complaint, without
from server import CHANGES, Ended, Fault, Order, Server

pytestmark = pytest.mark.timeout(0)

_SHARE = 0.25
# refusals in a row whose advice is followed
_ADVICES = 3
# files that nothing is read from again
_UNREAD = re.compile(r"\.lock$|events\.out\.tfevents|\.part$|/figures/")
# refusals that need not name a file: a manifest of another run, and what looks as if the work had not been done yet
_WITHOUT_NAME = re.compile(r"belongs to another run; it differs in|has nothing to report")


@dataclass(frozen=True)
class Damage:
    """What was done to which file of a run."""

    path: Path
    name: str
    kind: str
    before: bytes

    @property
    def sort(self) -> str:
        """The file's name without what differs between files of one sort."""
        return re.sub(r"\d+", "N", self.name if "/parts/" not in self.name else f"parts/{self.path.name}")


def test_bit_flips(server: Server, references: References, work: Path, parts: list[Part]) -> None:
    part = run_cases("bit-flips", _SHARE, work, lambda case: _case(server, references, case))
    parts.append(part)
    part.check()


def _case(server: Server, references: References, case: Case) -> str:
    name = pick(case, leave_out=("demo",))
    reference, long = references.of(name), LONG[name]
    if case.random.random() < 0.5:
        shutil.copytree(reference.folder / "run", case.folder / "run")
        case.step(*long.order(case.folder).words)
    else:
        order = long.order(case.folder)
        fault = Fault("signal", 9, case.random.randint(1, reference.changes), CHANGES)
        case.step(*order.words, what=str(fault))
        server.run(Order(order.words, order.folder, fault, order.prepare))
    if (damage := _damage(case)) is None:
        return "nothing there yet"
    case.step(what=f"{damage.kind} in {damage.name}")
    follow = case.random.choice((_resumed, _resumed, _reported, _used))
    return follow(server, case, long, reference, damage)


# ------------------------------------------------------------------- damage


def _damage(case: Case) -> Damage | None:
    """One file of the run, changed; sorts of files are drawn first, since of some there are hundreds."""
    run = case.folder / "run"
    sorts: dict[str, list[Path]] = {}
    for path in sorted(run.rglob("*")):
        if path.is_file() and not _UNREAD.search(path.as_posix()):
            sorts.setdefault(re.sub(r"\d+", "N", path.name), []).append(path)
    if not sorts:
        return None
    path = case.random.choice(sorts[case.random.choice(sorted(sorts))])
    before = path.read_bytes()
    kind = case.random.choice(("bit", "bit", "bit", "byte", "cut", "zeros", "junk", "empty", "gone"))
    after = _changed(kind, bytearray(before), case)
    name = path.relative_to(run).as_posix()
    if after is None:
        path.unlink()
        return Damage(path, name, "the file is gone", before)
    path.unlink()  # a link of it in another folder is unchanged
    path.write_bytes(after)
    first = next((at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
    return Damage(path, name, f"{kind} at {first} of {len(before)}", before)


def _changed(kind: str, content: bytearray, case: Case) -> bytes | None:
    at = case.random.randrange(len(content)) if content else 0
    if kind == "gone":
        return None
    if kind == "empty" or not content:
        return b""
    if kind == "bit":
        content[at] ^= 1 << case.random.randrange(8)
    elif kind == "byte":
        content[at] = (content[at] + case.random.randrange(1, 256)) % 256
    elif kind == "zeros":
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    elif kind == "junk":
        content += case.random.randbytes(case.random.choice((1, 17, 400)))
    else:
        del content[at:]
    return bytes(content)


# ------------------------------------------------------------------- what follows


def _resumed(server: Server, case: Case, long: Long, reference: Reference, damage: Damage) -> str:
    """The same command again: done with the same result, or refused."""
    damaged = damage.path.read_bytes() if damage.path.exists() else None
    ended = _run(server, case, long.order(case.folder), damage)
    if ended.code == 0:
        _check_same(case, long, reference, damage, damaged)
        return "resumed to the same result"
    _check_names(ended, damage)
    for _ in range(_ADVICES):  # the advice must help
        if not _follow(case, ended, damage):
            return "refused"
        ended = _run(server, case, long.order(case.folder), damage)
        if ended.code == 0:
            _check_same(case, long, reference, damage, None)
            return "refused, the same after the advice"
    raise Bug(f"{damage.sort} damaged: the advice does not help: {_brief(ended.err)}")


def _follow(case: Case, ended: Ended, damage: Damage) -> bool:
    """Delete what a refusal tells the user to delete; whether it does."""
    advice = re.findall(r"[Dd]elete (?!it from)(that file|it|them|[^\s:,]+)", ended.err)
    if not advice:
        return False
    paths = [damage.path] if advice[0] in ("that file", "it", "them") else list(case.folder.glob(advice[0].rstrip(".")))
    case.step(what=f"{advice[0]} deleted, as advised: {len(paths)} files or folders")
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return True


def _check_same(case: Case, long: Long, reference: Reference, damage: Damage, damaged: bytes | None) -> None:
    """The result is that of the undamaged run, apart from a damaged file that the command left as it was."""
    untouched = damaged is not None and damage.path.exists() and damage.path.read_bytes().startswith(damaged)
    was_flagged = damage.path.name == "log.jsonl" and b"log-incomplete" in damage.path.read_bytes()
    ignored = damage.name if untouched or was_flagged else ""
    if _is_a_picture_gone(damage):
        ignored = (
            (damage.path.parents[damage.path.parent.name == "shown"] / "gallery.npz")
            .relative_to(case.folder / "run")
            .as_posix()
        )
    if (difference := difference_in(case, reference, ignored)) is not None:
        case.step(what=difference)
        raise Bug(f"{damage.sort} damaged: {long.kind} resumes with another result")


def _reported(server: Server, case: Case, long: Long, reference: Reference, damage: Damage) -> str:
    """A page about the run: the same as without damage, or refused."""
    return _compared(server, case, damage, Order(("report", "run", "--out=page.html"), case.folder), _page)


def _used(server: Server, case: Case, long: Long, reference: Reference, damage: Damage) -> str:
    """A run that was trained as a model, another one as a page: the same output as without damage, or refused."""
    if long.kind != "train":
        return _reported(server, case, long, reference, damage)
    words = ("evaluate", "run", "--data=digits[:40]", "--suite=clean", "--run=other", "--json")
    return _compared(server, case, damage, Order(words, case.folder), _output)


def _compared(server: Server, case: Case, damage: Damage, order: Order, read: Callable[[Case, Ended], object]) -> str:
    """A command on the damaged run and on the repaired one."""
    ended = _run(server, case, order, damage)
    result = read(case, ended)
    harmless = _is_provenance(damage) or _is_a_picture_gone(damage)
    _mend(case, damage)
    whole = server.run(order)
    expected = read(case, whole)
    if ended.code == 2 and whole.code == 2 and ended.err == whole.err:
        return "refused, as without damage"
    if ended.code == 2:
        _check_names(ended, damage)
        return "refused"
    if whole.code == 0 and (result == expected or harmless):
        return "the same page or output"
    if isinstance(result, bytes) and damage.path.name == "log.jsonl" and b"damaged-log" in result:
        return "flagged on the page"
    raise Bug(f"{damage.sort} damaged: `{order.words[0]}` has other output and does not detect it")


def _mend(case: Case, damage: Damage) -> None:
    damage.path.write_bytes(damage.before)
    for name in ("page.html", "other"):
        path = case.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _page(case: Case, ended: Ended) -> object:
    path = case.folder / "page.html"
    return path.read_bytes() if path.exists() else None


def _output(case: Case, ended: Ended) -> object:
    return without(json.loads(ended.out), TIMINGS) if ended.code == 0 else None


def _run(server: Server, case: Case, order: Order, damage: Damage) -> Ended:
    case.step(*order.words)
    ended = server.run(order)
    if result := complaint(ended):
        raise Bug(f"{damage.sort} damaged: {order.words[0]}: {result}")
    return ended


def _check_names(ended: Ended, damage: Damage) -> None:
    """A refusal names the damaged file."""
    if damage.path.name not in ended.err + ended.out and not _WITHOUT_NAME.search(ended.err):
        raise Bug(f"{damage.sort} damaged: the line does not name the file: {_brief(ended.err)}")


def _is_a_picture_gone(damage: Damage) -> bool:
    """Whether a file was deleted that only pictures of the page come from, which a run does without."""
    return not damage.path.exists() and (damage.path.name == "gallery.npz" or damage.path.parent.name == "shown")


def _is_provenance(damage: Damage) -> bool:
    """Whether only entries about time and place were damaged, which no number depends on."""
    try:
        pairs = [[_entries(text) for text in (damage.before.decode(), damage.path.read_text())]]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        return False
    return all(without(one, PROVENANCE) == without(other, PROVENANCE) for one, other in pairs)


def _entries(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def _brief(text: str) -> str:
    """A message that is the same for cases of the same kind."""
    return re.sub(r"\d+(\.\d+)?(e-?\d+)?", "N", text.strip())[:200]
