"""Stores of results: tables with one row per image, and named values ("parts") that are not per image.

A `ResultStore` is a `vitadel.runs.ResultFolder` in a run folder, which survives interruptions, or a `MemoryStore`.
Stored results are not computed again.
"""

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from vitadel.core.errors import UsageError, short_reason
from vitadel.runs.tables import Columns, StoredColumns, sorted_by_index

Row = dict[str, Any]

# the largest number of rows, and of seconds, between two writes
ROWS_AT_ONCE, SECONDS_BETWEEN_WRITES = 4096, 20.0
# the same for rows that may contain images
LARGE_ROWS = 256


class ResultStore(Protocol):
    """Tables of per-image rows, and named parts."""

    @property
    def folder(self) -> Path | None:
        """The folder of a store on disk, where further files of the results belong; None in memory."""

    def append(self, table: str, columns: Columns) -> None:
        """Store some rows; the column `index` contains their images."""

    def read(self, table: str) -> dict[str, list[Any]]:
        """All rows of a table so far as columns, in order of `index`; empty if there are none."""

    def write_part(self, name: str, content: Mapping[str, object]) -> None:
        """Store a named value of plain JSON."""

    def read_part(self, name: str) -> dict[str, Any] | None:
        """A stored value; None if there is none of that name."""

    def finish(self, rows: Columns, summary: Mapping[str, object]) -> None:
        """Store the final results: one row per image, and the summary."""

    @property
    def finished(self) -> bool:
        """Whether `finish` was called."""

    def read_verified(self) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        """The summary and the rows; raises a UsageError if the summary was not computed from these rows."""


@dataclass(slots=True)
class MemoryStore:
    """A store in memory, which is lost when the process ends."""

    _tables: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    _parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    _finished: list[tuple[dict[str, Any], dict[str, list[Any]]]] = field(default_factory=list)

    @property
    def folder(self) -> None:
        return None

    def append(self, table: str, columns: Columns) -> None:
        stored = self._tables.setdefault(table, {name: [] for name in columns})
        for name, values in columns.items():
            stored[name].extend(values)

    def read(self, table: str) -> dict[str, list[Any]]:
        return sorted_by_index(self._tables.get(table, {}))

    def write_part(self, name: str, content: Mapping[str, object]) -> None:
        # what reading it from a file would return
        self._parts[name] = json.loads(json.dumps(content, allow_nan=False))

    def read_part(self, name: str) -> dict[str, Any] | None:
        return self._parts.get(name)

    def finish(self, rows: Columns, summary: Mapping[str, object]) -> None:
        self._finished = [(dict(summary), sorted_by_index({name: list(values) for name, values in rows.items()}))]

    @property
    def finished(self) -> bool:
        return bool(self._finished)

    def read_verified(self) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        return self._finished[0]


@dataclass(slots=True)
class CachedStore(MemoryStore):
    """A read-only view of another store whose tables are complete; each table is read once."""

    source: ResultStore = field(default_factory=MemoryStore)

    @property
    def folder(self) -> Path | None:  # type: ignore[override]
        return self.source.folder

    def read(self, table: str) -> dict[str, list[Any]]:
        if table not in self._tables:
            self._tables[table] = self.source.read(table)
        return self._tables[table]

    def read_part(self, name: str) -> dict[str, Any] | None:
        return self.source.read_part(name)


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of one table as columns, in order of `index`."""

    columns: Mapping[str, list[Any]]

    def __len__(self) -> int:
        return len(self.columns.get("index", ()))

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> list[Any]:
        """One column; empty if the table has no rows."""
        return self.columns[name] if len(self) else []

    @property
    def index(self) -> list[int]:
        """The images that have a row."""
        return self["index"]

    def of_type(self, name: str, *kinds: type) -> list[Any]:
        """One column, whose values must be of one of the types `kinds` if they come from files."""
        return (
            self.columns.of_type(name, *kinds) if isinstance(self.columns, StoredColumns) and len(self) else self[name]
        )

    def understood(self) -> AbstractContextManager[None]:
        """Context manager: an error of code that only computes with these rows is blamed on them if they are stored."""
        return self.columns.understood() if isinstance(self.columns, StoredColumns) else nullcontext()

    def by_index(self) -> dict[int, Row]:
        """Image index to row."""
        names = list(self.columns)
        rows = zip(*self.columns.values(), strict=True)
        return {int(row["index"]): row for row in (dict(zip(names, values, strict=True)) for values in rows)}


@dataclass(slots=True)
class TableWriter:
    """Buffers rows and appends them to a table in batches, since every batch is a file.

    Args:
        store: The store.
        table: The name of the table.
        before_write: Called with the rows before they are written, and may change them. If it writes further files,
            they must be complete when it returns, since an image with a row is not computed again.
    """

    store: ResultStore
    table: str
    before_write: Callable[[list[Row]], None] | None = None
    _buffer: list[Row] = field(default_factory=list)
    _last_write: float = field(default_factory=time.monotonic)

    def add(self, columns: Columns) -> None:
        """Add finished rows, as columns with `index` among them."""
        names = list(columns)
        self._buffer += [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        limit = ROWS_AT_ONCE if self.before_write is None else min(ROWS_AT_ONCE, LARGE_ROWS)
        if len(self._buffer) >= limit or time.monotonic() - self._last_write > SECONDS_BETWEEN_WRITES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows."""
        # emptied first: `before_write` has changed rows that could not be written, so they must not be tried again
        rows, self._buffer, self._last_write = self._buffer, [], time.monotonic()
        if rows:
            if self.before_write is not None:
                self.before_write(rows)
            self.store.append(self.table, {name: [row[name] for row in rows] for name in rows[0]})


@contextmanager
def summarizing(store: ResultStore, *, resumed: bool) -> Iterator[None]:
    """Context manager: an error inside is blamed on the stored rows if an earlier process wrote some of them.

    They may have been edited, and no summary checks every value. Errors in rows of this process are not the files'.

    Args:
        store: The store that a summary is made from.
        resumed: Whether it had rows when this process began.
    """
    with warnings.catch_warnings():
        if resumed:
            warnings.simplefilter("ignore")  # of numbers that no study computes
        try:
            yield
        except (UsageError, OSError):
            raise
        except Exception as error:
            if not resumed:
                raise
            raise UsageError(
                f"the rows in {store.folder} cannot be summarized: {type(error).__name__}: {short_reason(error)}. "
                "Restore its tables and parts, or delete them and run the same command again."
            ) from error


def has_rows(store: ResultStore) -> bool:
    """Whether the folder of a store has rows of an unfinished evaluation, or of a study."""
    return store.folder is not None and any((store.folder / name).exists() for name in ("tables", "parts"))


def indices(store: ResultStore, table: str) -> set[int]:
    """The images that have a row in a table."""
    return set(store.read(table).get("index", ()))


def as_column(values: Any) -> Sequence[object]:
    """The values of a column as a list of plain Python values."""
    return list(values.tolist() if hasattr(values, "tolist") else values)
