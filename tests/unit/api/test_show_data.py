"""Sheets of augmented images: what is in which row, and what cannot be shown."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitadel as vd
from vitadel.api import augmentation as sheets
from vitadel.core.errors import UsageError
from vitadel.data import Split


@pytest.fixture(scope="module")
def split() -> Split:
    return vd.load_data("digits[:8]").split("train")


def pixels(path: Path) -> Any:
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def test_the_sheet_has_a_row_per_image_and_a_column_per_copy(tmp_path: Path) -> None:
    sizes = {}
    for images, copies in ((2, 2), (4, 2), (2, 4)):
        out = tmp_path / f"{images}-{copies}.png"
        assert vd.show_data("digits[:8]", out, augmentation="erase", images=images, copies=copies) == out
        sizes[images, copies] = pixels(out).shape[:2]
    assert sizes[4, 2][0] > 1.8 * sizes[2, 2][0]
    assert sizes[4, 2][1] == sizes[2, 2][1]
    assert sizes[2, 4][1] > 1.5 * sizes[2, 2][1]


def test_erased_pixels_have_colors_where_digits_are_gray(tmp_path: Path) -> None:
    """Digits are gray, and so is all that crops and flips make of them; the noise of erasing is colored."""

    def colored(name: str, **more: Any) -> int:
        out = vd.show_data("digits[:8]", tmp_path / "a.png", augmentation=name, **more)
        return int(np.ptp(pixels(out), axis=2).max())

    assert colored("base") < 5  # the ink of the names is nearly gray
    assert colored("erase", overrides={"plan.pil_augment.erase": 1.0}) > 50


def test_by_default_every_transform_is_shown_alone(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(sheets, "write_exhibit", lambda exhibit, path: drawn.append(exhibit))
    vd.show_data("digits[:8]", copies=2)
    (sheet,) = drawn
    names = ["resized crop", "flip", "RandAugment", "random erasing", "MixUp", "CutMix"]
    assert sheet.rows == [f"{name}: {split.labels[0]}" for name in names]
    assert sheet.columns == ["original", "update 1", "update 2"]
    assert all(cell.note.endswith(f"% {split.labels[1]}") for cell in sheet.cells[4][1:]), "mixed with the next image"
    assert not any(cell.note for row in sheet.cells[:4] for cell in row)
    vd.show_data("digits[:8]", recipe="cifar10-vit-tiny-short", preprocess="squash:32", images=3)
    vd.show_data("digits[:8]", augmentation="erase", copies=1)
    assert sheet.cells[0][0].pixels.shape == (8, 8, 3)
    assert (len(drawn[1].rows), drawn[1].cells[0][0].pixels.shape) == (3, (32, 32, 3))
    assert len(drawn[2].rows) == 4


@pytest.mark.parametrize("name", [b"\xff", "\u732b".encode(), b"$x\x1b"])
def test_classes_of_any_name_are_drawn_without_warnings(tmp_path: Path, name: bytes) -> None:
    for split in ("train", "test"):
        for folder in (tmp_path / split / os.fsdecode(name), tmp_path / split / "z"):
            folder.mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (9, 9), (number, 90, 30)).save(folder / f"{number}.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = vd.show_data(
            f"folder:{tmp_path}", tmp_path / "a.png", augmentation="mixup", copies=1, preprocess="squash:8"
        )
    assert pixels(out).std() > 10


Call = Callable[[Path], object]
MISTAKES: list[tuple[Call, str]] = [
    (lambda out: vd.show_data(out=out), "neither a data set nor a recipe, .* Give one, such as digits"),
    (lambda out: vd.show_data("digits", out, recipe="digits-standard"), "augments nothing, .* Give a set, such as"),
    (lambda out: vd.show_data("digits", out, augmentation="blur"), "unknown set of augmentations 'blur'. Known: base"),
    (lambda out: vd.show_data("digits", out.with_suffix(".jpg")), r"into a .png file, got .*\.jpg'. Write .*\.png'"),
    (lambda out: vd.show_data("digits", out, copies=0), r"copies.* must be at least 1, got 0"),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_what_cannot_be_shown_is_refused(call: Call, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        call(tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
