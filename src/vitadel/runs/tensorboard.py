"""Scalars in TensorBoard's file format, written without TensorBoard.

A file is a sequence of records, each of which contains a protobuf message `Event`. The few fields that scalars need are
encoded here:

record    length (8 bytes), checksum of it (4), the message, checksum of that (4); little-endian
Event     wall_time = 1 (double), step = 2 (int64), file_version = 3 (string), summary = 5, session_log = 7
Summary   value = 1 (repeated): tag = 1 (string), simple_value = 2 (float)
"""

import ctypes
import os
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vitadel.core.errors import UsageError

_VERSION = b"brain.Event:2"
# SessionLog{status = START}: readers drop records of earlier processes from this step on
_STARTED = b"\x08\x01"
# protobuf wire types
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed
_MASK = 0xA282EAD8


@dataclass(slots=True)
class Scalars:
    """Curves for TensorBoard in `folder`, one file per process, created with the first value.

    A process that resumes a run creates a new file at its first step, and TensorBoard then drops the values of the
    interrupted process from that step on.
    """

    folder: Path
    _file: Path | None = field(default=None, repr=False)

    def add(self, step: int, values: Mapping[str, float], wall_time: float | None = None) -> None:
        """Append the values of one step; TensorBoard shows NaN and infinities as such."""
        if not values:
            return
        now = time.time() if wall_time is None else wall_time
        summary = b"".join(_field(1, _BYTES, _scalar(tag, value)) for tag, value in values.items())
        try:
            if self._file is None:
                self._file = _new_file(self.folder)
                self._append(_record(_event(now, 0, _field(3, _BYTES, _VERSION))))
                self._append(_record(_event(now, step, _field(7, _BYTES, _STARTED))))
            self._append(_record(_event(now, step, _field(5, _BYTES, summary))))
        except OSError as error:
            self._file = None  # readers stop at a truncated record, so the next value begins a new file
            raise UsageError(
                f"cannot write to {self.folder}: {error.strerror or error}. Free space or choose another run folder."
            ) from error

    def _append(self, record: bytes) -> None:
        assert self._file is not None
        with self._file.open("ab") as handle:
            handle.write(record)


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli et al. 1993); `zlib` and `binascii` use a different polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    """The lookup table of the checksum, one entry per byte value."""
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_TABLE = _table()


def _new_file(folder: Path) -> Path:
    """A new file; in containers, two processes may have the same host name, process id and second."""
    folder.mkdir(parents=True, exist_ok=True)
    seconds = int(time.time())
    while True:
        path = folder / f"events.out.tfevents.{seconds}.{socket.gethostname()}.{os.getpid()}.vitadel"
        try:
            path.touch(exist_ok=False)
            return path
        except FileExistsError:
            seconds += 1


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", _masked(length)) + message + struct.pack("<I", _masked(message))


def _masked(data: bytes) -> int:
    """TFRecord's masked checksum: rotated and shifted, as data may contain checksums themselves."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def _event(wall_time: float, step: int, what: bytes) -> bytes:
    counted = _field(2, _VARINT, varint(step)) if step else b""  # protobuf leaves zeros out
    return _field(1, _EIGHT_BYTES, struct.pack("<d", wall_time)) + counted + what


def _scalar(tag: str, value: float) -> bytes:
    # a C cast turns values beyond the range of float32 into infinities, where struct would raise
    number = ctypes.c_float(value).value
    return _field(1, _BYTES, tag.encode()) + _field(2, _FOUR_BYTES, struct.pack("<f", number))


def _field(number: int, kind: int, content: bytes) -> bytes:
    key = varint(number << 3 | kind)
    return key + (varint(len(content)) if kind == _BYTES else b"") + content


def varint(number: int) -> bytes:
    """A protobuf varint: seven bits per byte, lowest first; negative numbers as 64 bits."""
    left, written = number & 0xFFFFFFFFFFFFFFFF, bytearray()
    while left > 0x7F:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*written, left])
