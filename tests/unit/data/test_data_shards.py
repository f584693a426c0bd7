"""A folder of shards: any rows in any order, constant memory, and invalid folders."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vitadel.core.errors import UsageError
from vitadel.data import Shards
from vitadel.data.shards.writer import Block, write_shards

COUNT = 25
AGAIN = "Convert the archives again, into a new folder."


def pictures(count: int = COUNT, size: int = 4) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def labels(count: int = COUNT, classes: int = 5) -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(0, classes, count)


def blocks(length: int, images: NDArray[np.uint8], y: NDArray[np.int64]) -> Iterator[Block]:
    for first in range(0, len(images), length):
        yield images[first : first + length], y[first : first + length]


def write(folder: Path, *, shard_images: int = 10, length: int = 7, classes: int = 5) -> Shards:
    content = blocks(length, pictures(), labels(classes=classes))
    return write_shards(folder, content, count=COUNT, image_size=4, num_classes=classes, shard_images=shard_images)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "shards").folder


@pytest.mark.parametrize("shard_images", [1, 7, 10, 24, 25, 1000])
@pytest.mark.parametrize("length", [1, 4, 25])
def test_rows_are_read_for_any_shards_and_blocks(tmp_path: Path, shard_images: int, length: int) -> None:
    shards = write(tmp_path / "shards", shard_images=shard_images, length=length)
    assert (len(shards), shards.num_classes, shards.image_size) == (COUNT, 5, 4)
    assert len(shards.index.shards) == -(-COUNT // shard_images)
    expected = torch.from_numpy(pictures()).permute(0, 3, 1, 2)
    for order in ([*range(COUNT)], [24, 0, 10, 9, 0, 11, 24], [3], []):
        rows = torch.tensor(order, dtype=torch.int64)
        pixels, y = shards.pixels(rows), shards.labels(rows)
        assert torch.equal(pixels, expected[rows])
        assert pixels.is_contiguous()
        assert torch.equal(shards.images(rows), expected[rows].float() / 255)
        assert torch.equal(y, torch.from_numpy(labels())[rows])
        assert (pixels.dtype, y.dtype) == (torch.uint8, torch.int64)


def test_reads_larger_than_a_block(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitadel.data.shards.format.READ_AT_ONCE", 3)
    rows = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0)).repeat(2)
    assert torch.equal(Shards.read(folder).pixels(rows), torch.from_numpy(pictures()).permute(0, 3, 1, 2)[rows])


def test_a_batch_can_be_modified(folder: Path) -> None:
    shards, rows = Shards.read(folder), torch.arange(COUNT)
    shards.pixels(rows).zero_()
    assert torch.equal(shards.pixels(rows), torch.from_numpy(pictures()).permute(0, 3, 1, 2))


def test_platforms_without_madvise_read_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for advice in ("MADV_RANDOM", "MADV_DONTNEED", "MADV_WILLNEED"):
        monkeypatch.delattr(f"mmap.{advice}", raising=False)
    rows = torch.arange(COUNT).flip(0)
    assert torch.equal(Shards.read(folder).pixels(rows), torch.from_numpy(pictures()).permute(0, 3, 1, 2)[rows])


def test_files_are_plain_arrays(folder: Path) -> None:
    images = np.load(folder / "images-00001.npy", mmap_mode="r")
    assert images.dtype == np.uint8
    assert np.array_equal(images, pictures()[10:20])
    assert np.array_equal(np.load(folder / "labels-00002.npy"), labels()[20:])
    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"images-0000{number}.npy" for number in range(3)),
        *(f"labels-0000{number}.npy" for number in range(3)),
        "shards.json",
    ]


@pytest.mark.parametrize(("classes", "dtype"), [(256, "uint8"), (257, "uint16"), (65536, "uint16")])
def test_label_types_are_as_wide_as_needed(tmp_path: Path, classes: int, dtype: str) -> None:
    shards = write(tmp_path / "shards", classes=classes)
    assert np.load(shards.folder / "labels-00000.npy").dtype == dtype
    assert torch.equal(shards.labels(torch.arange(COUNT)), torch.from_numpy(labels(classes=classes)))


def test_descriptions_distinguish_folders(tmp_path: Path) -> None:
    first, same = write(tmp_path / "a"), write(tmp_path / "b")
    assert first.describe() == same.describe() == Shards.read(tmp_path / "a").describe()
    described = dict(first.describe())
    sha256 = described.pop("sha256")
    assert described == {"count": COUNT, "image_size": 4, "classes": 5}
    y = labels()
    y[13] = (y[13] + 1) % 5
    pixels = pictures()
    pixels[13, 2, 1, 0] ^= 1
    for name, images, labeled in (("c", pictures(), y), ("d", pixels, labels())):
        content = blocks(7, images, labeled)
        other = write_shards(tmp_path / name, content, count=COUNT, image_size=4, num_classes=5, shard_images=10)
        assert other.describe()["sha256"] != sha256


def test_large_files_are_hashed_by_their_first_and_last_megabyte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitadel.data.shards.format.HASHED_BYTES", 200)
    path = write(tmp_path / "shards", shard_images=COUNT).folder / "images-00000.npy"
    whole = path.read_bytes()
    for place, known in ((199, False), (200, True), (len(whole) - 201, True), (len(whole) - 200, False)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        if known:
            Shards.read(path.parent)
        else:
            with pytest.raises(UsageError, match="damaged|should hold|hash differs"):
                Shards.read(path.parent)


def resident_file_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"RssFile:\s+(\d+)", status)[0]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells what is resident")
def test_reading_every_row_keeps_memory_constant(tmp_path: Path) -> None:
    count = 20_000  # 61 MB
    content = blocks(1000, pictures(count, 32), labels(count))
    shards = write_shards(tmp_path / "shards", content, count=count, image_size=32, num_classes=5, shard_images=8000)
    shards.images(torch.arange(100))
    before, most = resident_file_mib(), 0.0
    for rows in torch.randperm(count, generator=torch.Generator().manual_seed(0)).split(1000):
        shards.images(rows)
        shards.labels(rows)
        most = max(most, resident_file_mib())
    assert most - before < 8


def test_rows_that_do_not_exist_are_named(folder: Path) -> None:
    shards = Shards.read(folder)
    for rows in ([25], [-1], [0, 99]):
        message = f"{folder} has images 0 to 24, got index {min(rows)} to {max(rows)}. Permutation(len(shards), seed)"
        with pytest.raises(UsageError, match=re.escape(message)):
            shards.pixels(torch.tensor(rows))
        with pytest.raises(UsageError, match=re.escape(message)):
            shards.labels(torch.tensor(rows))
    with pytest.raises(UsageError, match=re.escape("index must be a list of int64 numbers, got torch.float32 of sha")):
        shards.images(torch.tensor([1.0]))
    with pytest.raises(UsageError, match=re.escape("got torch.int64 of shape (). Write torch.tensor([3, 5]).")):
        shards.images(torch.tensor(1))


def refused(folder: Path, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Shards.read(folder)


def test_folders_that_hold_no_shards_are_named(tmp_path: Path) -> None:
    refused(tmp_path / "none", f"there is no folder {tmp_path / 'none'}. Write the --out of an earlier `vitadel data")
    refused(tmp_path, f"{tmp_path} has no shards.json. Write the --out of an earlier `vitadel data convert`.")
    (tmp_path / ".unfinished").touch()
    refused(tmp_path, f"{tmp_path} is unfinished. Run the `vitadel data convert` that was to fill it again.")


@pytest.mark.parametrize("name", ["images-00001.npy", "labels-00001.npy"])
def test_files_that_are_missing_or_damaged_are_named(folder: Path, name: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    path.unlink()
    refused(folder, f"cannot read {path}: No such file or directory. {AGAIN}")
    path.write_bytes(whole[:-1])
    refused(folder, f"{path} should be {len(whole)} bytes long, got {len(whole) - 1}. {AGAIN}")
    path.write_bytes(whole + b"0")
    refused(folder, f"{path} should be {len(whole)} bytes long, got {len(whole) + 1}. {AGAIN}")
    for start in (0, 3, 100):
        path.write_bytes(whole[:start])
        refused(folder, f"{path} is damaged: it is not an .npy file (EOF")
    path.write_bytes(b"no array at all")
    refused(folder, f"{path} is damaged: it is not an .npy file (the magic string is not correct")
    np.save(path, np.zeros((10, 7), np.float32))
    refused(folder, f"{path} should hold uint8 [10")
    refused(folder, f"as shards.json says, got float32 [10, 7]. {AGAIN}")
    path.write_bytes(whole)
    np.save(path, np.load(path).astype(np.int8))  # as many bytes, other numbers
    refused(folder, "as shards.json says, got int8 [10")
    if name.startswith("images"):
        path.write_bytes(whole)
        np.save(path, np.asfortranarray(np.load(path)))
        refused(folder, f"as shards.json says, got uint8 [10, 4, 4, 3] in Fortran order. {AGAIN}")
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(folder, f"describes: {'its' if name[0] == 'i' else 'their'} hash differs. {AGAIN}")
    path.write_bytes(whole)
    Shards.read(folder)


def test_an_index_that_is_damaged_is_named(folder: Path) -> None:
    path = folder / "shards.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content)[:-5])
    refused(folder, f"{path} is damaged: ")
    path.write_text("[]")
    refused(folder, f"{path} is damaged: ")
    path.write_text("[" * 100_000)
    refused(folder, f"{path} is damaged: it is nested more than 100 levels deep. {AGAIN}")
    path.write_bytes(b"\xff\xfe")
    refused(folder, f"{path} is damaged: ")
    path.write_text(json.dumps({**content, "format": 2}))
    refused(folder, f"{path} has format 2, but this version of vitadel reads format 1. Use the version that wrote it")
    for key in content:
        path.write_text(json.dumps({name: value for name, value in content.items() if name != key}))
        refused(folder, f"{path} is damaged: no '{key}'" if key != "count" else f"{path} is damaged: its numbers")
    changes: list[dict[str, object]] = [
        {"count": 24},
        {"shards": []},
        {"classes": "5"},
        {"image_shape": [4, 5, 3]},
        {"shards": 3},
        {"classes": float("inf")},
    ]
    for change in changes:
        path.write_text(json.dumps({**content, **change}))
        refused(folder, f"{path} is damaged: ")
    path.write_text(json.dumps(content))
    Shards.read(folder)
