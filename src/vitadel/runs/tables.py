"""The folder of one evaluation or study: tables of per-image rows, values that are not per image, and final results.

tables/NAME/*.parquet  rows of an unfinished evaluation, keyed by the image index
parts/NAME.json        values that are not per image
rows.parquet           final results: one row per image
summary.json           final results: the record, computed from the rows

Files are written atomically, and every parquet file contains a hash of its columns, which is checked when it is read.
An interrupted evaluation resumes from the tables. Files are untrusted: a small one can claim to hold more rows or
values than fit into memory, or columns of any names and types.
"""

import contextlib
import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitadel.core.errors import UsageError, short_reason, short_repr
from vitadel.core.files import (
    LONGEST_NAME,
    check_regular_file,
    hashed_name,
    read_json,
    write_atomically,
    write_json,
)
from vitadel.core.stats import Accuracy, accuracy_of

if TYPE_CHECKING:
    import pyarrow.parquet

Columns = Mapping[str, Sequence[Any]]

_HASH = b"vitadel.sha256"
# keys of every summary
_KEYS = ("name", "suite", "threat", "n", "clean", "robust", "attacks", "flags")
# the key of the hash of the rows that a summary was computed from
_ROWS = "rows_sha256"
# former names of columns, from before version 0.1
_OLD_NAMES = {"row": "index", "fell_to": "broken_by", "size": "distance", "clean_right": "clean_correct"}
# far beyond the images of any data set
MOST_ROWS = 2**24
# rows of a file of a table that is not per image
_FEW_ROWS = 2**16
# of a file in memory: 4096 rows with a picture of 300 x 300 pixels
MOST_BYTES = 2**31
_ROWS_AT_ONCE = 256


class StoredColumns(dict[str, list[Any]]):
    """The columns of stored rows; asking for one that they lack raises a UsageError that names their file or folder."""

    def __init__(self, columns: Mapping[str, list[Any]], source: Path) -> None:
        super().__init__(columns)
        self.source = source

    def __missing__(self, name: str) -> list[Any]:
        raise UsageError(f"the rows in {self.source} have no column {name!r}. {_redo(self.source)}")

    def of_type(self, name: str, *kinds: type) -> list[Any]:
        """A column whose values must be of one of the types `kinds`; raises a UsageError otherwise."""
        if wrong := next(([value] for value in self[name] if type(value) not in kinds), None):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise UsageError(
                f"the rows in {self.source} have {name} = {short_repr(wrong[0])}, which is no {wanted}. "
                f"{_redo(self.source)}"
            )
        return self[name]

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Context manager: an error of code that only computes with these rows is blamed on them."""
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise UsageError(
                f"the rows in {self.source} are not as they were written ({type(error).__name__}: "
                f"{short_reason(error)}). {_redo(self.source)}"
            ) from error


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """The results of one evaluation or study, in `folder`.

    Args:
        folder: The folder.
        num_images: The number of images, if known; files that claim far more rows are not read.

    Example:
        >>> Run.open("runs/vit").results("quick-linf-8_255").rows()["broken_by"]
    """

    folder: Path
    num_images: int | None = None

    def append(self, table: str, columns: Columns) -> None:
        """Store some rows of a table; the column `index` contains their images."""
        import pyarrow as pa

        first = min(columns["index"])
        _write(pa.table(dict(columns)), self.table(table) / f"{first:09d}.parquet")

    def read(self, table: str) -> dict[str, list[Any]]:
        """All rows of a table so far as columns, in order of `index`; empty if there are none."""
        paths = sorted(self.table(table).glob("*.parquet"))
        return _joined([_read_one(path, self._most_rows) for path in paths], self.table(table)) if paths else {}

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
        write_json(self._summary, {**summary, _ROWS: _hash(_read_one(self._rows, self._most_rows))})
        for name in ("tables", "parts"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    @property
    def finished(self) -> bool:
        """Whether the rows and the summary exist."""
        return self._summary.exists() and self._rows.exists()

    def rows(self) -> dict[str, list[Any]]:
        """The final rows as columns with current names, in order of `index`; empty if unfinished."""
        return _with_new_names(_read_one(self._rows, self._most_rows)) if self._rows.exists() else {}

    def read_verified(self) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        """The summary and the rows that it was computed from.

        Raises:
            UsageError: One of them is missing or damaged, or the summary was computed from other rows.
        """
        for path in (self._summary, self._rows):
            if not path.exists():
                raise UsageError(f"{path} does not exist. Run the same command again to have it made.")
        remedy = f"Delete {self._summary} and run the same command again."
        summary, stored = read_json(self._summary, remedy), _read_one(self._rows, self._most_rows)
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
    def _most_rows(self) -> int:
        return MOST_ROWS if self.num_images is None else max(self.num_images, _FEW_ROWS)

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
    safe = "".join(sign if sign.isalnum() or sign in "-_=." else "_" for sign in name)
    return safe if safe == name and len(name) <= LONGEST_NAME else hashed_name(safe, name)


def _with_new_names(columns: StoredColumns) -> StoredColumns:
    """Rows with current column names, in order of `index`."""
    names = {**_OLD_NAMES, "right": "robust" if "fell_to" in columns else "correct"}
    renamed = {names.get(name, name): values for name, values in columns.items()}
    return StoredColumns(sorted_by_index(renamed), columns.source)


def sorted_by_index(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """The columns with their rows in order of `index`."""
    index = columns.get("index", [])
    order = sorted(range(len(index)), key=index.__getitem__)
    return {name: [values[position] for position in order] for name, values in columns.items()}


def _joined(parts: Sequence[StoredColumns], folder: Path) -> StoredColumns:
    """The rows of the files of a table, in order of `index`."""
    columns: dict[str, list[Any]] = {name: [] for name in parts[0]}
    if any(part.keys() != columns.keys() for part in parts):
        raise UsageError(f"the files in {folder} differ in their columns. {_redo(folder)}")
    for part in parts:
        for name, values in part.items():
            columns[name].extend(values)
    if len(set(columns["index"])) < len(columns["index"]):
        raise UsageError(f"the files in {folder} have several rows of one image. {_redo(folder)}")
    return StoredColumns(sorted_by_index(columns), folder)


def _write(table: "pyarrow.Table", path: Path) -> None:
    import pyarrow.parquet as pq

    hashed = table.replace_schema_metadata({_HASH: _hash(table.to_pydict())})
    write_atomically(path, lambda temporary: pq.write_table(hashed, temporary, write_page_checksum=True))


def _read_one(path: Path, most_rows: int) -> StoredColumns:
    """The columns of one file, verified; files of earlier versions have no checksums and are not verified."""
    import pyarrow.parquet as pq

    check_regular_file(path)
    try:
        # one file, not a data set: folder names such as eps=1 would add columns; opened here, as pyarrow would refuse
        # folders whose names are not UTF-8
        with path.open("rb") as handle, pq.ParquetFile(handle, page_checksum_verification=True) as file:
            table = _read_bounded(file, most_rows)
        columns: dict[str, list[Any]] = table.to_pydict()
        if (table.schema.metadata or {}).get(_HASH) not in (None, _hash(columns).encode()):
            raise ValueError("its content does not match the hash in it")
        _check_index(columns)
    except Exception as error:  # a damaged file can raise anything
        raise UsageError(
            f"cannot read rows in {path}: {short_reason(error).rstrip('.')}. Delete that file to redo its rows: the "
            "same command computes them."
        ) from error
    return StoredColumns(columns, path)


def _read_bounded(file: "pyarrow.parquet.ParquetFile", most_rows: int) -> "pyarrow.Table":
    """The rows of a file; refuses one that is small on disk and large in memory."""
    import pyarrow as pa

    about, batches, size = file.metadata, [], 0
    groups = sum(about.row_group(number).num_rows for number in range(about.num_row_groups))
    if (rows := max(about.num_rows, groups)) > most_rows:
        raise ValueError(f"it has {rows} rows, more than {most_rows}")
    for batch in file.iter_batches(_ROWS_AT_ONCE):  # what columns take is known only once they are read
        batches.append(batch)
        size += batch.nbytes
        if size > MOST_BYTES:
            raise ValueError(f"it expands to more than {MOST_BYTES} bytes")
    return pa.Table.from_batches(batches, file.schema_arrow)


def _check_index(columns: Columns) -> None:
    index = columns.get("index", columns.get("row"))  # the name before version 0.1
    if index is None:
        raise ValueError("it has no column index")
    if wrong := [one for one in index if type(one) is not int or one < 0]:
        raise ValueError(f"index should be the number of an image, got {short_repr(wrong[0])}")
    if len(set(index)) < len(index):
        raise ValueError("it has several rows of one image")


def _redo(path: Path) -> str:
    return f"Delete {path} and run the same command again, which computes its rows."


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
