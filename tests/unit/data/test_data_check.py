"""The check of a whole data set."""

from pathlib import Path

from vitadel.data import DataSet, Squash, check, load


def test_all_digits_are_readable(digits: DataSet) -> None:
    report = check(digits)
    assert not report.unreadable
    assert list(report.counts) == ["train", "holdout", "test"]
    assert list(report.counts["test"].values()) == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]


def test_every_unreadable_file_is_listed(pets: Path) -> None:
    (pets / "train" / "cat" / "03.png").write_text("no image")
    cut = pets / "test" / "dog" / "01.png"
    cut.write_bytes(cut.read_bytes()[:60])
    steps: list[int] = []
    report = check(load(f"folder:{pets}", preprocess=Squash(4)), progress=steps.append)
    assert report.unreadable
    assert sorted(fault.id for fault in report.unreadable) == ["test/dog/01.png", "train/cat/03.png"]
    assert all(fault.id in fault.reason for fault in report.unreadable)
    assert report.counts == {
        "train": {"cat": 18, "dog": 18},
        "holdout": {"cat": 2, "dog": 2},
        "test": {"cat": 4, "dog": 4},
    }
    assert sum(steps) == 48


def test_a_class_without_images_is_counted_as_empty(tmp_path: Path, pets: Path) -> None:
    (tmp_path / "val").mkdir()
    (pets / "test" / "cat").rename(tmp_path / "val" / "n02123045")
    counts = check(load(f"imagenet:{tmp_path}", preprocess=Squash(4))).counts["test"]
    assert (counts["n02123045"], counts["n01440764"], len(counts)) == (4, 0, 1000)
