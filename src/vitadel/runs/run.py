"""The run folder: who owns it, what was logged in it, what it holds.

manifest.json             what the run is; written first, never changed
log.jsonl                 what happened, one object per line, only ever appended to
checkpoints/              weights and training state
eval/<name>/rows.parquet  one row per image
"""

import json
import math
import re
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.core.files import is_unfinished, read_json, write_json
from vitadel.runs.manifest import describe, differences, fingerprint, surroundings
from vitadel.runs.tables import ResultFolder, Rows

_MANIFEST, _LOG = "manifest.json", "log.jsonl"
# events whose values are numbers, or None where there is none
_SERIES = ("step", "holdout")
# a line of the log, and at its end the checksum of all before
_SEALED = re.compile(rb'(?P<content>\{.*), "crc32": "(?P<crc32>[0-9a-f]{8})"\}\s*')
# characters of each value in which a run differs from another
_LONGEST = 80


@dataclass(frozen=True, slots=True)
class Run:
    """A folder that belongs to one run; made by `claim` to write and by `open` to read."""

    folder: Path
    resumed: bool = True
    _lock: IO[str] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def claim(
        cls,
        folder: Path,
        kind: str,
        parts: Mapping[str, object],
        *,
        device: str,
        ranks: Ranks | None = None,
        command: str | None = None,
    ) -> "Run":
        """Take `folder` for the run that `parts` describe: new, or an earlier part of the same run.

        A folder of another run is refused, and so is one that another process is writing to. Of several `ranks`, the
        first claims the folder for all; refused in one, it is refused in all. `command` is recorded as what was run.
        """
        claimed: list[Run] = []

        def claim_once() -> str:
            try:
                claimed.append(cls._claim(folder, kind, parts, device, command))
            except UsageError as error:
                return str(error)
            return ""

        if refusal := (ranks or Ranks()).agree(claim_once):
            raise UsageError(refusal)
        return claimed[0] if claimed else cls.open(folder)

    @classmethod
    def _claim(cls, folder: Path, kind: str, parts: Mapping[str, object], device: str, command: str | None) -> "Run":
        """The manifest is written while the folder is locked: of two runs that claim a new folder, one is refused."""
        _refuse_unreadable_name(folder)
        described: dict[str, object] = {"kind": kind, "parts": describe(parts)}
        _refuse_another(folder, described)  # before anything is made: a refusal leaves nothing behind
        lock = _locked(folder)
        try:
            resumed = _refuse_another(folder, described)  # another process may have been faster
            if not resumed:
                hashes = {name: fingerprint(part) for name, part in parts.items()}
                about = {**surroundings(), "device": device, "command": command}
                created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                write_json(folder / _MANIFEST, {**described, "hashes": hashes, "created": created, **about})
            _drop_unfinished(folder)
        except BaseException:
            lock.close()
            raise
        return cls(folder, resumed=resumed, _lock=lock)

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """An existing run, to read from."""
        if not _exists(folder / _MANIFEST):
            raise UsageError(
                f"{folder} is not a run folder: it has no manifest.json. Give the --run of an earlier command."
            )
        return cls(folder)

    @property
    def manifest(self) -> dict[str, object]:
        return _read_manifest(self.folder)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def log(self, event: str, **values: object) -> None:
        """Append one line. A resumed run may log a step again: readers take the last line of a step."""
        line = json.dumps({"event": event, "time": round(time.time(), 3), **values})
        line = f'{line[:-1]}, "crc32": "{zlib.crc32(line.encode()):08x}"}}'
        try:
            with (self.folder / _LOG).open("ab") as handle:
                handle.write((_line_end(handle) + line + "\n").encode())
        except OSError as error:
            raise UsageError(
                f"cannot write to {self.folder}: {error.strerror}. Free space or choose a new --run."
            ) from error

    def read_log(self, event: str, *, every: bool = False) -> list[dict[str, object]]:
        """The lines of one kind in order of their steps, each step once; lines that are damaged are passed over.

        With `every`, as they were written, those of updates that a broken loss undid among them.
        """
        entries = [entry for line in self._log_lines() if (entry := _parse(line)) and entry.get("event") == event]
        if every:
            return entries
        last = {entry.get("step", number): entry for number, entry in enumerate(entries)}
        return [last[step] for step in sorted(last, key=_number)]

    @property
    def damaged_log_lines(self) -> int:
        """How many lines of the log were left out; those that a kill cut short do not count, they were logged again."""
        return sum(_parse(line) is None and not _is_cut_short(line) for line in self._log_lines())

    def _log_lines(self) -> list[bytes]:
        path = self.folder / _LOG
        try:
            return [line for line in path.read_bytes().split(b"\n") if line.strip()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}. Make it readable.") from error

    def rows(self, name: str) -> Rows:
        """The rows of one evaluation, to write or to read."""
        return Rows(self.folder / "eval" / name)

    def results(self, name: str) -> ResultFolder:
        """The results of one evaluation, to write or to read."""
        return ResultFolder(self.folder / "eval" / name)

    def evaluations(self) -> list[str]:
        """The names of the finished evaluations, and of those that have lost their rows or their summary since."""
        files = [*self.folder.glob("eval/*/summary.json"), *self.folder.glob("eval/*/rows.parquet")]
        return sorted({path.parent.name for path in files})


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a folder that may not be entered, or a name that is too long
        raise UsageError(
            f"cannot look into {path.parent}: {error.strerror}. Make it readable, or choose another."
        ) from error


def _refuse_unreadable_name(folder: Path) -> None:
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the name of the folder {str(folder)!a} is not UTF-8, and not every file in it could be read again. "
            "Choose another --run."
        ) from None


def _read_manifest(folder: Path) -> dict[str, object]:
    path, remedy = folder / _MANIFEST, "Restore it from a copy, or choose a new --run."
    manifest = read_json(path, remedy)
    parts, hashes = manifest.get("parts"), manifest.get("hashes")
    if not isinstance(parts, dict) or not isinstance(manifest.get("kind"), str):
        raise UsageError(f"{path} does not say what the run is: it has no kind and no parts. {remedy}")
    # of manifests without a hash of their own
    for name, known in hashes.items() if isinstance(hashes, dict) else ():
        if name in parts and known != fingerprint(parts[name]):
            raise UsageError(f"{path} is damaged or was edited: its {name} does not match the hash in it. {remedy}")
    return manifest


def _refuse_another(folder: Path, described: Mapping[str, object]) -> bool:
    """Whether this run has the folder already; raises if something else has it."""
    if not _exists(folder / _MANIFEST):
        _refuse_strangers(folder)
        return False
    then = _read_manifest(folder)
    if changed := differences({key: then.get(key) for key in described}, described, longest=_LONGEST):
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise UsageError(
            f"{folder} belongs to another run; it differs in {'; '.join(changed[:3])}{more}. Choose a new --run."
        )
    return True


def _refuse_strangers(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; --run wants a folder. Choose another name.")
    try:
        names = list(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise UsageError(f"cannot look into {folder}: {error.strerror}. Choose a new --run.") from error
    if any(path.name != ".lock" and not is_unfinished(path) for path in names):
        raise UsageError(f"{folder} is not empty and not a run folder (no manifest.json). Choose a new --run.")


def _drop_unfinished(folder: Path) -> None:
    """Remove what kills left of files half written; the folder is locked, so nobody is writing them."""
    for place in (".", "checkpoints", "eval/**", "study/**"):
        for path in folder.glob(f"{place}/.*.part"):
            path.unlink(missing_ok=True)


def _locked(folder: Path) -> IO[str]:
    """Keep other processes out for as long as this one lives; the system lets go when it ends, even by a kill."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write {folder}: {error.strerror}. Choose a folder you may write to, with space left."
        ) from error
    try:
        handle = (folder / ".lock").open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror}. Make it writable, or choose a new --run."
        ) from error
    try:
        import fcntl
    except ImportError:  # Windows has no flock; there, two writers are the user's to avoid
        return handle
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        raise UsageError(f"{folder} is in use by another process. Wait for it to end or choose a new --run.") from None
    except OSError as error:
        handle.close()
        raise UsageError(
            f"cannot lock {folder}: {error.strerror}. Choose a --run on a file system that has file locks."
        ) from error
    return handle


def _line_end(handle: IO[bytes]) -> str:
    """A line that a kill cut short must not swallow the next one."""
    if handle.tell() == 0:
        return ""
    with open(handle.name, "rb") as written:
        written.seek(-1, 2)
        return "" if written.read() == b"\n" else "\n"


def _parse(line: bytes) -> dict[str, object] | None:
    """What a line says; None if it is damaged, by its checksum or by what stands in it."""
    if sealed := _SEALED.fullmatch(line):
        line = sealed["content"] + b"}"
        if zlib.crc32(line) != int(sealed["crc32"], 16):
            return None
    try:
        entry = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or ("step" in entry and not _is_finite(entry["step"])):
        return None
    if entry.get("event") in _SERIES and not all(
        value is None or isinstance(value, int | float) for name, value in entry.items() if name != "event"
    ):
        return None
    return entry


def _is_cut_short(line: bytes) -> bool:
    return not line.rstrip().endswith(b"}") and b'"crc32": "' not in line


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(step: object) -> float:
    return float(step) if isinstance(step, int | float) else 0.0
