"""Results of a run, their comparison, and checks of how a command ended."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from safetensors.numpy import load_file
from server import Ended

# keys that may differ between two runs of the same command
TIMINGS = frozenset(
    ("seconds", "time", "created", "command", "images_per_second", "memory_mib", "device_hours", "kilowatt_hours")
)
# hashes of whole files, times among them
_HASHES = frozenset(("sha256", "rows_sha256", "crc32"))
# a manifest's facts about where it was written, which no number depends on
PROVENANCE = TIMINGS | {"versions", "commit", "machine", "device"}
# rounding: of numbers, and of pixels that are kept in half precision
_RELATIVE, _ABSOLUTE, _PIXEL = 1e-5, 1e-8, 1e-3
# characters of a refusal, which may quote what was typed
_LONGEST_LINE = 2000
# refusals of numbers that only occur during the work: the run folder may exist
_MET_AT_WORK = re.compile(
    r"no longer finite|NaN or infinite|combinations? failed|out of memory|cannot read the image|named pipe"
)


def result_of(folder: Path) -> dict[str, object]:
    """All results of a run, or of a folder of runs, without times."""
    actual: dict[str, dict[str, object]] = {}
    for path in sorted(folder.rglob("*")):
        found_image = path.parent.name == "found" and path.suffix == ".npz"
        # how many files the images take depends on interruptions
        name = (path.parent if found_image else path).relative_to(folder).as_posix()
        read = _deltas if found_image else _READERS.get(path.name)
        if read is None:
            continue
        try:
            result = read(path)
        except Exception as error:  # noqa: BLE001 - whatever a damaged file makes its reader raise
            result = {f"{type(error).__name__} of {path.name}": str(error)}
        if result:  # the log of a sweep, for one, holds nothing but failures
            actual[name] = {**actual.get(name, {}), **result}
    return dict(actual)


def without(value: object, names: Iterable[str]) -> object:
    """`value` without the entries of these names, at any depth."""
    if isinstance(value, Mapping):
        return {key: without(inner, names) for key, inner in value.items() if key not in names}
    return [without(inner, names) for inner in value] if isinstance(value, list) else value


def first_difference(one: object, other: object, path: str = "") -> str | None:
    """Where two results differ beyond rounding, None if they are the same.

    A resumed run may have another batch size, and the sums of a network round differently with the size of a batch.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            if key not in one or key not in other:
                return f"{path}/{key} is only in the {'second' if key not in one else 'first'}"
            if (result := first_difference(one[key], other[key], f"{path}/{key}")) is not None:
                return result
        return None
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        places = (first_difference(a, b, f"{path}[{at}]") for at, (a, b) in enumerate(zip(one, other, strict=True)))
        return next((place for place in places if place is not None), None)
    return None if _same(one, other) else f"{path}: {_short(one)} and {_short(other)}"


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and one.dtype == other.dtype and _same_arrays(one, other)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return one == other


def _same_arrays(one: "np.ndarray[Any, Any]", other: "np.ndarray[Any, Any]") -> bool:
    """Equal up to rounding; of eight pictures, one may differ.

    The sign of a gradient that is nearly zero depends on rounding, and with it where a search goes from there.
    """
    differs = ~np.isclose(one, other, rtol=0, atol=_PIXEL)
    if differs.ndim != 4:
        return not differs.any()
    return int(differs.any((1, 2, 3)).sum()) <= len(differs) // 8


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."


def _hash(value: "np.ndarray[Any, Any]") -> str:
    return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()[:16]}"


def _tensors(path: Path) -> dict[str, object]:
    return {key: _hash(value) for key, value in load_file(path).items()}


def _rows(path: Path) -> dict[str, object]:
    columns: dict[str, object] = pq.read_table(path).to_pydict()
    return {name: values for name, values in columns.items() if name not in TIMINGS}


def _numbers(path: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(path.read_text())
    return {key: without(value, TIMINGS) for key, value in content.items() if key not in TIMINGS | _HASHES}


def _manifest(path: Path) -> dict[str, object]:
    return {key: value for key, value in _numbers(path).items() if key not in PROVENANCE}


def _logged(path: Path) -> dict[str, object]:
    """The numbers of every step, those of its last line."""
    steps: dict[str, object] = {}
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue  # cut short by an interruption
        if entry.get("event") in ("holdout", "step"):
            steps[f"{entry['event']} {entry['step']}"] = without(entry, TIMINGS | _HASHES)
    return steps


def _arrays(path: Path) -> dict[str, object]:
    with np.load(path) as stored:
        # floats are compared up to rounding, which depends on the size of a batch
        return {key: array if array.dtype.kind == "f" else _hash(array) for key, array in stored.items()}


def _deltas(path: Path) -> dict[str, object]:
    """What was added to each image, by its row."""
    with np.load(path) as stored:
        pairs = [("rows", "deltas"), ("exact_rows", "exact_deltas")]
        return {
            str(row): delta
            for rows, deltas in pairs
            for row, delta in zip(stored[rows].tolist(), stored[deltas], strict=True)
        }


_READERS: dict[str, Callable[[Path], dict[str, object]]] = {
    **dict.fromkeys(("final.safetensors", "best.safetensors"), _tensors),
    **dict.fromkeys(("summary.json", "result.json", "table.json", "factors.json"), _numbers),
    "rows.parquet": _rows,
    "manifest.json": _manifest,
    "log.jsonl": _logged,
    "gallery.npz": _arrays,
}


def complaint(ended: Ended, allowed: Sequence[int] = (0, 2)) -> str | None:
    """What is wrong with how a command ended; None if nothing is."""
    if "Traceback (most recent call last)" in ended.err:
        return _signature(ended.err)
    if ended.hung:
        return f"hang at {_place(ended.err)}"
    if ended.working:
        return None
    if ended.code not in allowed:
        return f"exit code {ended.code}: {ended.err.strip()[-200:]}"
    lines = ended.error_lines
    if ended.code == 2:
        if len(lines) != 1 or not lines[0].startswith("vitadel: "):
            return f"{len(lines)} lines on standard error instead of one: {' | '.join(lines)[:200]}"
        if len(lines[0]) > _LONGEST_LINE:
            return f"a line of {len(lines[0])} characters: {lines[0][:120]}..."
    return None


def was_met_at_work(ended: Ended) -> bool:
    """Whether a refusal is of something that could not be known before the work began."""
    return _MET_AT_WORK.search(ended.err) is not None


def _signature(err: str) -> str:
    """The exception, and the innermost line of ours that it came through."""
    lines = err.splitlines()
    raised = next((line for line in reversed(lines) if re.match(r"[\w.]+(: |$)", line)), lines[-1])
    return f"traceback at {_place(err, last=True)}: {raised[:160]}"


def _place(err: str, *, last: bool = False) -> str:
    """A line of ours in a traceback, the innermost one: faulthandler begins with it, an exception ends with it."""
    ours = re.findall(r'File ".*/src/vitadel/([\w/.]+)", line (\d+)', err)
    file, line = (ours[-1] if last else ours[0]) if ours else ("no line of ours", "")
    return f"{file}:{line}"
