"""Event files: the bytes that TensorBoard expects, known from its formats and checked against its reader."""

import math
import struct
from pathlib import Path

import pytest

from vitadel.core.errors import UsageError
from vitadel.runs import Scalars
from vitadel.runs.tensorboard import crc32c, varint


def only_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def messages(file: Path) -> list[bytes]:
    """The records of a file, taken apart by the lengths they announce."""
    left, result = file.read_bytes(), []
    while left:
        (length,) = struct.unpack("<Q", left[:8])
        result.append(left[12 : 12 + length])
        left = left[16 + length :]
    return result


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),  # the check value in every catalog of checksums
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_checksums_match_crc32c(data: bytes, checksum: int) -> None:
    assert crc32c(data) == checksum


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (1, "01"),
        (127, "7f"),
        (128, "80 01"),
        (255, "ff 01"),
        (16384, "80 80 01"),
        (-1, "ff ff ff ff ff ff ff ff ff 01"),
    ],
)
def test_integers_are_varints(number: int, written: str) -> None:
    assert varint(number) == bytes.fromhex(written)


def test_the_bytes_of_an_event_file(tmp_path: Path) -> None:
    Scalars(tmp_path).add(300, {"loss": 0.5}, wall_time=1.0)
    version, started, scalar = messages(only_file(tmp_path))
    one = "09 00 00 00 00 00 00 f0 3f"  # field 1, eight bytes: 1.0
    assert version == bytes.fromhex(f"{one} 1a 0d") + b"brain.Event:2"
    assert started == bytes.fromhex(f"{one} 10 ac 02 3a 02 08 01")  # 300 = 0b10_0101100
    # summary of 13 bytes, one value of 11: the tag "loss", then 0.5 as a float
    assert scalar == bytes.fromhex(f"{one} 10 ac 02 2a 0d 0a 0b 0a 04 6c 6f 73 73 15 00 00 00 3f")
    # with these bytes begin the event files of TensorFlow 1 and 2.0: length 24 and its checksum
    assert only_file(tmp_path).read_bytes()[:12] == bytes.fromhex("18 00 00 00 00 00 00 00 a3 7f 4b 22")


def test_checksums_are_masked(tmp_path: Path) -> None:
    Scalars(tmp_path).add(1, {"a": 1.0}, wall_time=0.0)
    data = only_file(tmp_path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    for covered, stored in ((data[:8], data[8:12]), (data[12 : 12 + length], data[12 + length : 16 + length])):
        crc = crc32c(covered)
        assert struct.unpack("<I", stored)[0] == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def test_every_process_writes_its_own_file_immediately(tmp_path: Path) -> None:
    first = Scalars(tmp_path)
    first.add(1, {})
    assert list(tmp_path.iterdir()) == []  # no numbers, no file
    first.add(1, {"loss": 2.0})
    file = only_file(tmp_path)
    assert file.name.startswith("events.out.tfevents.")
    assert file.name.endswith(".vitadel")
    first.add(2, {"loss": 1.0, "lr": 0.1})
    assert len(messages(only_file(tmp_path))) == 4  # whole, though nothing was closed
    file.write_bytes(file.read_bytes()[:-3])  # killed in the middle of a record
    Scalars(tmp_path).add(2, {"loss": 1.0})
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2  # in the same second, of the same process
    assert files[0] == file  # TensorBoard reads them in order of their names


def test_nan_and_large_numbers_are_written(tmp_path: Path) -> None:
    scalars = Scalars(tmp_path)
    for value in (math.nan, -math.inf, 1e300):
        scalars.add(1, {"x": value})
    floats = [struct.unpack("<f", message[-4:])[0] for message in messages(only_file(tmp_path))[2:]]
    assert math.isnan(floats[0])
    assert floats[1:] == [-math.inf, math.inf]


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to .*file/events: .*Free space or choose another run folder"):
        Scalars(tmp_path / "file" / "events").add(1, {"loss": 1.0})


def test_tensorboard_reads_the_files_and_drops_repeated_steps(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    killed = Scalars(tmp_path)
    for step in (10, 20, 30):
        killed.add(step, {"train/loss": 1 / step, "lr": 0.1}, wall_time=float(step))
    Scalars(tmp_path).add(20, {"train/loss": math.nan, "näher": 1e-3}, wall_time=99.5)
    read = event_accumulator.EventAccumulator(str(tmp_path))
    read.Reload()
    assert sorted(read.Tags()["scalars"]) == ["lr", "näher", "train/loss"]
    loss = read.Scalars("train/loss")
    assert [(entry.step, entry.wall_time) for entry in loss] == [(10, 10.0), (20, 99.5)]
    assert loss[0].value == pytest.approx(0.1)
    assert math.isnan(loss[1].value)
