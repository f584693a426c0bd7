"""The run folder: its manifest, log, checkpoints and results.

manifest.json             identity of the run (`ManifestRecord`); written first, never changed
log.jsonl                 events, one object per line (`LogEntry`); append-only
checkpoints/              weights and training state
eval/<name>/rows.parquet  one row per image (`vitadel.runs.schema.ImageRows`)
"""

import json
import re
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.core.files import check_regular_file, is_unfinished, lock, parse_json, write_json
from vitadel.runs.manifest import ManifestRecord, describe, differences, environment, fingerprint
from vitadel.runs.tables import ResultFolder

_MANIFEST, _LOG = "manifest.json", "log.jsonl"
# events whose values are numbers or None
_SERIES = ("step", "holdout")
# a line of the log that ends with a checksum of its content
_SEALED = re.compile(rb'(?P<content>\{.*), "crc32": "(?P<crc32>[0-9a-f]{8})"\}\s*')
# beyond all float32
_LARGEST = 2.0**128
# maximum number of characters of a value in an error about differences
_LONGEST = 80


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of `log.jsonl`.

    Args:
        event: The kind of event, such as `step`, `holdout`, `alarm`.
        values: The logged values; `entry["loss"]` is short for `entry.values["loss"]`.
        time: Time in seconds since 1970.
    """

    event: str
    values: Mapping[str, Any]
    time: float = 0.0

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def numbers(self) -> dict[str, float]:
        """The values that are finite numbers."""
        return {name: float(value) for name, value in self.values.items() if _is_finite(value)}

    def to_line(self) -> str:
        """The entry as JSON, with a checksum at its end."""
        line = json.dumps({"event": self.event, "time": round(self.time, 3), **self.values})
        return f'{line[:-1]}, "crc32": "{zlib.crc32(line.encode()):08x}"}}'

    @classmethod
    def from_line(cls, line: bytes) -> "LogEntry | None":
        """The entry of a line; None if it is damaged, by its checksum or its content."""
        if sealed := _SEALED.fullmatch(line):
            line = sealed["content"] + b"}"
            if zlib.crc32(line) != int(sealed["crc32"], 16):
                return None
        try:
            content = parse_json(line.decode(errors="replace"))
        except ValueError:
            return None
        if not isinstance(content, dict) or ("step" in content and not _is_finite(content["step"])):
            return None
        event, time_ = str(content.pop("event", "")), content.pop("time", 0.0)
        numeric = all(value is None or isinstance(value, int | float) for value in (time_, *content.values()))
        return None if event in _SERIES and not numeric else cls(event, content, time_)


@dataclass(frozen=True, slots=True)
class Run:
    """The folder of a run: `claim` creates or resumes it for writing, `open` opens it for reading."""

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
        """Claim `folder` for the run described by `parts`; an existing folder must hold the same run.

        Args:
            folder: The run folder.
            kind: The kind of run, such as `train`.
            parts: Everything that determines the result.
            device: The device, for the manifest.
            ranks: The processes of the launch; the first claims the folder for all, and an error is raised in all.
            command: The command line, for the manifest.

        Raises:
            UsageError: The folder belongs to another run, or another process is writing to it.
        """
        claimed: list[Run] = []

        def claim_once() -> str:
            try:
                claimed.append(cls._claim(folder, kind, parts, device, command))
            except UsageError as error:
                return str(error)
            return ""

        if refusal := (ranks or Ranks()).broadcast_from_first(claim_once):
            raise UsageError(refusal)
        return claimed[0] if claimed else cls.open(folder)

    @classmethod
    def _claim(cls, folder: Path, kind: str, parts: Mapping[str, object], device: str, command: str | None) -> "Run":
        # the manifest is written while the folder is locked, so that two processes cannot both claim a new folder
        _check_readable_name(folder)
        described: dict[str, Any] = {"kind": kind, "parts": describe(parts)}
        _check_same_run(folder, described)  # first, so that an error leaves no new files
        lock = _locked(folder)
        try:
            resumed = _check_same_run(folder, described)  # another process may have been faster
            if not resumed:
                record = ManifestRecord(
                    **described,
                    hashes={name: fingerprint(part) for name, part in parts.items()},
                    created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    **environment(),
                    device=device,
                    command=command,
                )
                write_json(folder / _MANIFEST, record.to_json())
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
    def manifest(self) -> ManifestRecord:
        """The manifest, read from disk and verified."""
        return ManifestRecord.read(self.folder / _MANIFEST)

    @property
    def checkpoints(self) -> Path:
        """The folder of weights and training state."""
        return self.folder / "checkpoints"

    def log(self, event: str, **values: object) -> None:
        """Append one line. A resumed run may log a step again: readers use the last line of each step."""
        line = LogEntry(event, values, time.time()).to_line()
        check_regular_file(self.folder / _LOG)
        try:
            with (self.folder / _LOG).open("ab") as handle:
                handle.write((_line_end(handle) + line + "\n").encode())
        except OSError as error:
            raise UsageError(
                f"cannot write to {self.folder}: {error.strerror}. Free space or choose another run folder."
            ) from error

    def read_log(self, event: str, *, every: bool = False) -> list[LogEntry]:
        """The entries of one kind in order of their steps, each step once; damaged lines are skipped.

        Args:
            event: The kind.
            every: Return all entries as written, also those of updates that were rolled back.
        """
        entries = [entry for line in self._log_lines() if (entry := LogEntry.from_line(line)) and entry.event == event]
        if every:
            return entries
        last = {entry.values.get("step", number): entry for number, entry in enumerate(entries)}
        return [last[step] for step in sorted(last)]

    @property
    def damaged_log_lines(self) -> int:
        """The number of damaged lines in the log, without those truncated by an interruption."""
        return sum(LogEntry.from_line(line) is None and not _is_cut_short(line) for line in self._log_lines())

    def _log_lines(self) -> list[bytes]:
        path = self.folder / _LOG
        check_regular_file(path)
        try:
            return [line for line in path.read_bytes().split(b"\n") if line.strip()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}. Make it readable.") from error

    def results(self, name: str) -> ResultFolder:
        """The results of one evaluation, to write or to read."""
        manifest = self.manifest
        count = manifest.find("data", "splits", manifest.text("split"), "count")
        return ResultFolder(self.folder / "eval" / name, count if type(count) is int else None)

    def evaluations(self) -> list[str]:
        """The names of the finished evaluations, also of those whose rows or summary are missing."""
        files = [*self.folder.glob("eval/*/summary.json"), *self.folder.glob("eval/*/rows.parquet")]
        return sorted({path.parent.name for path in files})


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a folder that may not be entered, or a name that is too long
        raise UsageError(
            f"cannot look into {path.parent}: {error.strerror}. Make it readable, or choose another."
        ) from error


def _check_readable_name(folder: Path) -> None:
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the name of the folder {str(folder)!a} is not UTF-8, and not every file in it could be read again. "
            "Choose another --run."
        ) from None


def _check_same_run(folder: Path, described: Mapping[str, object]) -> bool:
    """Whether the folder holds this run already; raises a UsageError if it holds anything else."""
    if not _exists(folder / _MANIFEST):
        _check_empty_folder(folder)
        return False
    then = ManifestRecord.read(folder / _MANIFEST)
    if changed := differences({"kind": then.kind, "parts": then.parts}, described, longest=_LONGEST):
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise UsageError(
            f"{folder} belongs to another run; it differs in {'; '.join(changed[:3])}{more}. Choose another run folder."
        )
    return True


def _check_empty_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, and a run needs a folder. Choose another name.")
    try:
        names = list(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise UsageError(f"cannot look into {folder}: {error.strerror}. Choose another run folder.") from error
    if any(path.name != ".lock" and not is_unfinished(path) for path in names):
        raise UsageError(f"{folder} is not empty and not a run folder (no manifest.json). Choose another run folder.")


def _drop_unfinished(folder: Path) -> None:
    """Remove files that interruptions left unfinished; the folder is locked, so no process is writing them."""
    for subfolder in (".", "checkpoints", "eval/**", "study/**"):
        for path in folder.glob(f"{subfolder}/.*.part"):
            path.unlink(missing_ok=True)


def _locked(folder: Path) -> IO[str]:
    """Lock the folder for this process; the system releases the lock when the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write {folder}: {error.strerror}. Choose a folder you may write to, with space left."
        ) from error
    check_regular_file(folder / ".lock")
    try:
        handle = (folder / ".lock").open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror}. Make it writable, or choose another run folder."
        ) from error
    try:
        lock(handle)
    except BlockingIOError:
        handle.close()
        raise UsageError(
            f"{folder} is in use by another process. Wait for it to end or choose another run folder."
        ) from None
    except OSError as error:
        handle.close()
        raise UsageError(
            f"cannot lock {folder}: {error.strerror}. Choose a --run on a file system that has file locks."
        ) from error
    return handle


def _line_end(handle: IO[bytes]) -> str:
    """A newline if an interruption truncated the last line, so that the next one is separate from it."""
    if handle.tell() == 0:
        return ""
    with open(handle.name, "rb") as written:
        written.seek(-1, 2)
        return "" if written.read() == b"\n" else "\n"


def _is_cut_short(line: bytes) -> bool:
    return not line.rstrip().endswith(b"}") and b'"crc32": "' not in line


def _is_finite(value: object) -> bool:
    """Whether it is a number that a float32 can hold: a log has no others, and no axis shows a range of 1e308."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST
