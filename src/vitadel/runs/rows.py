"""One row per image, kept in parquet and never lost.

Finished rows are written in parts, each whole or absent, so a kill costs at most the part in work. When all rows are
there, the parts become `rows.parquet`.
"""

import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitadel.errors import UsageError
from vitadel.runs.files import read_json, write_json, write_whole


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one evaluation, in `folder`."""

    folder: Path

    def add(self, columns: Mapping[str, Sequence[object]]) -> None:
        """Keep some finished rows. `row`, the image's number in its split, is the key."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        first = min(int(str(row)) for row in columns["row"])
        table = pa.table(dict(columns))
        write_whole(self._parts / f"{first:09d}.parquet", lambda beside: pq.write_table(table, beside))

    def page(self, name: str) -> "Rows":
        """Rows that lead to these, such as the findings of one attack; gone when these are closed."""
        safe = "".join(sign if sign.isalnum() or sign in "-_=." else "_" for sign in name)
        # two names must not share a folder because a file system cannot spell them
        unlike = "" if safe == name else f"-{zlib.crc32(name.encode()):08x}"
        return Rows(self.folder / "pages" / f"{safe}{unlike}")

    def finished(self) -> set[int]:
        """The numbers of the images that have their row."""
        return {int(str(row)) for row in self.read().get("row", [])}

    def read(self) -> dict[str, list[object]]:
        """All rows so far as columns, in order of `row`; empty if there are none."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        whole = self.folder / "rows.parquet"
        paths = [whole] if whole.exists() else sorted(self._parts.glob("*.parquet"))
        try:
            tables = [pq.read_table(path) for path in paths]
        except (OSError, pa.ArrowInvalid) as error:
            raise UsageError(
                f"cannot read rows in {self.folder}: {error}. Delete that file to redo its rows."
            ) from error
        if not tables:
            return {}
        columns: dict[str, list[object]] = pa.concat_tables(tables).sort_by("row").to_pydict()
        return columns

    def close(self, summary: Mapping[str, object]) -> None:
        """Turn parts into one file, write the numbers derived from it beside it, drop the pages that led here."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not (self.folder / "rows.parquet").exists():
            table = pa.table(self.read())
            write_whole(self.folder / "rows.parquet", lambda beside: pq.write_table(table, beside))
        write_json(self.folder / "summary.json", summary)
        shutil.rmtree(self._parts, ignore_errors=True)
        shutil.rmtree(self.folder / "pages", ignore_errors=True)

    @property
    def done(self) -> bool:
        """Whether every row and the summary are there."""
        return (self.folder / "summary.json").exists()

    @property
    def summary(self) -> dict[str, object]:
        return read_json(self.folder / "summary.json")

    @property
    def _parts(self) -> Path:
        return self.folder / "parts"
