"""CIFAR archives: a small imitation of the real layout, and invalid files."""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from vitadel.core.errors import UsageError
from vitadel.data import DataSet, Squash, load

NAMES = ("airplane", "automobile", "bird")


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def batch(seed: int, count: int, labels_key: bytes = b"labels") -> dict[bytes, object]:
    rng = np.random.default_rng(seed)
    labels = [number % len(NAMES) for number in range(count)]
    return {b"data": rng.integers(0, 256, (count, 3072), dtype=np.uint8), labels_key: labels}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "cifar-10-batches-py"
    for number in range(1, 6):
        write(folder / f"data_batch_{number}", batch(number, 12))
    write(folder / "test_batch", batch(6, 9))
    write(folder / "batches.meta", {b"label_names": [name.encode() for name in NAMES]})
    return tmp_path


def cifar10(archive: Path) -> DataSet:
    return load(f"cifar10:{archive}", preprocess=Squash(32))


def test_cifar10_is_read_channel_by_channel(archive: Path) -> None:
    data = cifar10(archive)
    assert data.classes == NAMES
    assert (data.mean, data.std) == ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 54, "holdout": 6, "test": 9}
    assert data.test.is_in_memory
    raw = batch(6, 9)[b"data"]
    assert isinstance(raw, np.ndarray)
    for row, name in enumerate(data.test.ids):
        number = int(name.removeprefix("test/"))
        expected = torch.from_numpy(raw[number]).view(3, 32, 32) / 255
        assert torch.equal(data.test.images(torch.tensor([row]))[0], expected)
        assert data.test.labels[row] == number % 3


def test_training_images_are_numbered_through_the_batches(archive: Path) -> None:
    data = cifar10(archive)
    assert data.train is not None
    row = next(row for row, name in enumerate(data.train.ids) if name >= "train/00048")
    raw = batch(5, 12)[b"data"]
    assert isinstance(raw, np.ndarray)
    expected = torch.from_numpy(raw[int(data.train.ids[row][-5:]) - 48]).view(3, 32, 32) / 255
    assert torch.equal(data.train.images(torch.tensor([row]))[0], expected)


def test_cifar100_uses_the_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    write(folder / "train", {**batch(0, 20, b"fine_labels"), b"coarse_labels": [0] * 20})
    write(folder / "test", {**batch(1, 6, b"fine_labels"), b"coarse_labels": [0] * 6})
    write(folder / "meta", {b"fine_label_names": [name.encode() for name in NAMES], b"coarse_label_names": [b"x"]})
    data = load(f"cifar100:{tmp_path}", preprocess=Squash(32), classes=["bird", "airplane"])
    assert data.classes == ("bird", "airplane")
    assert sorted(data.test.labels.tolist()) == [0, 0, 1, 1]
    assert (data.mean, data.std) == ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


def test_arrays_written_by_python_2_are_read(archive: Path) -> None:
    # the opcodes of the real archives: byte strings, and an array rebuilt by numpy.core.multiarray
    state = (
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nq\x00(U\x02u1K\x00K\x01tRq\x01(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff"
    )
    state += b"\xff\xff\xffK\x00tb\x89T" + (3072).to_bytes(4, "little") + bytes(range(256)) * 12 + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR" + state
    content = b"\x80\x02}(U\x04data" + array + b"U\x06labels](K\x02eu."
    (archive / "cifar-10-batches-py" / "test_batch").write_bytes(content)
    test = cifar10(archive).test
    assert test.labels.tolist() == [2]
    assert torch.equal(test.images(torch.tensor([0])).flatten(), torch.arange(256).repeat(12) / 255)


def test_larger_images_are_resized_when_read(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = load(f"cifar10:{archive}", preprocess=Squash(40)).test
    monkeypatch.setattr("vitadel.data.loading.KEPT_IN_MEMORY", 1)
    lazy = load(f"cifar10:{archive}", preprocess=Squash(40)).test
    assert (kept.is_in_memory, lazy.is_in_memory) == (True, False)
    assert torch.equal(lazy.images(torch.arange(9)), kept.images(torch.arange(9)))


def test_a_missing_file_is_named(archive: Path) -> None:
    folder = archive / "cifar-10-batches-py"
    (folder / "data_batch_3").unlink()
    message = f"CIFAR-10 should lie in {folder}, but {folder / 'data_batch_3'} is missing. Unpack the Python version"
    with pytest.raises(UsageError, match=re.escape(message)):
        cifar10(archive)
    with pytest.raises(
        UsageError, match=r"CIFAR-100 should lie in .*cifar-100-python.* CIFAR page at toronto.edu into"
    ):
        load(f"cifar100:{archive}", preprocess=Squash(32))


class Malicious:
    """Runs a command when an ordinary unpickler reads it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.trace),)


def test_a_pickle_that_would_run_code_is_refused(archive: Path) -> None:
    trace = archive / "trace"
    write(archive / "cifar-10-batches-py" / "test_batch", {b"data": Malicious(trace), b"labels": []})
    with pytest.raises(
        UsageError, match=r"test_batch is not a file of CIFAR-10: it asks for posix.mkdir, which data has"
    ):
        cifar10(archive)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([1, 2], "it holds a list, not a dictionary"),
        ({b"labels": [0]}, "'data' is not an array of bytes, 3072 per image"),
        ({b"data": np.zeros((2, 3072)), b"labels": [0, 0]}, "'data' is not an array of bytes, 3072 per image"),
        ({b"data": np.zeros((2, 99), np.uint8), b"labels": [0, 0]}, "'data' is not an array of bytes"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}, "'labels' is not one label per image below 3"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [3]}, "'labels' is not one label per image below 3"),
    ],
)
def test_a_file_with_other_content_is_named(archive: Path, content: object, reason: str) -> None:
    path = archive / "cifar-10-batches-py" / "test_batch"
    write(path, content)
    with pytest.raises(UsageError, match=re.escape(f"{path} is not a file of CIFAR-10: {reason}")):
        cifar10(archive)


@pytest.mark.parametrize("keep", [0, 1, 100, 2000])
def test_a_truncated_file_is_named(archive: Path, keep: int) -> None:
    path = archive / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"test_batch is not a file of CIFAR-10: .* CIFAR page at toronto.edu again"):
        cifar10(archive)


def test_a_name_that_is_not_utf8_is_reported(archive: Path) -> None:
    write(archive / "cifar-10-batches-py" / "batches.meta", {b"label_names": [b"air\xffplane", b"automobile", b"bird"]})
    with pytest.raises(UsageError, match=r"batches.meta is not a file of CIFAR-10: the name of a class is not UTF-8"):
        cifar10(archive)


def test_a_meta_file_without_names_is_named(archive: Path) -> None:
    write(archive / "cifar-10-batches-py" / "batches.meta", {b"label_names": "abc"})
    with pytest.raises(
        UsageError, match=r"batches.meta is not a file of CIFAR-10: no list of names under 'label_names'"
    ):
        cifar10(archive)


CRAFTED = {
    # an object dtype whose flags say that it holds no objects, so that raw bytes become pointers
    "pointers": b"\x80\x03}(B\x04\0\0\0datacnumpy\ndtype\n((cnumpy\ndtype\n(X\x02\0\0\0u1\x89\x88tR"
    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(J\0\0\0\0tB\x01\0\0\0btR(J\x01\0\0\0(J\x01\0\0\0t"
    b"cnumpy\ndtype\n(X\x02\0\0\0O8\x89\x88tR(J\x03\0\0\0X\x01\0\0\0|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffJ\0\0\0\0tb"
    b"\x89B\x08\0\0\0AAAAAAAAtbttRB\x06\0\0\0labels]u.",
    "claim": b"\x80\x04\x8e" + (2**40).to_bytes(8, "little"),
    "frame": b"\x80\x04\x95" + (2**40).to_bytes(8, "little"),
    "memo": b"\x80\x02}r\xff\xff\xff\x7f.",
    "nested key": b"\x80\x02}N" + b"\x85" * 300_000 + b"Ns.",
    "nested keys": b"\x80\x02}(N" + b"\x85" * 300_000 + b"Nu.",
    "nested dictionary": b"\x80\x02(N" + b"\x85" * 300_000 + b"K\0d.",
    "set": b"\x80\x04\x8f(N" + b"\x85" * 300_000 + b"\x90.",
    "state of a function": b"\x80\x02c_codecs\nencode\nN}U\x0c__defaults__)s\x86b.",
    "call of a text": b"\x80\x02cnumpy\nndarray\n)R.",
    "short number": b"\x80\x02J\x00",
}


def test_crafted_pickles_are_refused_in_one_line(tmp_path: Path) -> None:
    for name, content in CRAFTED.items():
        (tmp_path / name).write_bytes(content)
    # in a process of its own, because a crash would end the tests
    code = (
        "import sys; from pathlib import Path; from vitadel.core.errors import UsageError\n"
        "from vitadel.data.readers.cifar import CIFAR10, _part\n"
        "for name in sys.argv[1:]:\n"
        "    try: _part(Path(name), CIFAR10, 10)\n"
        "    except UsageError as error: print(error)\n"
    )
    paths = [str(tmp_path / name) for name in CRAFTED]
    result = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert len(lines) == len(paths)
    for path, line in zip(paths, lines, strict=True):
        assert line.startswith(f"{path} is not a file of CIFAR-10: "), line


@pytest.mark.parametrize("code", [b"]" * 2**21 + b"a" * (2**21 - 1), b"(" * 2**21, b"]q\0" + b"h\0a" * 2**20])
def test_a_pickle_of_millions_of_lists_is_not_read_to_its_end(archive: Path, code: bytes) -> None:
    path = archive / "cifar-10-batches-py" / "batches.meta"
    path.write_bytes(b"\x80\x02" + code + b".")
    with pytest.raises(UsageError, match=r"batches\.meta is not a file of CIFAR-10: it has more than 1048576 opcodes"):
        cifar10(archive)


def test_a_file_larger_than_the_archive_is_not_read(archive: Path) -> None:
    with (archive / "cifar-10-batches-py" / "test_batch").open("r+b") as file:
        file.truncate(2**30)  # without taking that much of the disk
    with pytest.raises(UsageError, match="test_batch is not a file of CIFAR-10: it has 1073741824 bytes, more than"):
        cifar10(archive)


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_protocol_and_order_is_read(archive: Path, protocol: int, order: Literal["C", "F"]) -> None:
    content = batch(6, 9)
    content[b"data"] = np.asarray(content[b"data"], order=order)
    path = archive / "cifar-10-batches-py" / "test_batch"
    expected = cifar10(archive).test.images(torch.arange(9))
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    assert torch.equal(cifar10(archive).test.images(torch.arange(9)), expected)
