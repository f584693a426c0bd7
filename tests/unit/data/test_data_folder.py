"""Folders of images, ImageNet among them."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitadel.core.errors import UsageError
from vitadel.data import CenterCrop, Squash, load
from vitadel.data.readers.folder import wnids

Paint = Callable[..., Path]
SIX = Squash(6)


def test_ids_labels_and_pixels(pets: Path) -> None:
    data = load(f"folder:{pets}", preprocess=SIX)
    assert data.classes == ("cat", "dog")
    assert sorted(data.test.ids) == [f"test/{name}/{number:02d}.png" for name in ("cat", "dog") for number in range(4)]
    assert data.test.labels.tolist() == [int("dog" in name) for name in data.test.ids]
    x = data.test.images(torch.arange(8))
    for row, name in enumerate(data.test.ids):
        with Image.open(pets / name) as picture:
            expected = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
        assert torch.equal((x[row] * 255).round().to(torch.uint8), expected)


def test_the_holdout_is_a_tenth_of_every_class(pets: Path) -> None:
    data = load(f"folder:{pets}", preprocess=SIX)
    assert data.train is not None
    assert data.holdout is not None
    assert torch.bincount(data.train.labels).tolist() == [18, 18]
    assert torch.bincount(data.holdout.labels).tolist() == [2, 2]
    assert not set(data.train.ids) & set(data.holdout.ids)


def test_the_order_does_not_depend_on_the_listing(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load(f"folder:{pets}", preprocess=SIX).describe()
    original = os.walk

    def backwards(top: Path, onerror: object) -> list[tuple[str, list[str], list[str]]]:
        return [(place, folders, names[::-1]) for place, folders, names in original(top)][::-1]

    monkeypatch.setattr(os, "walk", backwards)
    assert load(f"folder:{pets}", preprocess=SIX).describe() == before


def test_hashes_do_not_depend_on_the_location(pets: Path) -> None:
    before = load(f"folder:{pets}", preprocess=SIX).describe()["splits"]
    moved = pets.rename(pets.with_name("moved"))
    assert load(f"folder:{moved}", preprocess=SIX).describe()["splits"] == before


def test_without_training_images_only_the_test_split_exists(tmp_path: Path, paint: Paint) -> None:
    paint(tmp_path / "val" / "cat" / "a.JPEG")
    data = load(f"folder:{tmp_path}", preprocess=SIX)
    assert (data.train, data.holdout) == (None, None)
    assert data.test.ids == ("val/cat/a.JPEG",)
    with pytest.raises(UsageError, match=r"has no train split. Choose from test."):
        data.split("train")
    with pytest.raises(UsageError, match=r"unknown split 'tests'. Did you mean 'test'? Known: ".replace("?", r"\?")):
        data.split("tests")


def test_test_comes_before_val(tmp_path: Path, paint: Paint) -> None:
    paint(tmp_path / "val" / "cat" / "a.png")
    paint(tmp_path / "test" / "cat" / "b.png")
    assert load(f"folder:{tmp_path}", preprocess=SIX).test.ids == ("test/cat/b.png",)


def test_hidden_and_other_files_are_ignored_and_subfolders_read(tmp_path: Path, paint: Paint) -> None:
    paint(tmp_path / "test" / "cat" / "deep" / "a.bmp")
    paint(tmp_path / "test" / "cat" / ".hidden.png")
    paint(tmp_path / "test" / "cat" / ".cache" / "b.png")
    paint(tmp_path / "test" / ".trash" / "c.png")
    (tmp_path / "test" / "cat" / "notes.txt").write_text("no image")
    data = load(f"folder:{tmp_path}", preprocess=SIX)
    assert (data.classes, data.test.ids) == (("cat",), ("test/cat/deep/a.bmp",))


def test_a_class_of_one_image_gives_none_to_the_holdout(tmp_path: Path, paint: Paint) -> None:
    for name in ("train/a/0.png", "train/b/0.png", "train/b/1.png", "test/a/0.png", "test/b/0.png"):
        paint(tmp_path / name)
    data = load(f"folder:{tmp_path}", preprocess=SIX)
    assert data.holdout is not None
    assert data.holdout.labels.tolist() == [1]
    alone = load(f"folder:{tmp_path}", preprocess=SIX, classes=["a"])
    assert alone.holdout is None
    assert alone.split("train").ids == ("train/a/0.png",)


def test_a_layout_without_splits_is_explained(tmp_path: Path, paint: Paint) -> None:
    paint(tmp_path / "cat" / "a.png")
    with pytest.raises(UsageError, match=r"has neither a test nor a val folder. The layout is DIR/test/CLASS/\* \(or"):
        load(f"folder:{tmp_path}", preprocess=SIX)


def test_a_split_without_class_folders_is_named(tmp_path: Path, paint: Paint) -> None:
    paint(tmp_path / "test" / "a.png")
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path / 'test'} has no class folders. The layout is DIR/")):
        load(f"folder:{tmp_path}", preprocess=SIX)


@pytest.mark.parametrize(("here", "there"), [("train", "test"), ("test", "train")])
def test_a_class_in_one_split_only_is_named(pets: Path, paint: Paint, here: str, there: str) -> None:
    paint(pets / here / "owl" / "a.png")
    message = (
        f"class 'owl' has a folder in {pets / here} but none in {pets / there}. Make the same class folders in both."
    )
    with pytest.raises(UsageError, match=re.escape(message)):
        load(f"folder:{pets}", preprocess=SIX)


def test_an_empty_class_folder_is_named(pets: Path) -> None:
    for split in ("train", "test"):
        (pets / split / "owl").mkdir()
    message = f"class folder {pets / 'train' / 'owl'} has no images. Put some in, ending in .bmp, .jpeg, .jpg, .png,"
    with pytest.raises(UsageError, match=re.escape(message)):
        load(f"folder:{pets}", preprocess=SIX)
    assert load(f"folder:{pets}", preprocess=SIX, classes=["dog"]).num_classes == 1


def test_a_truncated_jpeg_is_named(tmp_path: Path, paint: Paint) -> None:
    path = paint(tmp_path / "test" / "cat" / "cut.jpg", width=64, height=64)
    path.write_bytes(path.read_bytes()[:-400])
    split = load(f"folder:{tmp_path}", preprocess=CenterCrop(8)).test
    with pytest.raises(UsageError, match=re.escape(f"cannot read the image {path}: image file is truncated")):
        split.images(torch.tensor([0]))


def test_invalid_and_missing_files_are_named(tmp_path: Path, paint: Paint) -> None:
    path = tmp_path / "test" / "cat" / "text.png"
    path.parent.mkdir(parents=True)
    path.write_text("hello")
    split = load(f"folder:{tmp_path}", preprocess=SIX).test
    with pytest.raises(
        UsageError, match=r"text.png: not an image file. Replace or remove that file; `vitadel data check --json`"
    ):
        split.images(torch.tensor([0]))
    path.unlink()
    with pytest.raises(UsageError, match=r"cannot read the image .*text.png: No such file or directory"):
        split.images(torch.tensor([0]))


@pytest.mark.parametrize(
    "content",
    [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 6\n%%EndComments\nshowpage\n", b"%PDF-1.4\n"],
    ids=["postscript", "pdf"],
)
def test_postscript_named_as_an_image_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """Pillow hands PostScript to Ghostscript, whatever the file is called."""
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *args, **kwargs: pytest.fail("it was run"))
    path = tmp_path / "test" / "cat" / "program.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    split = load(f"folder:{tmp_path}", preprocess=SIX).test
    with pytest.raises(UsageError, match=r"program\.png: not an image file"):
        split.images(torch.tensor([0]))


def test_the_thousand_classes_of_imagenet() -> None:
    names = wnids()
    assert (len(names), len(set(names)), names[0], names[999]) == (1000, 1000, "n01440764", "n15075141")
    assert list(names) == sorted(names)
    assert names.index("n02123045") == 281  # tabby cat


def test_imagenet_labels_follow_the_wnids(tmp_path: Path, paint: Paint) -> None:
    for name in ("n15075141", "n02123045"):
        paint(tmp_path / "val" / name / "a.JPEG")
    data = load(f"imagenet:{tmp_path}", preprocess=SIX)
    assert data.num_classes == 1000
    result = dict(zip(data.test.ids, data.test.labels.tolist(), strict=True))
    assert result == {"val/n15075141/a.JPEG": 999, "val/n02123045/a.JPEG": 281}
    assert (data.mean, data.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_imagenet_subset_is_renumbered_in_the_order_of_the_list(tmp_path: Path, paint: Paint) -> None:
    for name in ("n15075141", "n02123045", "n01440764"):
        paint(tmp_path / "val" / name / "a.JPEG")
    names = tmp_path / "two.txt"
    names.write_text("n15075141\nn02123045\n")
    data = load(f"imagenet:{tmp_path}@{names}", preprocess=SIX)
    result = dict(zip(data.test.ids, data.test.labels.tolist(), strict=True))
    assert result == {"val/n15075141/a.JPEG": 0, "val/n02123045/a.JPEG": 1}


def test_a_subset_keeps_its_labels_for_a_model_of_all_classes(tmp_path: Path, paint: Paint) -> None:
    for wnid in ("n01440764", "n02123045", "n15075141"):
        paint(tmp_path / "val" / wnid / "a.jpeg")
    names = tmp_path / "names.txt"
    names.write_text("n15075141\nn02123045\n")
    whole = load(f"imagenet:{tmp_path}@{names}", preprocess=SIX, model_classes=1000)
    assert whole.classes == wnids()
    assert sorted(whole.test.labels.tolist()) == [281, 999]
    part = load(f"imagenet:{tmp_path}@{names}", preprocess=SIX, model_classes=2)
    assert sorted(part.test.labels.tolist()) == [0, 1]
    digits = load("digits", preprocess=SIX, classes=["7", "3"], model_classes=10)
    assert digits.num_classes == 10
    assert digits.test.labels.unique().tolist() == [3, 7]
    turned = load(
        "digits", preprocess=SIX, classes=list("9876543210"), model_classes=10
    )  # all of them, in another order
    assert turned.classes == tuple("9876543210")


def test_imagenet_reads_val_beside_unlabeled_test_images(tmp_path: Path, paint: Paint) -> None:
    paint(tmp_path / "val" / "n02123045" / "a.JPEG")
    paint(tmp_path / "test" / "b.JPEG")
    assert load(f"imagenet:{tmp_path}", preprocess=SIX).test.ids == ("val/n02123045/a.JPEG",)


def test_imagenet_layout_errors_are_named(tmp_path: Path, paint: Paint) -> None:
    paint(tmp_path / "val" / "n02123045" / "a.JPEG")
    with pytest.raises(UsageError, match=r"unknown class 'n02123046'. Did you mean 'n0212304.'\? There are 1000, from"):
        load(f"imagenet:{tmp_path}", preprocess=SIX, classes=["n02123046"])
    with pytest.raises(UsageError, match=r"the test split has no image of the chosen classes. Choose others."):
        load(f"imagenet:{tmp_path}", preprocess=SIX, classes=["n15075141"])
    paint(tmp_path / "val" / "tabby" / "a.JPEG")
    with pytest.raises(
        UsageError, match=r"val/tabby is not named after one of the 1000 classes of ImageNet. Rename it"
    ):
        load(f"imagenet:{tmp_path}", preprocess=SIX)


def test_a_folder_that_may_not_be_entered_is_named(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", locked)
    for kind in ("folder", "imagenet", "imagenet-r"):
        with pytest.raises(UsageError, match=r"cannot list .*pets/.*: Permission denied\. Make it readable"):
            load(f"{kind}:{pets}", preprocess=SIX)


@pytest.mark.parametrize("locked", ["test", "dog"])
def test_a_folder_that_may_not_be_listed_is_named(pets: Path, monkeypatch: pytest.MonkeyPatch, locked: str) -> None:
    scandir = os.scandir

    def refusing(path: Path) -> object:
        if Path(path).name == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(UsageError, match=rf"cannot list .*{locked}: Permission denied. Make it readable or remove it."):
        load(f"folder:{pets}", preprocess=SIX)
