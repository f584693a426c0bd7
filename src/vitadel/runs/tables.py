"""The folder of one evaluation or study: tables of per-image rows, values that are not per image, and final results.

tables/NAME/*.parquet  rows of an unfinished evaluation, keyed by the image index
parts/NAME.json        values that are not per image
rows.parquet           final results: one row per image
summary.json           final results: the record, computed from the rows

Files are written atomically, and every parquet file contains a hash of its columns, which is checked when it is read.
An interrupted evaluation resumes from the tables.
"""

import contextlib
import hashlib
import json
import math
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitadel.core.errors import UsageError
from vitadel.core.files import check_regular_file, read_json, write_atomically, write_json
from vitadel.core.stats import Accuracy, accuracy_of

if TYPE_CHECKING:
    import pyarrow

Columns = Mapping[str, Sequence[Any]]

_HASH = b"vitadel.sha256"
# keys of every summary
_KEYS = ("name", "suite", "threat", "n", "clean", "robust", "attacks", "flags")
# the key of the hash of the rows that a summary was computed from
_ROWS = "rows_sha256"
# former names of columns, from before version 0.1
_OLD_NAMES = {"row": "index", "fell_to": "broken_by", "size": "distance", "clean_right": "clean_correct"}
# far beyond the images of any data set: a small file can claim more rows than fit into memory
MOST_ROWS = 2**24
# file names have at most 255 bytes, of which a character may take up to four
_LONGEST = 120


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """The results of one evaluation or study, in `folder`.

    Example:
        >>> Run.open("runs/vit").results("quick-linf-8_255").rows()["broken_by"]
    """

    folder: Path

    def append(self, table: str, columns: Columns) -> None:
        """Store some rows of a table; the column `index` contains their images."""
        import pyarrow as pa

        first = min(columns["index"])
        _write(pa.table(dict(columns)), self.table(table) / f"{first:09d}.parquet")

    def read(self, table: str) -> dict[str, list[Any]]:
        """All rows of a table so far as columns, in order of `index`; empty if there are none."""
        return _read_parts(sorted(self.table(table).glob("*.parquet")))

    def write_part(self, name: str, content: Mapping[str, object]) -> None:
        """Store a named value of plain JSON."""
        write_json(self._part(name), content)

    def read_part(self, name: str) -> dict[str, Any] | None:
        """A stored value; None if there is none of that name."""
        path = self._part(name)
        return read_json(path) if path.exists() else None

    def finish(self, rows: Columns, summary: Mapping[str, object]) -> None:
        """Write one row per image and the summary computed from them, and delete tables and parts.

        Args:
            rows: The columns of `rows.parquet`; `index` is the key.
            summary: The record as JSON; a hash of the rows is written with it.
        """
        import pyarrow as pa

        with contextlib.suppress(OSError):  # an earlier summary does not match the new rows
            self._summary.unlink()
        _write(pa.table(sorted_by_index({name: list(values) for name, values in rows.items()})), self._rows)
        write_json(self._summary, {**summary, _ROWS: _hash(_read_one(self._rows))})
        for name in ("tables", "parts"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    @property
    def finished(self) -> bool:
        """Whether the rows and the summary exist."""
        return self._summary.exists() and self._rows.exists()

    def rows(self) -> dict[str, list[Any]]:
        """The final rows as columns with current names, in order of `index`; empty if unfinished."""
        return _with_new_names(_read_one(self._rows)) if self._rows.exists() else {}

    def read_verified(self) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        """The summary and the rows that it was computed from.

        Raises:
            UsageError: One of them is missing or damaged, or the summary was computed from other rows.
        """
        for path in (self._summary, self._rows):
            if not path.exists():
                raise UsageError(f"{path} does not exist. Run the same command again to have it made.")
        remedy = f"Delete {self._summary} and run the same command again."
        summary, stored = read_json(self._summary, remedy), _read_one(self._rows)
        rows = _with_new_names(stored)
        if absent := [key for key in _KEYS if key not in summary]:
            raise UsageError(f"{self._summary} lacks {', '.join(absent)}. {remedy}")
        if summary.pop(_ROWS, None) not in (None, _hash(stored)) or summary["n"] != len(rows.get("index", [])):
            raise UsageError(f"{self._summary} was counted from other rows than {self._rows} has. {remedy}")
        for name, counted in _counts(summary, rows).items():
            if not _same(summary[name], counted):
                recorded, result = _shown(summary[name]), _shown(asdict(counted))
                raise UsageError(f"{self._summary} has {name} = {recorded}, its rows give {result}. {remedy}")
        return summary, rows

    @property
    def _rows(self) -> Path:
        return self.folder / "rows.parquet"

    @property
    def _summary(self) -> Path:
        return self.folder / "summary.json"

    def table(self, name: str) -> Path:
        """The folder of a table's files."""
        return self.folder / "tables" / _file_name(name)

    def _part(self, name: str) -> Path:
        return self.folder / "parts" / f"{_file_name(name)}.json"


def _file_name(name: str) -> str:
    """A unique file name for a table, valid on every file system."""
    safe = "".join(sign if sign.isalnum() or sign in "-_=." else "_" for sign in name)[:_LONGEST]
    return safe if safe == name else f"{safe}-{zlib.crc32(name.encode()):08x}"


def _with_new_names(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Rows with current column names, in order of `index`."""
    names = {**_OLD_NAMES, "right": "robust" if "fell_to" in columns else "correct"}
    return sorted_by_index({names.get(name, name): values for name, values in columns.items()})


def sorted_by_index(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """The columns with their rows in order of `index`."""
    index = columns.get("index", [])
    order = sorted(range(len(index)), key=index.__getitem__)
    return {name: [values[position] for position in order] for name, values in columns.items()}


def _read_parts(paths: Sequence[Path]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for path in paths:
        for name, values in _read_one(path).items():
            columns.setdefault(name, []).extend(values)
    if any(len(values) != len(columns.get("index", ())) for values in columns.values()):
        raise UsageError(
            f"the files in {paths[0].parent} differ in their columns. Delete them and run the same command again."
        )
    return sorted_by_index(columns)


def _write(table: "pyarrow.Table", path: Path) -> None:
    import pyarrow.parquet as pq

    hashed = table.replace_schema_metadata({_HASH: _hash(table.to_pydict())})
    write_atomically(path, lambda temporary: pq.write_table(hashed, temporary, write_page_checksum=True))


def _read_one(path: Path) -> dict[str, list[object]]:
    """The columns of one file, verified; files of earlier versions have no checksums and are not verified."""
    import pyarrow.parquet as pq

    check_regular_file(path)
    try:
        # one file, not a data set: folder names such as eps=1 would add columns
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            about = file.metadata
            groups = sum(about.row_group(number).num_rows for number in range(about.num_row_groups))
            if (rows := max(about.num_rows, groups)) > MOST_ROWS:
                raise ValueError(f"it has {rows} rows, more than {MOST_ROWS}")
            table = file.read()
        columns: dict[str, list[object]] = table.to_pydict()
        if (table.schema.metadata or {}).get(_HASH) not in (None, _hash(columns).encode()):
            raise ValueError("its content does not match the hash in it")
    except Exception as error:  # a damaged file can raise anything
        damage = " ".join(str(error).split())[:200].rstrip(".")
        raise UsageError(
            f"cannot read rows in {path}: {damage}. Delete that file to redo its rows: the same command computes them."
        ) from error
    return columns


def _hash(columns: Columns) -> str:
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()


def _counts(summary: Mapping[str, object], rows: Columns) -> dict[str, Accuracy]:
    """The accuracies of a summary, computed again from the rows as far as these have the columns."""
    pairs = zip(rows.get("label", ()), rows.get("clean_prediction", ()), strict=False)
    clean = rows.get("clean_correct", [label == prediction for label, prediction in pairs])
    robust = rows.get("robust", [attack == "" for attack in rows.get("broken_by", ())])
    counted = {"clean": clean, "robust": robust}
    return {
        name: accuracy_of([float(one) if isinstance(one, int | float) else math.nan for one in scores])
        for name, scores in counted.items()
        if scores and isinstance(summary[name], dict)
    }


def _same(recorded: object, counted: Accuracy) -> bool:
    values = (
        [(recorded.get(name), value) for name, value in asdict(counted).items()] if isinstance(recorded, dict) else []
    )
    return bool(values) and all(
        isinstance(one, int | float) and math.isclose(one, other, abs_tol=1e-9) for one, other in values
    )


def _shown(recorded: object) -> str:
    """An accuracy as text, or any other value as JSON."""
    numbers = [recorded.get(name) for name in ("accuracy", "low", "high")] if isinstance(recorded, dict) else []
    if not numbers or not all(isinstance(number, int | float) for number in numbers):
        return json.dumps(recorded)[:80]
    share, low, high = numbers
    return f"{share:.1%} ({low:.1%}-{high:.1%})"
