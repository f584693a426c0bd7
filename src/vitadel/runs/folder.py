"""The run folder: who owns it, what was logged in it, what it holds.

manifest.json             what the run is; written first, never changed
log.jsonl                 what happened, one object per line, only ever appended to
checkpoints/              weights and training state
eval/<name>/rows.parquet  one row per image
"""

import json
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from vitadel.errors import UsageError
from vitadel.runs.files import is_unfinished, read_json, write_json
from vitadel.runs.manifest import describe, differences, fingerprint, surroundings
from vitadel.runs.rows import Rows


@dataclass(frozen=True, slots=True)
class Run:
    """A folder that belongs to one run; made by `claim` to write and by `open` to read."""

    folder: Path
    resumed: bool = True
    _lock: IO[str] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def claim(cls, folder: Path, kind: str, parts: Mapping[str, object], *, device: str) -> "Run":
        """Take `folder` for the run that `parts` describe: new, or an earlier part of the same run.

        A folder of another run is refused, and so is one that another process is writing to.
        """
        described = {"kind": kind, "parts": describe(parts)}
        manifest = folder / "manifest.json"
        if not _exists(manifest):
            _refuse_strangers(folder)
            hashes = {name: fingerprint(part) for name, part in parts.items()}
            about = {**surroundings(), "device": device, "command": shlex.join(["vitadel", *sys.argv[1:]])}
            created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            write_json(manifest, {**described, "hashes": hashes, "created": created, **about})
            return cls(folder, resumed=False, _lock=_locked(folder))
        then = read_json(manifest)
        if changed := differences({key: then.get(key) for key in described}, described):
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise UsageError(
                f"{folder} belongs to another run; it differs in {'; '.join(changed[:3])}{more}. Choose a new --run."
            )
        return cls(folder, resumed=True, _lock=_locked(folder))

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """An existing run, to read from."""
        if not _exists(folder / "manifest.json"):
            raise UsageError(
                f"{folder} is not a run folder: it has no manifest.json. Give the --run of an earlier command."
            )
        return cls(folder)

    @property
    def manifest(self) -> dict[str, object]:
        return read_json(self.folder / "manifest.json")

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def log(self, event: str, **values: object) -> None:
        """Append one line. A resumed run may log a step again: readers take the last line of a step."""
        line = json.dumps({"event": event, "time": round(time.time(), 3), **values})
        try:
            with (self.folder / "log.jsonl").open("ab") as handle:
                handle.write((_line_end(handle) + line + "\n").encode())
        except OSError as error:
            raise UsageError(
                f"cannot write to {self.folder}: {error.strerror}. Free space or choose a new --run."
            ) from error

    def read_log(self, event: str, *, every: bool = False) -> list[dict[str, object]]:
        """The lines of one kind in order of their steps, each step once; a line cut short by a kill is passed over.

        With `every`, as they were written, those of updates that a broken loss undid among them.
        """
        path = self.folder / "log.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        entries = [entry for line in lines if (entry := _parse(line)) is not None and entry.get("event") == event]
        if every:
            return entries
        last = {entry.get("step", number): entry for number, entry in enumerate(entries)}
        return [last[step] for step in sorted(last, key=_number)]

    def rows(self, name: str) -> Rows:
        """The rows of one evaluation, to write or to read."""
        return Rows(self.folder / "eval" / name)

    def evaluations(self) -> list[str]:
        """The names of the finished evaluations."""
        return sorted(path.parent.name for path in self.folder.glob("eval/*/summary.json"))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError as error:
        raise UsageError(
            f"cannot look into {path.parent}: {error.strerror}. Make it readable, or choose another."
        ) from error


def _refuse_strangers(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; --run wants a folder. Choose another name.")
    if folder.is_dir() and any(path.name != ".lock" and not is_unfinished(path) for path in folder.iterdir()):
        raise UsageError(f"{folder} is not empty and not a run folder (no manifest.json). Choose a new --run.")


def _locked(folder: Path) -> IO[str] | None:
    """The folder's lock, and the folder without what kills left of files half written."""
    lock = _lock(folder)
    for place in (".", "checkpoints", "eval/**", "study/**"):
        for path in folder.glob(f"{place}/.*.part"):
            path.unlink(missing_ok=True)
    return lock


def _lock(folder: Path) -> IO[str] | None:
    """Keep other processes out for as long as this one lives; the system lets go when it ends, even by a kill."""
    try:
        import fcntl
    except ImportError:  # Windows has no flock; there, two writers are the user's to avoid
        return None
    try:
        handle = (folder / ".lock").open("w")
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror}. Make it writable, or choose a new --run."
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise UsageError(f"{folder} is in use by another process. Wait for it to end or choose a new --run.") from None
    return handle


def _line_end(handle: IO[bytes]) -> str:
    """A line that a kill cut short must not swallow the next one."""
    if handle.tell() == 0:
        return ""
    with open(handle.name, "rb") as written:
        written.seek(-1, 2)
        return "" if written.read() == b"\n" else "\n"


def _parse(line: str) -> dict[str, object] | None:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        return None
    return entry if isinstance(entry, dict) else None


def _number(step: object) -> float:
    return float(step) if isinstance(step, int | float) else 0.0
