"""Rows come back as they went in, in order, whole or not at all."""

from pathlib import Path

import pytest

from vitadel.errors import UsageError
from vitadel.runs import Rows


def columns(rows: list[int]) -> dict[str, list[object]]:
    return {"row": list(rows), "label": [row % 10 for row in rows], "costs": [[1.0, 2.0] for _ in rows]}


def test_parts_become_one_table_in_order(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "eval")
    assert rows.read() == {}
    assert not rows.done
    rows.add(columns([4, 5]))
    rows.add(columns([0, 1, 2, 3]))
    assert rows.finished() == {0, 1, 2, 3, 4, 5}
    before = rows.read()
    rows.close({"n": 6})
    assert rows.done
    assert rows.read() == before == columns([0, 1, 2, 3, 4, 5])
    assert rows.summary == {"n": 6}
    assert sorted(path.name for path in rows.folder.iterdir()) == ["rows.parquet", "summary.json"]


def test_a_kill_between_table_and_summary_loses_nothing(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "eval")
    rows.add(columns([0, 1]))
    rows.close({"n": 2})
    (rows.folder / "summary.json").unlink()
    assert rows.finished() == {0, 1}
    rows.close({"n": 2})
    assert rows.read() == columns([0, 1])


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "eval")
    rows.add(columns([0, 1]))
    (part,) = (rows.folder / "parts").iterdir()
    part.write_bytes(part.read_bytes()[:20])
    with pytest.raises(UsageError, match="cannot read rows in .*Delete that file to redo its rows"):
        rows.read()


def test_pages_lead_to_the_rows_and_go_with_them(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "eval")
    rows.page("pgd:steps=3,step_size=1/2").add(columns([2, 3]))
    rows.page("pgd:steps=3,step_size=1/2").add(columns([0, 1]))
    rows.page("clean").add(columns([5]))
    # pages are rows of their own, in a folder that any file system takes, and no rows of the evaluation
    assert sorted(path.name for path in (rows.folder / "pages").iterdir()) == [
        "clean",
        "pgd_steps=3_step_size=1_2-398e23b1",
    ]
    assert rows.page("pgd:steps=3,step_size=1/2").read() == columns([0, 1, 2, 3])
    assert rows.page("clean").finished() == {5}
    assert rows.page("fgsm").read() == rows.read() == {}
    rows.add(columns([0]))
    rows.close({"n": 1})
    assert sorted(path.name for path in rows.folder.iterdir()) == ["rows.parquet", "summary.json"]
    assert rows.page("clean").read() == {}


def test_a_file_half_written_by_a_killed_process_is_no_row(tmp_path: Path) -> None:
    page = Rows(tmp_path / "eval").page("clean")
    page.add(columns([4]))
    (page.folder / "parts" / ".000000000.parquet.77.part").write_bytes(b"0" * 100)
    assert page.finished() == {4}
