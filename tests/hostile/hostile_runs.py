"""Run folders with files that no program wrote: forged values in valid files, pipes, and decompression bombs."""

import json
import os
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cases import Case
from commands import Long
from hostile_files import changed_tree
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from vitadel.runs import fingerprint

_CELLS: tuple[object, ...] = (
    *(None, True, 0, -1, 3, 10**9, 2**63 - 1, 1.5, float("nan"), float("inf"), "", "x", "\u732b"),
    *([], [1], ["a"], [[1.0]], [None], {"a": 1}),
)
# columns that one kind of result has and others have not
_COLUMNS = ("index", "robust", "correct", "clean_correct", "broken_by", "id", "label", "forwards", "distance", "x")
_LONG_LIST = 2**24


def spoil(run: Path, random: Random) -> str:
    """Replace one file of a run by a hostile one; returns which, and how. Sorts of files are drawn first."""
    sorts: dict[str, list[Path]] = {}
    for path in sorted(run.rglob("*")):
        if path.is_file() and "figures" not in path.parts and ".tfevents" not in path.name:
            sorts.setdefault(re.sub(r"\d+", "N", path.name), []).append(path)
    if not sorts:
        return "nothing there yet"
    path = random.choice(sorts[random.choice(sorted(sorts))])
    way = random.choice((_forged, _forged, _forged, _forged, _piped, _bomb))
    return f"{way(path, random)} in {path.relative_to(run)}"


def use_of(case: Case, long: Long) -> tuple[str, ...]:
    """A command that reads the run: the same once more, a report, or, of a trained model, an evaluation."""
    again = long.order(case.folder).words
    report = ("report", "run", "--out=page.html", *case.random.choice(((), ("--tables=tables",))))
    evaluate = ("evaluate", "run", "--data=digits[:8]", "--suite=clean", "--run=other")
    return case.random.choice((again, again, report, report, evaluate if long.kind == "train" else report))


def _piped(path: Path, random: Random) -> str:
    """Something else than a file: what opens a pipe waits forever."""
    path.unlink()
    kind = random.choice(("pipe", "pipe", "link to a pipe", "link to itself", "folder"))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a pipe":
        os.mkfifo(path.with_name("pipe"))
        path.symlink_to("pipe")
    elif kind == "link to itself":
        path.symlink_to(path.name)
    else:
        path.mkdir()
    return kind


# ------------------------------------------------------------------- forged values


def _forged(path: Path, random: Random) -> str:
    forge = _FORGERS.get(path.suffix)
    before = path.read_bytes()
    path.unlink()  # a link of it in another folder is unchanged
    path.write_bytes(before)
    if forge is None:
        path.write_bytes(random.randbytes(100))
        return "random bytes"
    return forge(path, random)


def _forged_rows(path: Path, random: Random) -> str:
    """Other columns, types, images or numbers of rows, without a hash."""
    with path.open("rb") as file:
        columns: dict[str, list[Any]] = pq.ParquetFile(file).read().to_pydict()
    name, other = random.choice(sorted(columns)), random.choice(_COLUMNS)
    values, count = columns.pop(name), len(columns.get("index", ()))
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "dropped": lambda: columns,
        "renamed": lambda: {**columns, other: values},
        "replaced": lambda: {**columns, name: [random.choice(_CELLS)] * len(values)},
        "one cell": lambda: {**columns, name: [*values[:-1], random.choice(_CELLS)]},
        "one more": lambda: {key: [*column, *column[-1:]] for key, column in {**columns, name: values}.items()},
        "one less": lambda: {key: column[:-1] for key, column in {**columns, name: values}.items()},
        "added": lambda: {**columns, name: values, other: [random.choice(_CELLS)] * len(values)},
        "other images": lambda: {**columns, name: values, "index": [number + 10**6 for number in range(count)]},
    }
    way = random.choice(sorted(ways))
    try:
        table = pa.table(ways[way]())
    except (pa.ArrowException, OverflowError):  # of a column with cells of two types
        table = pa.table({})
    pq.write_table(table, path)
    return f"{name} {way}"


def _forged_json(path: Path, random: Random) -> str:
    """A changed tree without a hash of the whole; hashes of the parts of a manifest are made anew."""
    tree = json.loads(path.read_text())
    tree.pop("sha256", None)
    tree.pop("rows_sha256", None)
    tree = changed_tree(tree, random)
    if isinstance(tree, dict) and isinstance(tree.get("parts"), dict) and "hashes" in tree:
        tree["hashes"] = {name: fingerprint(part) for name, part in tree["parts"].items()}
    path.write_text(json.dumps(tree))
    return "a changed tree"


def _forged_log(path: Path, random: Random) -> str:
    lines = path.read_text().splitlines()
    at = random.choice([number for number, line in enumerate(lines) if line.endswith("}")])  # others were cut short
    entry = json.loads(lines[at])
    entry.pop("crc32", None)
    lines[at] = json.dumps(changed_tree(entry, random))
    path.write_text("\n".join(lines) + "\n")
    return f"line {at}"


def _forged_arrays(path: Path, random: Random) -> str:
    with np.load(path) as stored:
        arrays = dict(stored)
    name = random.choice(sorted(arrays))
    arrays[name] = _other_array(arrays[name], random)
    np.savez(path, **arrays)
    return f"{name} {arrays[name].dtype}{arrays[name].shape}"


def _forged_tensors(path: Path, random: Random) -> str:
    """Other tensors or another header, such as the state of a training, without a hash."""
    tensors = load_file(path)
    with safe_open(path, "np") as file:
        about = {key: text for key, text in (file.metadata() or {}).items() if "sha256" not in key}
    name, key = random.choice(sorted(tensors)), random.choice(sorted(about) or [""])
    if key and random.random() < 0.6:
        # which step was selected is a sentence
        tree = json.loads(about[key]) if about[key].startswith("{") else about[key]
        about[key] = json.dumps(changed_tree(tree, random))
        name = key
    elif random.random() < 0.5:
        tensors[name] = np.ascontiguousarray(_other_array(tensors[name], random))
    else:
        tensors[random.choice(("x", "optimizer.99999.exp_avg", "optimizer.x.y", "model.x"))] = tensors.pop(name)
    try:
        save_file(tensors, path, about)
    except Exception:  # noqa: BLE001 - of a type that safetensors lacks
        save_file({}, path, about)
    return f"{name} changed"


def _other_array(array: "np.ndarray[Any, Any]", random: Random) -> "np.ndarray[Any, Any]":
    """Another type, shape or range."""
    ways: tuple[Callable[[], np.ndarray[Any, Any]], ...] = (
        lambda: np.zeros(array.shape, random.choice((np.float64, np.int64, np.bool_, np.uint8, np.int8))),
        lambda: np.full(array.shape, random.choice((np.nan, np.inf, -5.0, 1e30)), np.float32),
        lambda: np.full(array.shape, -(10**6)),
        lambda: array.reshape(-1),
        lambda: array.T,
        lambda: array[:0] if array.ndim else array[None],
        lambda: np.concatenate([array, array]) if array.ndim else array[None],
        lambda: np.array(3),
        lambda: np.array(["x"]),
    )
    return random.choice(ways)()


_FORGERS: dict[str, Callable[[Path, Random], str]] = {
    ".parquet": _forged_rows,
    ".json": _forged_json,
    ".jsonl": _forged_log,
    ".npz": _forged_arrays,
    ".safetensors": _forged_tensors,
}


# --------------------------------------------------------------------- bombs


def _bomb(path: Path, random: Random) -> str:
    """A file of kilobytes that expands to gigabytes, of the kind that is expected there."""
    path.unlink()
    if path.suffix == ".parquet":
        _parquet_bomb(path, random)
    elif path.suffix == ".npz":
        _zip_bomb(path, random.choice(("clean.npy", "rows.npy", "deltas.npy")))
    elif path.suffix == ".safetensors":
        header = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header)
    else:
        path.write_text("[" * 10**6 if random.random() < 0.5 else "9" * 10**6)
    return "a bomb"


def _parquet_bomb(path: Path, random: Random) -> None:
    zeros = pa.array(np.zeros(_LONG_LIST, np.int64))
    ways: tuple[Callable[[], dict[str, Any]], ...] = (
        lambda: {"index": zeros},
        lambda: {"index": np.arange(4), "wrong": pa.ListArray.from_arrays([0, 0, 0, 0, _LONG_LIST], zeros)},
        lambda: {"index": np.arange(60_000), "id": pa.array(["a" * 10**5]).dictionary_encode().take(zeros[:60_000])},
    )
    pq.write_table(pa.table(random.choice(ways)()), path)


def _zip_bomb(path: Path, name: str) -> None:
    """An archive with one array of three gigabytes of zeros; a block of them is compressed once and repeated."""
    block, count = 2**20, 3000
    squeezed = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = squeezed.compress(bytes(block)) + squeezed.flush(zlib.Z_FULL_FLUSH)
    body = first * count + squeezed.flush()
    sizes = (len(body), block * count)
    entry = struct.pack("<HHHHH", 20, 0, 8, 0, 0) + struct.pack("<IIIHH", 0, *sizes, len(name), 0)
    local = b"PK\3\4" + entry + name.encode() + body
    central = b"PK\1\2" + struct.pack("<H", 20) + entry + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name.encode()
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
    path.write_bytes(local + central + end)
