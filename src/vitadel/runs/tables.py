"""One row per image, kept in parquet and never lost.

Finished rows are written in parts, each whole or absent, so a kill costs at most the part in work. When all rows are
there, the parts become `rows.parquet`. Every file holds a hash of its columns, which is checked when it is read.
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
from vitadel.core.files import read_json, write_json, write_whole
from vitadel.core.stats import accuracy, expected_accuracy

if TYPE_CHECKING:
    import pyarrow

Columns = Mapping[str, Sequence[object]]

_HASH = b"vitadel.sha256"
# what every summary says, beside whatever else an evaluation found
_SAID = ("name", "suite", "threat", "n", "clean", "robust", "attacks", "flags")
# the hash of the rows that a summary was counted from
_ROWS = "rows_sha256"
# columns of rows that versions before 0.1 wrote under other names
_OLD_NAMES = {"row": "index", "fell_to": "broken_by", "size": "distance", "clean_right": "clean_correct"}
# names of files have at most 255 bytes
_LONGEST = 120


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one evaluation, in `folder`."""

    folder: Path

    def add(self, columns: Columns) -> None:
        """Keep some finished rows. `row`, the image's number in its split, is the key."""
        import pyarrow as pa

        first = min(int(str(row)) for row in columns["row"])
        _write(pa.table(dict(columns)), self._parts / f"{first:09d}.parquet")

    def page(self, name: str) -> "Rows":
        """Rows that lead to these, such as the findings of one attack; gone when these are closed."""
        safe = "".join(sign if sign.isalnum() or sign in "-_=." else "_" for sign in name)[:_LONGEST]
        # two names must not share a folder because a file system cannot spell them
        unlike = "" if safe == name else f"-{zlib.crc32(name.encode()):08x}"
        return Rows(self.folder / "pages" / f"{safe}{unlike}")

    def finished(self) -> set[int]:
        """The numbers of the images that have their row."""
        return {int(str(row)) for row in self.read().get("row", [])}

    def read(self) -> dict[str, list[object]]:
        """All rows so far as columns, in order of `row`; empty if there are none."""
        return _read([self._whole] if self._whole.exists() else self._part_files())

    def close(self, summary: Mapping[str, object]) -> None:
        """Turn parts into one file, write the numbers derived from it beside it, drop the pages that led here."""
        import pyarrow as pa

        if parts := self._part_files():
            with contextlib.suppress(OSError):  # of an earlier time, whose rows are replaced now
                self._summary.unlink()
            _write(pa.table(_read(parts)), self._whole)
        columns = self.read()
        write_json(self._summary, {**summary, _ROWS: _hash(columns)})
        shutil.rmtree(self._parts, ignore_errors=True)
        shutil.rmtree(self.folder / "pages", ignore_errors=True)

    @property
    def done(self) -> bool:
        """Whether every row and the summary are there."""
        return self._summary.exists() and self._whole.exists()

    @property
    def summary(self) -> dict[str, object]:
        return {key: value for key, value in read_json(self._summary).items() if key != _ROWS}

    def checked(self) -> tuple[dict[str, object], dict[str, list[object]]]:
        """The summary, and the rows that it was counted from; refused if they do not belong together."""
        for path in (self._summary, self._whole):
            if not path.exists():
                raise UsageError(f"{path} does not exist. Run the same command again to have it made.")
        again = f"Delete {self._summary} and run the same command again."
        told, columns = read_json(self._summary, again), self.read()
        if absent := [key for key in _SAID if key not in told]:
            raise UsageError(f"{self._summary} says nothing of {', '.join(absent)}. {again}")
        if told.pop(_ROWS, None) not in (None, _hash(columns)) or told["n"] != len(
            columns.get("row", columns.get("index", []))
        ):
            raise UsageError(f"{self._summary} was counted from other rows than {self._whole} has. {again}")
        for name, counted in _counts(told, columns).items():
            if not _same(told[name], counted):
                raise UsageError(
                    f"{self._summary} says {name} = {_shown(told[name])}, its rows say {_shown(counted)}. {again}"
                )
        return told, columns

    def _part_files(self) -> list[Path]:
        return sorted(self._parts.glob("*.parquet"))

    @property
    def _whole(self) -> Path:
        return self.folder / "rows.parquet"

    @property
    def _summary(self) -> Path:
        return self.folder / "summary.json"

    @property
    def _parts(self) -> Path:
        return self.folder / "parts"


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """The results of one evaluation or study, in `folder`: what was computed so far, and what it came to.

    While work is under way there are tables (`tables/NAME/*.parquet`, keyed by the image index) and parts that are not
    per image (`parts/NAME.json`), each file whole or absent, so an interruption costs what was not written yet.
    """

    folder: Path

    def append(self, table: str, columns: Columns) -> None:
        """Keep some rows of a table; the column `index` says of which images."""
        import pyarrow as pa

        first = min(int(str(index)) for index in columns["index"])
        _write(pa.table(dict(columns)), self.table(table) / f"{first:09d}.parquet")

    def read(self, table: str) -> dict[str, list[Any]]:
        """All rows of a table so far as columns, in order of `index`; empty if there are none."""
        return _read_parts(sorted(self.table(table).glob("*.parquet")))

    def write_part(self, name: str, content: Mapping[str, object]) -> None:
        """Keep a part, which is plain JSON."""
        write_json(self._part(name), content)

    def read_part(self, name: str) -> dict[str, Any] | None:
        """A part as it was kept, None if it was not."""
        path = self._part(name)
        return read_json(path) if path.exists() else None

    def finish(self, rows: Columns, summary: Mapping[str, object]) -> None:
        """Write one row per image and the summary that was counted from them, and drop tables and parts.

        Args:
            rows: The columns of `rows.parquet`; `index` is the key.
            summary: The record as JSON; a hash of the rows is written with it.
        """
        import pyarrow as pa

        with contextlib.suppress(OSError):  # of an earlier time, whose rows are replaced now
            self._summary.unlink()
        _write(pa.table(in_order({name: list(values) for name, values in rows.items()})), self._rows)
        write_json(self._summary, {**summary, _ROWS: _hash(_read_one(self._rows))})
        for name in ("tables", "parts"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    @property
    def finished(self) -> bool:
        """Whether the rows and the summary are there."""
        return self._summary.exists() and self._rows.exists()

    def rows(self) -> dict[str, list[Any]]:
        """The finished rows as columns, in order of `index`, under their names of this version; empty before."""
        return _with_new_names(_read_one(self._rows)) if self._rows.exists() else {}

    def checked(self) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        """The summary and the rows that it was counted from.

        Raises:
            UsageError: One of them is missing or damaged, or they do not belong together.
        """
        for path in (self._summary, self._rows):
            if not path.exists():
                raise UsageError(f"{path} does not exist. Run the same command again to have it made.")
        again = f"Delete {self._summary} and run the same command again."
        summary, stored = read_json(self._summary, again), _read_one(self._rows)
        rows = _with_new_names(stored)
        if absent := [key for key in _SAID if key not in summary]:
            raise UsageError(f"{self._summary} says nothing of {', '.join(absent)}. {again}")
        if summary.pop(_ROWS, None) not in (None, _hash(stored)) or summary["n"] != len(rows.get("index", [])):
            raise UsageError(f"{self._summary} was counted from other rows than {self._rows} has. {again}")
        for name, counted in _counts(summary, rows).items():
            if not _same(summary[name], counted):
                raise UsageError(
                    f"{self._summary} says {name} = {_shown(summary[name])}, its rows say {_shown(counted)}. {again}"
                )
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
    """A name that every file system can spell; two names never share one."""
    safe = "".join(sign if sign.isalnum() or sign in "-_=." else "_" for sign in name)[:_LONGEST]
    return safe if safe == name else f"{safe}-{zlib.crc32(name.encode()):08x}"


def _with_new_names(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Rows under the names of this version, in order."""
    names = {**_OLD_NAMES, "right": "robust" if "fell_to" in columns else "correct"}
    return in_order({names.get(name, name): values for name, values in columns.items()})


def in_order(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """The columns with their rows in order of `index`."""
    index = columns.get("index", [])
    order = sorted(range(len(index)), key=index.__getitem__)
    return {name: [values[place] for place in order] for name, values in columns.items()}


def _read_parts(paths: Sequence[Path]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for path in paths:
        for name, values in _read_one(path).items():
            columns.setdefault(name, []).extend(values)
    if any(len(values) != len(columns.get("index", ())) for values in columns.values()):
        raise UsageError(
            f"the files in {paths[0].parent} differ in their columns. Delete them and run the same command again."
        )
    return in_order(columns)


def _write(table: "pyarrow.Table", path: Path) -> None:
    import pyarrow.parquet as pq

    hashed = table.replace_schema_metadata({_HASH: _hash(table.to_pydict())})
    write_whole(path, lambda beside: pq.write_table(hashed, beside, write_page_checksum=True))


def _read(paths: Sequence[Path]) -> dict[str, list[object]]:
    """The columns of these files together, in order of `row`."""
    columns: dict[str, list[object]] = {}
    for path in paths:
        for name, values in _read_one(path).items():
            columns.setdefault(name, []).extend(values)
    numbers = columns.get("row", columns.get("index", []))
    if any(len(values) != len(numbers) for values in columns.values()):
        raise UsageError(
            f"the files in {paths[0].parent} differ in their columns. Delete them and run the same command again."
        )
    order = sorted(range(len(numbers)), key=lambda at: int(str(numbers[at])))
    return {name: [values[at] for at in order] for name, values in columns.items()}


def _read_one(path: Path) -> dict[str, list[object]]:
    """One file, if it is as it was written; those of earlier versions have no checksums and pass without."""
    import pyarrow.parquet as pq

    try:
        # one file, not a data set: folder names such as eps=1 would add columns
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
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


def _counts(told: Mapping[str, object], columns: Columns) -> dict[str, dict[str, object]]:
    """The accuracies of a summary as its rows give them; without those that the rows do not say."""
    pairs = zip(columns.get("label", ()), columns.get("clean_prediction", ()), strict=False)
    clean = columns.get("clean_correct", columns.get("clean_right", [label == said for label, said in pairs]))
    broken_by = columns.get("broken_by", columns.get("fell_to", ()))
    robust = columns.get("robust", columns.get("right", [attack == "" for attack in broken_by]))
    found = {"clean": _shares(clean), "robust": _shares(robust)}
    return {name: _accuracy(shares) for name, shares in found.items() if shares and isinstance(told[name], dict)}


def _shares(values: Sequence[object]) -> list[float]:
    return [float(value) if isinstance(value, int | float) else math.nan for value in values]


def _accuracy(shares: Sequence[float]) -> dict[str, object]:
    if all(share in (0, 1) for share in shares):
        return asdict(accuracy(int(sum(shares)), len(shares)))
    return asdict(expected_accuracy(shares))


def _same(told: object, counted: Mapping[str, object]) -> bool:
    if not isinstance(told, dict):
        return False
    pairs = [(told.get(name), value) for name, value in counted.items()]
    return all(
        isinstance(one, int | float) and isinstance(other, int | float) and math.isclose(one, other, abs_tol=1e-9)
        for one, other in pairs
    )


def _shown(told: object) -> str:
    """An accuracy as people read it, whatever stands in its place."""
    numbers = [told.get(name) for name in ("accuracy", "low", "high")] if isinstance(told, dict) else []
    if not all(isinstance(number, int | float) for number in numbers) or not numbers:
        return json.dumps(told)[:80]
    share, low, high = numbers
    return f"{share:.1%} ({low:.1%}-{high:.1%})"
