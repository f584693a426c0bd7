"""Where results are kept while they are computed: tables keyed by image index, and parts that are not per image.

A `ResultStore` has two forms: `vitadel.runs.ResultFolder` in a run folder, which survives interruption, and
`MemoryStore`. What a store has is not computed again.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from vitadel.runs.tables import Columns, sorted_by_index

Row = dict[str, Any]

# rows, or seconds of work, that an interruption may cost
_ROWS, _SECONDS = 4096, 20.0
# rows that `before_write` may see at once, since they may hold images
_LARGE_ROWS = 256


class ResultStore(Protocol):
    """Tables of per-image rows, and named parts."""

    @property
    def folder(self) -> Path | None:
        """The folder of a store on disk, for files that belong to the results; None in memory."""

    def append(self, table: str, columns: Columns) -> None:
        """Keep some rows; the column `index` gives their images."""

    def read(self, table: str) -> dict[str, list[Any]]:
        """All rows of a table so far as columns, in order of `index`; empty if there are none."""

    def write_part(self, name: str, content: Mapping[str, object]) -> None:
        """Keep a part, which is plain JSON."""

    def read_part(self, name: str) -> dict[str, Any] | None:
        """A part as it was kept, None if it was not."""

    def finish(self, rows: Columns, summary: Mapping[str, object]) -> None:
        """Keep the final results: one row per image, and the summary."""

    @property
    def finished(self) -> bool:
        """Whether `finish` was called."""

    def read_verified(self) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        """The summary and the rows that it was counted from; a UsageError if they do not belong together."""


@dataclass(slots=True)
class MemoryStore:
    """A store that ends with the process."""

    _tables: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    _parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    _finished: list[tuple[dict[str, Any], dict[str, list[Any]]]] = field(default_factory=list)

    @property
    def folder(self) -> None:
        return None

    def append(self, table: str, columns: Columns) -> None:
        kept = self._tables.setdefault(table, {name: [] for name in columns})
        for name, values in columns.items():
            kept[name].extend(values)

    def read(self, table: str) -> dict[str, list[Any]]:
        return sorted_by_index(self._tables.get(table, {}))

    def write_part(self, name: str, content: Mapping[str, object]) -> None:
        # as a file would give it back
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
    """A view of another store whose tables are complete: each is read once, and nothing is written."""

    source: ResultStore = field(default_factory=MemoryStore)

    @property
    def folder(self) -> Path | None:  # type: ignore[override]
        return self.source.folder

    def read(self, table: str) -> dict[str, list[Any]]:
        if table not in self._tables:
            self._tables[table] = self.source.read(table)
        return MemoryStore.read(self, table)

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

    def by_index(self) -> dict[int, Row]:
        """Image index to row."""
        names = list(self.columns)
        rows = zip(*self.columns.values(), strict=True)
        return {int(row["index"]): row for row in (dict(zip(names, values, strict=True)) for values in rows)}


@dataclass(slots=True)
class TableWriter:
    """Rows on their way to a table, written in portions, since every portion is a file.

    Args:
        store: Where they go.
        table: The name of the table.
        before_write: Called with the rows before they are written, and may change them. What else a caller keeps of
            them must be safe when it returns, since no image with a row is computed again.
    """

    store: ResultStore
    table: str
    before_write: Callable[[list[Row]], None] | None = None
    _waiting: list[Row] = field(default_factory=list)
    _since: float = field(default_factory=time.monotonic)

    def add(self, columns: Columns) -> None:
        """Some finished rows, as columns with `index` among them."""
        names = list(columns)
        self._waiting += [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        most = _ROWS if self.before_write is None else min(_ROWS, _LARGE_ROWS)
        if len(self._waiting) >= most or time.monotonic() - self._since > _SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting."""
        # taken out first: rows that could not be written are changed already, and a second try is no remedy
        rows, self._waiting, self._since = self._waiting, [], time.monotonic()
        if rows:
            if self.before_write is not None:
                self.before_write(rows)
            self.store.append(self.table, {name: [row[name] for row in rows] for name in rows[0]})


def indices(store: ResultStore, table: str) -> set[int]:
    """The images that have a row in a table."""
    return set(store.read(table).get("index", ()))


def as_column(values: Any) -> Sequence[object]:
    """The values of a column as a list of plain Python values."""
    return list(values.tolist() if hasattr(values, "tolist") else values)
