"""Special files and unusual pixel types: refused in one line, never waited for, never read wrongly.

Opening a named pipe without a writer waits forever, so these tests have a time limit of their own.
"""

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitadel.core.errors import UsageError
from vitadel.core.files import check_regular_file
from vitadel.data import CenterCrop, Shards, Squash, check, convert, load
from vitadel.data.integrity import missing_corrupted
from vitadel.data.preprocess import rgb
from vitadel.data.readers.corrupted_release import open_released, read_array
from vitadel.data.shards.writer import write_shards
from vitadel.data.spec import read_list
from vitadel.evaluate.suites.shape_bias import read_mapping
from vitadel.shifts import Corruption

SIX = Squash(6)
pytestmark = pytest.mark.timeout(20)
Paint = Callable[..., Path]


def test_a_named_pipe_among_images_is_refused(pets: Path) -> None:
    pipe = pets / "test" / "cat" / "00.png"
    pipe.unlink()
    os.mkfifo(pipe)
    data = load(f"folder:{pets}", preprocess=SIX)
    with pytest.raises(UsageError, match=re.escape(f"cannot read {pipe}: it is a named pipe. Put a regular file")):
        data.test.images(torch.arange(8))
    assert [fault.id for fault in check(data).unreadable] == ["test/cat/00.png"]


def test_sockets_and_devices_are_refused_and_files_are_not(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(UsageError, match="it is a socket"):
            check_regular_file(tmp_path / "s")
    with pytest.raises(UsageError, match="/dev/zero: it is a device"):
        check_regular_file(Path("/dev/zero"))
    (tmp_path / "link").symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="it is a device"):
        check_regular_file(tmp_path / "link")
    (tmp_path / "file").touch()
    for harmless in ("file", "", "missing"):
        check_regular_file(tmp_path / harmless)


def test_no_reader_waits_for_a_named_pipe(tmp_path: Path, pets: Path) -> None:
    pipe = tmp_path / "pipe.npy"
    os.mkfifo(pipe)
    blocks = iter([(np.zeros((3, 4, 4, 3), np.uint8), np.arange(3))])
    write_shards(tmp_path / "shards", blocks, count=3, image_size=4, num_classes=3, shard_images=3)
    clean = load(f"folder:{pets}", preprocess=SIX).test
    folder = tmp_path / "frost"
    folder.mkdir()
    os.mkfifo(folder / "a.png")

    def of_shards(name: str) -> Callable[[], object]:
        def read() -> object:
            (tmp_path / "shards" / name).unlink()
            os.mkfifo(tmp_path / "shards" / name)
            return Shards.read(tmp_path / "shards")

        return read

    readers: list[Callable[[], object]] = [
        lambda: read_list(pipe),
        lambda: read_mapping(pipe),
        lambda: convert([pipe], tmp_path / "out"),
        lambda: Corruption("frost", 1, frost=folder),
        lambda: read_array(pipe, (None,)),
        of_shards("labels-00000.npy"),
        of_shards("images-00000.npy"),
        of_shards("shards.json"),
    ]
    for reader in readers:
        with pytest.raises(UsageError, match="it is a named pipe"):
            reader()
    np.save(tmp_path / "labels.npy", clean.labels.numpy())
    (tmp_path / "fog.npy").symlink_to(pipe)
    assert missing_corrupted("cifar10-c", tmp_path, ["fog"])[1] == "fog.npy: no file"


def test_an_archive_by_the_name_of_an_array_is_refused(tmp_path: Path) -> None:
    for name in ("labels", "fog"):
        np.savez(tmp_path / f"{name}.npz", a=np.zeros(3))
        (tmp_path / f"{name}.npz").rename(tmp_path / f"{name}.npy")
    report = missing_corrupted("cifar10-c", tmp_path, ["fog"])
    assert report == ("labels.npy: an archive of several arrays", "fog.npy: an archive of several arrays")
    digits = load("digits[:4]", preprocess=SIX).test
    cifar = type(digits)("test", tuple(f"test/{n:05d}" for n in range(4)), digits.labels, digits.pixels)
    with pytest.raises(UsageError, match=r"labels\.npy should hold one array, got an archive of several"):
        open_released(tmp_path, cifar, SIX)


@pytest.mark.parametrize(
    ("pixels", "reason"),
    [
        (np.full((6, 6), 0.5, np.float32), "its pixels are floats, and it does not say which value is white"),
        (np.full((6, 6), 200, np.int32), "its pixels are 32-bit integers, and it does not say which value is white"),
    ],
)
def test_pixel_types_without_a_known_maximum_are_refused(pets: Path, pixels: np.ndarray, reason: str) -> None:
    path = pets / "test" / "dog" / "00.png"
    Image.fromarray(pixels).save(path, "TIFF")
    data = load(f"folder:{pets}", preprocess=SIX)
    with pytest.raises(UsageError, match=re.escape(f"cannot read the image {path}: {reason}")):
        data.test.images(torch.arange(8))
    (fault,) = check(data).unreadable
    assert fault.id == "test/dog/00.png"


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_in_a_file_are_scaled(tmp_path: Path, form: str) -> None:
    Image.fromarray(np.array([[0, 257 * 100], [65535, 128]], np.uint16)).save(tmp_path / "a", form)
    with Image.open(tmp_path / "a") as picture:
        assert np.array(rgb(picture))[:, :, 0].tolist() == [[0, 100], [255, 0]]


def test_integers_beyond_sixteen_bits_are_refused() -> None:
    for value in (-1, 65536):
        with pytest.raises(ValueError, match="beyond 16 bits"):
            rgb(Image.fromarray(np.full((2, 2), value, np.int32)))


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: path.write_bytes(b""), "not an image file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-30]), "image file is truncated"),
        (lambda path: Image.new("1", (14000, 14000)).save(path), "exceeds limit of"),  # a bomb: 3 kB, 196 megapixels
        (lambda path: Image.new("1", (10000, 10000)).save(path), "it has 10000 x 10000 pixels, more than 89478485"),
        (lambda path: Image.new("RGB", (1, 60000)).save(path), "1 x 60000 pixels, which a short side of 48 makes"),
    ],
    ids=["empty", "truncated", "bomb", "half a bomb", "thin"],
)
@pytest.mark.filterwarnings("ignore:Image size")
def test_files_that_cannot_be_decoded_are_named(pets: Path, write: Callable[[Path], object], reason: str) -> None:
    path = pets / "test" / "cat" / "01.png"
    write(path)
    data = load(f"folder:{pets}", preprocess=CenterCrop(42, 48))
    with pytest.raises(UsageError, match=rf"cannot read the image {re.escape(str(path))}: .*{reason}"):
        data.test.images(torch.arange(8))


def test_rotation_is_not_applied_and_the_first_frame_is_read(tmp_path: Path) -> None:
    first = Image.fromarray(np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3))
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn
    first.save(tmp_path / "a.png", exif=turned, save_all=True, append_images=[Image.new("RGB", (6, 4), "white")])
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.n_frames == 2  # type: ignore[attr-defined]
        assert np.array_equal(np.array(rgb(picture)), np.array(first))


def test_a_folder_that_links_to_itself_terminates(pets: Path) -> None:
    (pets / "test" / "cat" / "again").symlink_to(pets / "test" / "cat")
    assert len(load(f"folder:{pets}", preprocess=SIX).test) == 8
