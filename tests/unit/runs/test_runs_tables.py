"""Rows are read as written, in order, whole or not at all."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vitadel.core.errors import UsageError
from vitadel.core.files import read_json, write_json, write_npz
from vitadel.core.flags import Flag
from vitadel.runs import ResultFolder, Run
from vitadel.runs.schema import Gallery, SuiteRecord
from vitadel.runs.tables import Columns


def columns(index: list[int]) -> dict[str, list[object]]:
    return {"index": list(index), "label": [one % 10 for one in index], "costs": [[1.0, 2.0] for _ in index]}


def test_parts_of_a_table_are_read_in_order(tmp_path: Path) -> None:
    results = ResultFolder(tmp_path / "eval")
    assert results.read("pgd") == results.rows() == {}
    assert not results.finished
    results.append("pgd", columns([4, 5]))
    results.append("pgd", columns([0, 1, 2, 3]))
    assert results.read("pgd") == columns([0, 1, 2, 3, 4, 5])
    results.finish(columns([1, 0]), {"n": 2})
    assert results.finished
    assert results.rows() == columns([0, 1])
    assert results.read("pgd") == {}
    assert sorted(path.name for path in results.folder.iterdir()) == ["rows.parquet", "summary.json"]


def test_an_interruption_before_the_summary_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = ResultFolder(tmp_path / "eval")
    results.append("pgd", columns([0, 1]))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitadel.runs.tables.write_json", interrupted)
    with pytest.raises(KeyboardInterrupt):
        results.finish(columns([0, 1]), {"n": 2})
    assert not results.finished
    assert results.read("pgd") == columns([0, 1])


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    results = ResultFolder(tmp_path / "eval")
    results.append("pgd", columns([0, 1]))
    (file,) = results.table("pgd").iterdir()
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(UsageError, match="cannot read rows in .*Delete that file to redo its rows"):
        results.read("pgd")


def test_names_of_tables_are_valid_on_any_file_system(tmp_path: Path) -> None:
    results = ResultFolder(tmp_path / "eval")
    results.append("pgd:steps=3,step_size=1/2", columns([2, 3]))
    results.append("clean", columns([5]))
    results.write_part("pgd:1", {"precision": "fp16"})
    assert sorted(path.name for path in (results.folder / "tables").iterdir()) == [
        "clean",
        "pgd_steps=3_step_size=1_2-398e23b1",
    ]
    assert results.read("pgd:steps=3,step_size=1/2") == columns([2, 3])
    assert results.read_part("pgd:1") == {"precision": "fp16"}
    assert results.read_part("pgd_1") is None
    assert results.read("fgsm") == {}


def test_a_partly_written_file_has_no_rows(tmp_path: Path) -> None:
    results = ResultFolder(tmp_path / "eval")
    results.append("clean", columns([4]))
    (results.table("clean") / ".000000000.parquet.77.part").write_bytes(b"0" * 100)
    assert results.read("clean")["index"] == [4]


def test_a_flipped_bit_in_a_table_is_detected_or_harmless(tmp_path: Path) -> None:
    results, outcomes = ResultFolder(tmp_path), []
    results.append("pgd", {**columns(list(range(20))), "id": [f"image {row}" for row in range(20)]})
    (file,) = results.table("pgd").iterdir()
    written, whole = results.read("pgd"), file.read_bytes()
    for place in range(0, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            outcomes.append(str(results.read("pgd") == written))
        except UsageError as error:
            outcomes.append(str(error).split(":")[0])
    assert set(outcomes) == {"True", f"cannot read rows in {file}"}
    assert outcomes.count("True") < len(outcomes) / 2


def test_rows_of_earlier_versions_are_read_under_their_new_names(tmp_path: Path) -> None:
    """Written before there were checksums, in any order, by a suite of attacks and by one that perturbs images."""
    attacked = {
        "row": [1, 0],
        "fell_to": ["", "pgd"],
        "size": [0.0, 0.1],
        "clean_right": [1.0, 1.0],
        "right": [1.0, 0.0],
    }
    perturbed = {"row": [1, 0], "clean_prediction": [3, 4], "right": [1.0, 0.5]}
    for name, rows in (("attacked", attacked), ("perturbed", perturbed)):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table(rows), tmp_path / name / "rows.parquet")
    assert ResultFolder(tmp_path / "attacked").rows() == {
        "index": [0, 1],
        "broken_by": ["pgd", ""],
        "distance": [0.1, 0.0],
        "clean_correct": [1.0, 1.0],
        "robust": [0.0, 1.0],
    }
    assert ResultFolder(tmp_path / "perturbed").rows() == {
        "index": [0, 1],
        "clean_prediction": [4, 3],
        "correct": [0.5, 1.0],
    }


def test_flags_of_earlier_versions_are_read_under_their_new_codes(tmp_path: Path) -> None:
    results = evaluated(tmp_path)
    flag = {"code": "search-fell-back", "sentence": "a slower path was taken", "evidence": {}}
    record = SuiteRecord.from_json({**read_json(results.folder / "summary.json"), "seconds": 1.0, "flags": [flag]})
    assert record.flags == (Flag("search-fallback", "a slower path was taken", {}),)


def evaluated(folder: Path) -> ResultFolder:
    """Four images: three correct as they are, one of them after the attack."""
    results = ResultFolder(folder)
    correct = {"clean_correct": [1.0, 1.0, 1.0, 0.0], "robust": [1.0, 0.0, 0.0, 0.0]}
    rows: Columns = {"index": [0, 1, 2, 3], "label": [0] * 4, "clean_prediction": [0, 0, 0, 1], **correct}
    # with Wilson's intervals of 3 and of 1 in 4
    clean = {"correct": 3, "n": 4, "accuracy": 0.75, "low": 0.3006418423, "high": 0.9544127392}
    robust = {"correct": 1, "n": 4, "accuracy": 0.25, "low": 0.0455872608, "high": 0.6993581577}
    about: dict[str, object] = {"name": "one", "suite": "one", "threat": None, "n": 4, "attacks": [], "flags": []}
    results.finish(rows, {**about, "clean": clean, "robust": robust})
    return results


def edited(name: str, value: object) -> Callable[[ResultFolder], None]:
    """Change the summary together with its hash."""

    def edit(results: ResultFolder) -> None:
        stored = read_json(results.folder / "summary.json")
        write_json(results.folder / "summary.json", {**stored, name: value})

    return edit


def in_an_editor(results: ResultFolder) -> None:
    path = results.folder / "summary.json"
    path.write_text(path.read_text().replace('"accuracy": 0.25', '"accuracy": 0.99'))


def of_other_rows(results: ResultFolder) -> None:
    results.append("other", {**results.rows(), "label": [1] * 4})
    (results.table("other") / "000000000.parquet").replace(results.folder / "rows.parquet")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (in_an_editor, r"summary\.json is damaged or was edited"),
        (
            edited("robust", {"correct": 1, "n": 4, "accuracy": 0.99, "low": 0.047, "high": 0.448}),
            r"has robust = 99\.0% \(4\.7%-44\.8%\), its rows give 25\.0% \(4\.6%-69\.9%\)",
        ),
        (edited("clean", {"correct": 3, "n": 4, "accuracy": 0.75, "low": 0.31, "high": 0.95}), "has clean = 75"),
        (edited("clean", {"accuracy": 0.75}), 'has clean = {"accuracy": 0.75}, its rows give 75'),
        (edited("n", 5), r"counted from other rows than .*rows\.parquet"),
        (of_other_rows, r"counted from other rows than .*rows\.parquet"),
        (
            lambda one: (one.folder / "summary.json").write_text("{}"),
            "lacks name, suite, threat, n, ",
        ),
        (lambda one: (one.folder / "summary.json").write_text("[]"), "should hold a JSON object, got a list"),
        (lambda one: (one.folder / "summary.json").write_bytes(b'{"n": \xff}'), "is not readable JSON"),
        (
            lambda one: (one.folder / "summary.json").write_text('{"n": ' + "9" * 5000 + "}"),
            "is not readable JSON",
        ),
        (
            lambda one: (one.folder / "summary.json").unlink(),
            r"summary\.json does not exist\. Run the same command",
        ),
        (
            lambda one: (one.folder / "rows.parquet").unlink(),
            r"rows\.parquet does not exist\. Run the same command",
        ),
    ],
)
def test_a_summary_that_contradicts_its_rows_is_refused(
    tmp_path: Path, spoil: Callable[[ResultFolder], object], message: str
) -> None:
    results = evaluated(tmp_path)
    summary, _ = results.read_verified()
    assert (summary["n"], "rows_sha256" in summary, "sha256" in summary) == (4, False, False)
    spoil(results)
    with pytest.raises(UsageError, match=message):
        results.read_verified()


def test_deleting_any_file_of_an_evaluation_makes_it_unfinished(tmp_path: Path) -> None:
    for name in ("summary.json", "rows.parquet"):
        results = evaluated(tmp_path / name)
        assert results.finished
        (results.folder / name).unlink()
        assert not results.finished
        evaluated(tmp_path / name)  # the same evaluation once more
        assert results.read_verified()[0]["n"] == 4


def test_a_summary_without_hashes_is_checked_against_its_rows(tmp_path: Path) -> None:
    results = evaluated(tmp_path)
    summary, _ = results.read_verified()
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert results.read_verified()[0] == summary
    summary["robust"] = {"correct": 4, "n": 4, "accuracy": 1.0, "low": 0.5101, "high": 1.0}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UsageError, match="has robust = 100.0%"):
        results.read_verified()


def test_tables_with_long_names_have_separate_folders(tmp_path: Path) -> None:
    names = [f"pgd:steps={'0' * 300}{steps}" for steps in (1, 2)]
    for image, name in enumerate(names):
        ResultFolder(tmp_path).append(name, columns([image]))
    assert [ResultFolder(tmp_path).read(name)["index"] for name in names] == [[0], [1]]


@pytest.mark.timeout(20)
def test_named_pipes_are_refused(tmp_path: Path) -> None:
    results = ResultFolder(tmp_path)
    results.table("a").mkdir(parents=True)
    for path in (tmp_path / "rows.parquet", results.table("a") / "0.parquet", tmp_path / "gallery.npz"):
        os.mkfifo(path)
    for use in (results.rows, lambda: results.read("a"), lambda: Gallery.read(tmp_path / "gallery.npz")):
        with pytest.raises(UsageError, match="it is a named pipe"):
            use()


def test_more_rows_than_any_data_set_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = ResultFolder(tmp_path)
    results.append("a", {"index": [0, 1, 2]})
    monkeypatch.setattr("vitadel.runs.tables.MOST_ROWS", 2)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)
    with pytest.raises(UsageError, match=r"it has 3 rows, more than 2\. Delete that file"):
        results.read("a")


def gallery() -> Gallery:
    """Two images of 4 x 6 pixels."""
    clean = np.full((2, 4, 6, 3), 51, np.uint8)
    attacked = np.ones((2, 4, 6, 3), np.float32)
    return Gallery(clean, attacked, [0, 1], [0, 1], [0, 0], ["", "pgd"], ["cat", "dog"], 0.1, "l2")


def test_a_gallery_survives_its_file(tmp_path: Path) -> None:
    gallery().write(tmp_path / "gallery.npz")
    read = Gallery.read(tmp_path / "gallery.npz")
    assert np.array_equal(read.clean, gallery().clean)
    assert np.array_equal(read.adversarial, gallery().adversarial)
    assert (read.label, read.broken_by, read.classes, read.eps, read.norm) == (
        *([0, 1], ["", "pgd"], ["cat", "dog"]),
        *(0.1, "l2"),
    )


@pytest.mark.parametrize(
    ("name", "forged"),
    [
        ("clean", np.zeros((2, 4, 6), np.uint8)),
        ("clean", np.zeros((2, 4, 6, 3), np.int64)),
        ("clean", np.zeros((2, 4, 6, 3), np.uint16)),
        ("adversarial", np.zeros((2, 6, 4, 3), np.float32)),
        ("adversarial", np.full((2, 4, 6, 3), np.nan, np.float32)),
        ("adversarial", np.full((2, 4, 6, 3), 1e300)),
        ("label", np.array([0])),
        ("label", np.array(["cat", "dog"])),
        ("prediction", np.array(1)),
        ("broken_by", np.array([1, 2])),
        ("classes", np.array([["cat", "dog"]])),
        ("eps", np.array([0.1, 0.2])),
        ("eps", np.array(np.inf)),
        ("norm", np.array(2.0)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.dtype}{value.shape}",
)
def test_a_gallery_of_other_shapes_or_types_is_refused(tmp_path: Path, name: str, forged: np.ndarray) -> None:
    gallery().write(tmp_path / "gallery.npz")
    with np.load(tmp_path / "gallery.npz") as stored:
        arrays = {**stored, name: forged}
    write_npz(tmp_path / "gallery.npz", arrays)
    with pytest.raises(UsageError, match=r"gallery\.npz.* Delete it to report without its pictures\.") as error:
        Gallery.read(tmp_path / "gallery.npz")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("shape", [(2, 0, 6, 3), (2, 4, 6, 4)])
def test_pictures_without_pixels_or_in_other_colors_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    clean = np.zeros(shape, np.uint8)
    replace(gallery(), clean=clean, adversarial=clean.astype(np.float32)).write(tmp_path / "gallery.npz")
    with pytest.raises(UsageError, match="does not hold a clean and an attacked picture per image, got clean"):
        Gallery.read(tmp_path / "gallery.npz")


def test_an_archive_that_expands_to_gigabytes_is_not_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path / "gallery.npz", {"clean": np.zeros(10_000_000, np.uint8)})
    monkeypatch.setattr("vitadel.core.files.MOST_BYTES", 1_000_000)
    monkeypatch.setattr(np, "load", None)
    with pytest.raises(UsageError, match="it expands to 100001.. bytes, more than 1000000. Delete it"):
        Gallery.read(tmp_path / "gallery.npz")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (["0", "1"], "index should be the number of an image, got '0'"),
        ([0.0, 1.0], r"index should be the number of an image, got 0\.0"),
        ([0, None], "index should be the number of an image, got None"),
        ([0, -1], "index should be the number of an image, got -1"),
        ([False, True], "index should be the number of an image, got False"),
        ([3, 3], "it has several rows of one image"),
    ],
    ids=str,
)
def test_rows_whose_index_counts_no_images_are_refused(tmp_path: Path, index: list[object], message: str) -> None:
    results = ResultFolder(tmp_path)
    results.append("a", columns([7]))
    for path in (tmp_path / "rows.parquet", results.table("a") / "000000000.parquet"):
        pq.write_table(pa.table({"index": index, "label": [1, 2]}), path)
    for read, name in ((results.rows, "rows"), (lambda: results.read("a"), "000000000")):
        with pytest.raises(UsageError, match=rf"cannot read rows in .*{name}\.parquet: {message}\. Delete that file"):
            read()


def test_rows_without_an_index_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [1, 2]}), tmp_path / "rows.parquet")
    with pytest.raises(UsageError, match=r"rows\.parquet: it has no column index\. Delete that file"):
        ResultFolder(tmp_path).rows()


def test_files_of_a_table_with_the_same_image_or_other_columns_are_refused(tmp_path: Path) -> None:
    for name, other in (("twice", columns([9, 1])), ("other", {"index": [9]})):
        results = ResultFolder(tmp_path)
        results.append(name, columns([1, 2]))
        pq.write_table(pa.table(other), results.table(name) / "000000009.parquet")
    with pytest.raises(UsageError, match=r"tables/twice have several rows of one image\. Delete .*tables/twice and"):
        results.read("twice")
    with pytest.raises(UsageError, match=r"tables/other differ in their columns\. Delete .*tables/other and run"):
        results.read("other")


def test_a_missing_column_names_its_rows(tmp_path: Path) -> None:
    evaluated(tmp_path).append("pgd", columns([0]))
    results = ResultFolder(tmp_path)
    for rows, source in (
        (results.read("pgd"), tmp_path / "tables" / "pgd"),
        (results.rows(), tmp_path / "rows.parquet"),
        (results.read_verified()[1], tmp_path / "rows.parquet"),
    ):
        with pytest.raises(UsageError) as error:
            rows["success"]
        assert str(error.value) == (
            f"the rows in {source} have no column 'success'. "
            f"Delete {source} and run the same command again, which computes its rows."
        )


def test_more_rows_than_the_data_have_images_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"data": {"splits": {"test": {"count": 3}}}, "split": "test"}
    run = Run.claim(tmp_path / "run", "evaluate", parts, device="cpu")
    (folder := run.results("clean").folder).mkdir(parents=True)
    pq.write_table(pa.table({"index": range(70_000)}), folder / "rows.parquet")
    assert len(ResultFolder(folder).rows()["index"]) == 70_000
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)
    with pytest.raises(UsageError, match=r"rows\.parquet: it has 70000 rows, more than 65536\. Delete that file"):
        Run.open(tmp_path / "run").results("clean").rows()


def test_a_small_file_of_large_rows_is_not_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = ResultFolder(tmp_path)
    results.append("a", {"index": list(range(2000)), "note": ["a" * 10_000] * 2000})
    (file,) = results.table("a").iterdir()
    assert file.stat().st_size < 40_000
    monkeypatch.setattr("vitadel.runs.tables.MOST_BYTES", 5_000_000)
    with pytest.raises(UsageError, match="it expands to more than 5000000 bytes"):
        results.read("a")
