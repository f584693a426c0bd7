"""Rows come back as they went in, in order, whole or not at all."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vitadel.core.errors import UsageError
from vitadel.core.files import read_json, write_json
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


def test_a_flipped_bit_anywhere_in_the_rows_is_noticed_or_harmless(tmp_path: Path) -> None:
    rows, outcomes = Rows(tmp_path), []
    rows.add({**columns(list(range(20))), "id": [f"image {row}" for row in range(20)]})
    (part,) = (tmp_path / "parts").iterdir()
    written, whole = rows.read(), part.read_bytes()
    for place in range(0, len(whole), 7):
        part.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            outcomes.append(str(rows.read() == written))
        except UsageError as error:
            outcomes.append(str(error).split(":")[0])
    assert set(outcomes) == {"True", f"cannot read rows in {part}"}
    assert outcomes.count("True") < len(outcomes) / 2


def test_rows_written_before_there_were_checksums_are_read(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    (tmp_path / "parts").mkdir()
    pq.write_table(pa.table(columns([3, 1])), tmp_path / "parts" / "000000001.parquet")
    assert rows.read() == columns([1, 3])


def judged(folder: Path) -> Rows:
    """Four images: three right as they are, one of them still after the attack."""
    rows = Rows(folder)
    right = {"clean_right": [1.0, 1.0, 1.0, 0.0], "right": [1.0, 0.0, 0.0, 0.0]}
    rows.add({"row": [0, 1, 2, 3], "label": [0] * 4, "clean_prediction": [0, 0, 0, 1], **right})
    # with Wilson's intervals of 3 and of 1 in 4
    clean = {"correct": 3, "n": 4, "accuracy": 0.75, "low": 0.3006418423, "high": 0.9544127392}
    robust = {"correct": 1, "n": 4, "accuracy": 0.25, "low": 0.0455872608, "high": 0.6993581577}
    told: dict[str, object] = {"name": "one", "suite": "one", "threat": None, "n": 4, "attacks": [], "flags": []}
    rows.close({**told, "clean": clean, "robust": robust})
    return rows


def edited(name: str, value: object) -> Callable[[Rows], None]:
    """Change the summary as somebody would who knows about the hash in it."""

    def edit(rows: Rows) -> None:
        told = read_json(rows.folder / "summary.json")
        write_json(rows.folder / "summary.json", {**told, name: value})

    return edit


def in_an_editor(rows: Rows) -> None:
    path = rows.folder / "summary.json"
    path.write_text(path.read_text().replace('"accuracy": 0.25', '"accuracy": 0.99'))


def of_other_rows(rows: Rows) -> None:
    told: dict[str, Sequence[object]] = {**rows.read(), "label": [1] * 4}
    rows.add(told)
    (rows.folder / "parts" / "000000000.parquet").replace(rows.folder / "rows.parquet")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (in_an_editor, r"summary\.json is damaged or was edited"),
        (
            edited("robust", {"correct": 1, "n": 4, "accuracy": 0.99, "low": 0.047, "high": 0.448}),
            r"says robust = 99\.0% \(4\.7%-44\.8%\), its rows say 25\.0% \(4\.6%-69\.9%\)",
        ),
        (edited("clean", {"correct": 3, "n": 4, "accuracy": 0.75, "low": 0.31, "high": 0.95}), "says clean = 75"),
        (edited("clean", {"accuracy": 0.75}), 'says clean = {"accuracy": 0.75}, its rows say 75'),
        (edited("n", 5), r"counted from other rows than .*rows\.parquet"),
        (of_other_rows, r"counted from other rows than .*rows\.parquet"),
        (lambda rows: (rows.folder / "summary.json").write_text("{}"), "says nothing of name, suite, threat, n, "),
        (lambda rows: (rows.folder / "summary.json").write_text("[]"), "should hold a JSON object, got a list"),
        (lambda rows: (rows.folder / "summary.json").write_bytes(b'{"n": \xff}'), "is not readable JSON"),
        (lambda rows: (rows.folder / "summary.json").write_text('{"n": ' + "9" * 5000 + "}"), "is not readable JSON"),
        (lambda rows: (rows.folder / "summary.json").unlink(), r"summary\.json does not exist\. Run the same command"),
        (lambda rows: (rows.folder / "rows.parquet").unlink(), r"rows\.parquet does not exist\. Run the same command"),
    ],
)
def test_a_summary_that_its_rows_do_not_confirm_is_refused(
    tmp_path: Path, spoil: Callable[[Rows], object], told: str
) -> None:
    rows = judged(tmp_path)
    summary, _ = rows.checked()
    assert (summary["n"], "rows_sha256" in summary, "sha256" in summary) == (4, False, False)
    spoil(rows)
    with pytest.raises(UsageError, match=told):
        rows.checked()


def test_deleting_any_file_of_an_evaluation_makes_it_unfinished(tmp_path: Path) -> None:
    for name in ("summary.json", "rows.parquet"):
        rows = judged(tmp_path / name)
        assert rows.done
        (rows.folder / name).unlink()
        assert not rows.done
        judged(tmp_path / name)  # the same evaluation once more
        assert rows.checked()[0]["n"] == 4


def test_a_summary_of_an_earlier_version_without_hashes_is_still_counted_again(tmp_path: Path) -> None:
    rows = judged(tmp_path)
    told = rows.summary
    (tmp_path / "summary.json").write_text(json.dumps(told))
    assert rows.checked()[0] == told
    told["robust"] = {"correct": 4, "n": 4, "accuracy": 1.0, "low": 0.5101, "high": 1.0}
    (tmp_path / "summary.json").write_text(json.dumps(told))
    with pytest.raises(UsageError, match="says robust = 100.0%"):
        rows.checked()


def test_a_page_with_a_long_name_has_a_folder(tmp_path: Path) -> None:
    names = [f"pgd:steps={'0' * 300}{steps}" for steps in (1, 2)]
    for place, name in enumerate(names):
        Rows(tmp_path).page(name).add(columns([place]))
    assert [Rows(tmp_path).page(name).finished() for name in names] == [{0}, {1}]
