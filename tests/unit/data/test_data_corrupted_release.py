"""Data sets as their authors released them: found by name, and every defect is reported."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitadel.core.errors import UsageError
from vitadel.data import (
    SHAPES,
    DataSet,
    InMemory,
    Split,
    Squash,
    check,
    cues,
    load,
    missing,
    missing_corrupted,
    subset_wnids,
    unreadable,
    without,
    wnids,
)
from vitadel.data.readers.corrupted_release import open_released


def paint(path: Path, level: int = 0, mode: str = "RGB", size: tuple[int, int] = (8, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), level, np.uint8)).convert(mode).save(path, "JPEG" if mode == "CMYK" else None)


@pytest.mark.parametrize(("name", "digest"), [("imagenet-a", "f6aa4b23"), ("imagenet-r", "e19a59d8")])
def test_the_200_classes_are_as_published(name: str, digest: str) -> None:
    members = subset_wnids(name)
    assert hashlib.sha256("\n".join(members).encode()).hexdigest().startswith(digest)
    assert len(set(members)) == 200
    assert [one for one in wnids() if one in members] == list(members)


@pytest.mark.parametrize("name", ["imagenet-a", "imagenet-r"])
@pytest.mark.parametrize("inside", ["", "nested"])
def test_labels_come_from_wnids(tmp_path: Path, name: str, inside: str) -> None:
    root = tmp_path / "data"
    place = root / name if inside else root
    chosen = subset_wnids(name)[7], subset_wnids(name)[150]
    for number, wnid in enumerate(chosen):
        paint(place / wnid / f"{number}.png", number)
    (place / "README.txt").write_text("read me")
    data = load(f"{name}:{root}", preprocess=Squash(8))
    assert data.classes == wnids()
    assert sorted(data.test.labels.tolist()) == [wnids().index(one) for one in chosen]
    levels = dict(
        zip(data.test.labels.tolist(), data.test.images(torch.arange(2))[:, 0, 0, 0].mul(255).tolist(), strict=True)
    )
    assert [levels[wnids().index(one)] for one in chosen] == [0, 1]
    one = load(f"{name}:{root}", preprocess=Squash(8), classes=[chosen[1]])
    assert one.test.labels.tolist() == [wnids().index(chosen[1])]


def test_unknown_folders_are_skipped_only_on_request(tmp_path: Path) -> None:
    paint(tmp_path / subset_wnids("imagenet-a")[0] / "a.png")
    paint(tmp_path / "n00000000" / "b.png")
    with pytest.raises(UsageError, match="n00000000 is not named after one of the 200 classes of imagenet-a"):
        load(f"imagenet-a:{tmp_path}", preprocess=Squash(8))
    data = load(f"imagenet-a:{tmp_path}", preprocess=Squash(8), skip=True)
    assert len(data.test) == 1
    assert data.test.skipped == ("n00000000: not a class of imagenet-a",)


# -------------------------------------------------------------------- stimuli


def test_stimuli_are_labeled_by_shape(tmp_path: Path) -> None:
    for name in ("cat/cat1-dog10.png", "cat/cat2-cat3.png", "truck/truck7-oven1.jpg"):
        paint(tmp_path / name)
    paint(tmp_path / ".cache" / "cat1-dog1.png")
    (tmp_path / "cat" / ".DS_Store").write_text("")
    data = load(f"cue-conflict:{tmp_path}", preprocess=Squash(8))
    assert data.classes == SHAPES
    assert {one: SHAPES[label] for one, label in zip(data.test.ids, data.test.labels.tolist(), strict=True)} == {
        "cat/cat1-dog10.png": "cat",
        "cat/cat2-cat3.png": "cat",
        "truck/truck7-oven1.jpg": "truck",
    }
    assert cues("cat/cat1-dog10.png") == ("cat", "dog")
    assert data.splits.keys() == {"test"}


@pytest.mark.parametrize(
    "unknown", ["notes.txt", "cat/readme.md", "cat/dog1-cat2.png", "cow/cow1-cat2.png", "cat/x.png"]
)
def test_extra_files_among_stimuli_are_skipped_only_on_request(tmp_path: Path, unknown: str) -> None:
    paint(tmp_path / "cat/cat1-dog10.png")
    (tmp_path / unknown).parent.mkdir(exist_ok=True)
    (tmp_path / unknown).write_text("?")
    with pytest.raises(UsageError, match=f"1 entries that are not stimuli, the first is {unknown}"):
        load(f"cue-conflict:{tmp_path}", preprocess=Squash(8))
    data = load(f"cue-conflict:{tmp_path}", preprocess=Squash(8), skip=True)
    assert data.test.ids == ("cat/cat1-dog10.png",)
    assert data.test.skipped == (f"{unknown}: no stimulus",)


def test_a_folder_without_stimuli_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no cue-conflict stimuli. The layout is"):
        load(f"cue-conflict:{tmp_path}", preprocess=Squash(8))


# ---------------------------------------------------------------------- lists


@pytest.fixture
def validation(tmp_path: Path) -> Path:
    for label in range(6):
        paint(tmp_path / "val" / wnids()[label] / f"ILSVRC2012_val_{label:08d}.JPEG.png", label)
    return tmp_path


def lines(*labels: int) -> list[str]:
    return [f"{wnids()[label]}/ILSVRC2012_val_{label:08d}.JPEG.png" for label in labels]


def test_a_list_of_images_is_evaluated_in_its_order(validation: Path) -> None:
    ids = validation / "ids.txt"
    ids.write_text("\n".join(["# as published", *lines(4, 0, 5, 2)]) + "\n")
    data = load(f"imagenet:{validation}@{ids}", preprocess=Squash(8))
    assert data.test.labels.tolist() == [4, 0, 5, 2]
    assert data.classes == wnids()
    assert data.test.images(torch.arange(4))[:, 0, 0, 0].mul(255).tolist() == [4, 0, 5, 2]
    first = load(f"imagenet:{validation}@{ids}[:2]", preprocess=Squash(8))
    assert first.test.labels.tolist() == [4, 0]
    ids.write_text("\n".join(f"val/{line}" for line in lines(3, 1)))
    assert load(f"imagenet:{validation}@{ids}", preprocess=Squash(8)).test.labels.tolist() == [3, 1]


def test_missing_files_of_a_list_are_skipped_only_on_request(validation: Path) -> None:
    ids = validation / "ids.txt"
    ids.write_text("\n".join(lines(4, 9, 0, 8)))
    with pytest.raises(
        UsageError, match=f"2 of the 4 images that .*ids.txt names are missing, the first is {wnids()[9]}"
    ):
        load(f"imagenet:{validation}@{ids}", preprocess=Squash(8))
    data = load(f"imagenet:{validation}@{ids}", preprocess=Squash(8), skip=True)
    assert data.test.labels.tolist() == [4, 0]
    assert data.test.skipped == tuple(f"{line}: missing" for line in lines(9, 8))
    ids.write_text("\n".join(lines(1, 2, 1)))
    with pytest.raises(UsageError, match="2 times. Name each image once"):
        load(f"imagenet:{validation}@{ids}", preprocess=Squash(8))
    with pytest.raises(UsageError, match="lists the images and classes= selects some"):
        load(f"imagenet:{validation}@{ids}", preprocess=Squash(8), classes=[wnids()[0]])


# ------------------------------------------------------------------ bad files


def test_gray_and_cmyk_images_are_read_and_broken_ones_skipped_on_request(tmp_path: Path) -> None:
    for split in ("test",):
        paint(tmp_path / split / "a" / "gray.png", 51, "L", (5, 9))
        paint(tmp_path / split / "a" / "print.jpg", 51, "CMYK", (8, 8))
        paint(tmp_path / split / "b" / "wide.png", 51, "RGB", (3, 40))
        (tmp_path / split / "b" / "broken.png").write_bytes(b"\x89PNG\r\n")
    data = load(f"folder:{tmp_path}", preprocess=Squash(8))
    assert [one.id for one in check(data).unreadable] == ["test/b/broken.png"]
    rest = without(data, "test", [one.id for one in unreadable(data.test)])
    assert sorted(rest.test.ids) == ["test/a/gray.png", "test/a/print.jpg", "test/b/wide.png"]
    assert rest.test.skipped == ("test/b/broken.png: cannot be read",)
    pixels = rest.test.images(torch.arange(3)).mul(255)
    assert bool(((pixels - 51).abs() <= 2).all())
    assert rest.describe()["splits"] != data.describe()["splits"]
    assert without(rest, "test", [one.id for one in unreadable(rest.test)]) is rest
    for name in ("gray.png", "print.jpg", "wide.png"):
        next(tmp_path.glob(f"test/*/{name}")).write_bytes(b"")
    damaged = load(f"folder:{tmp_path}", preprocess=Squash(8))
    with pytest.raises(UsageError, match="not one of the 4 images"):
        without(damaged, "test", [one.id for one in unreadable(damaged.test)])


# ----------------------------------------------------------------- what is missing


def test_missing_imagenet_images_are_reported_per_class(tmp_path: Path) -> None:
    for number in range(50):
        paint(tmp_path / "val" / wnids()[0] / f"{number}.png")
    paint(tmp_path / "val" / wnids()[1] / "0.png")
    data = load(f"imagenet:{tmp_path}", preprocess=Squash(8))
    report = missing(data)
    assert report[:2] == (f"class {wnids()[1]}: 1 of 50 images", f"class {wnids()[2]}: no images")
    assert len(report) == 999
    assert missing(load(f"imagenet:{tmp_path}[:5]", preprocess=Squash(8))) == ()
    assert missing(load("digits", preprocess=Squash(8))) == ()


def test_missing_images_of_imagenet_variants_are_reported(tmp_path: Path) -> None:
    for wnid in subset_wnids("imagenet-a")[1:]:
        paint(tmp_path / "a" / wnid / "0.png")
    assert missing(load(f"imagenet-a:{tmp_path / 'a'}", preprocess=Squash(8))) == (
        f"class {subset_wnids('imagenet-a')[0]}: no images",
        "199 of 7500 images",
    )
    paint(tmp_path / "cues" / "cat" / "cat1-dog1.png")
    report = missing(load(f"cue-conflict:{tmp_path / 'cues'}", preprocess=Squash(8)))
    assert report[0] == "class airplane: no images"
    assert "class cat: 1 of 80 images" in report
    assert len(report) == 16


@pytest.mark.parametrize(("count", "expected"), [(7500, ()), (7499, ("7499 of 7500 images",)), (7501, ())])
def test_complete_data_sets_miss_nothing(tmp_path: Path, count: int, expected: tuple[str, ...]) -> None:
    members = torch.tensor([wnids().index(one) for one in subset_wnids("imagenet-a")])
    labels = members[torch.arange(count) % len(members)]
    pixels = InMemory(torch.zeros(count, 3, 1, 1, dtype=torch.uint8))
    split = Split("test", tuple(map(str, range(count))), labels, pixels)
    assert missing(DataSet(f"imagenet-a:{tmp_path}", wnids(), Squash(1), None, None, split)) == expected


def test_missing_imagenet_c_images_are_reported_per_cell(tmp_path: Path) -> None:
    for severity in range(1, 6):
        for wnid in wnids():
            place = tmp_path / "weather" / "fog" / str(severity) / wnid
            place.mkdir(parents=True)
            for number in range(2):
                (place / f"{number}.JPEG").touch()
    whole = missing_corrupted("imagenet-c", tmp_path, ["fog", "snow"])
    assert whole[0] == f"fog/1: images of 1000 classes, the first is {wnids()[0]} with 2"
    assert whole[5:] == tuple(f"snow/{severity}: no folder" for severity in range(1, 6))
    (tmp_path / "weather" / "fog" / "3" / wnids()[4] / "0.JPEG").unlink()
    (tmp_path / "weather" / "fog" / "3" / wnids()[4] / "1.JPEG").unlink()
    assert f"fog/3: 1 classes, the first is {wnids()[4]}" in missing_corrupted("imagenet-c", tmp_path, ["fog"])
    with pytest.raises(UsageError, match="there is no folder 'nowhere'. Write imagenet-c:DIR"):
        missing_corrupted("imagenet-c", Path("nowhere"), ["fog"])


def test_images_of_imagenet_c_are_found_by_class_and_name(tmp_path: Path) -> None:
    for wnid, level in ((wnids()[0], 10), (wnids()[1], 20)):
        paint(tmp_path / "val" / wnid / "0.png", 0)
        paint(tmp_path / "c" / "weather" / "fog" / "2" / wnid / "0.png", level)
    clean = load(f"imagenet:{tmp_path}", preprocess=Squash(8)).test
    corrupted = open_released(tmp_path / "c", clean, Squash(8))
    cell = corrupted.cell("fog", 2)
    assert cell.ids == tuple(f"{wnids()[label]}/0.png" for label in clean.labels.tolist())
    assert torch.equal(cell.labels, clean.labels)
    levels = (cell.images(torch.arange(2)) * 255).round().amax((1, 2, 3))
    assert torch.equal(levels, 10.0 * (clean.labels + 1))
    with pytest.raises(UsageError, match=r"has no folder fog/3\. The layout is DIR/CORRUPTION/SEVERITY/WNID/FILE"):
        corrupted.cell("fog", 3)
    marks = [corrupted.mark("fog", 2)]
    paint(tmp_path / "c" / "weather" / "fog" / "2" / wnids()[1] / "0.png", 20, size=(64, 64))
    marks.append(corrupted.mark("fog", 2))
    (tmp_path / "c" / "weather" / "fog" / "2" / wnids()[1] / "0.png").unlink()
    marks.append(corrupted.mark("fog", 2))
    assert len(set(marks)) == 3
    (tmp_path / "c" / "weather" / "fog" / "2" / wnids()[1]).rmdir()
    with pytest.raises(UsageError, match=f"has no folder {wnids()[1]}, and the clean images have that class"):
        corrupted.cell("fog", 2)


def test_missing_cifar_c_images_are_reported_per_file(tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.zeros(50000, np.uint8))
    np.save(tmp_path / "fog.npy", np.zeros((5, 32, 32, 3), np.uint8))
    (tmp_path / "frost.npy").write_bytes(b"no array")
    report = missing_corrupted("cifar10-c", tmp_path, ["fog", "frost", "snow"])
    assert report[0] == "fog.npy: uint8 of [5, 32, 32, 3] instead of [50000, 32, 32, 3]"
    assert report[1].startswith("frost.npy: cannot be read")
    assert report[2] == "snow.npy: no file"
