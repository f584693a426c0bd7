"""Writing a folder of shards, which is not readable as shards until it is complete."""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitadel.core.errors import UsageError
from vitadel.core.files import lock
from vitadel.core.progress import ProgressCallback, silent
from vitadel.data.shards.format import INDEX, MARK, Index, Shard, Shards, ends_sha256, paths

Block = tuple[NDArray[np.uint8], NDArray[np.integer]]

SHARD_IMAGES = 1_000_000
_OURS = re.compile(r"(images|labels)-\d{5,}\.npy|\.(shards\.json|(images|labels)-\d{5,}\.npy)\.part")


def write_shards(
    folder: Path,
    blocks: Iterator[Block],
    *,
    count: int,
    image_size: int,
    num_classes: int,
    shard_images: int = SHARD_IMAGES,
    notify: ProgressCallback = silent,
) -> Shards:
    """Write `count` images, given in blocks of any length, into an empty folder, and open it.

    After an interruption the folder is not readable as shards; the next call clears it and starts again.
    """
    draft = Index(image_size, num_classes, "", ())
    with _claimed(folder, need=count * (3 * image_size**2 + draft.label_dtype.itemsize)):
        stream, digest = _Stream(blocks, count, notify), hashlib.sha256()
        shards: list[Shard] = []
        while (done := stream.done) < count:
            length = min(shard_images, count - done)
            pair = paths(folder, len(shards))
            _write_pair(pair, stream, draft, length, digest.update)
            shards.append(Shard(length, ends_sha256(pair[0])))
        stream.finish()
        index = Index(image_size, num_classes, digest.hexdigest(), tuple(shards))
        with _whole(folder / INDEX) as file:
            file.write(index.as_json().encode())
    return Shards.read(folder)


class _Stream:
    """Splits blocks of any length into parts of at most a given length."""

    def __init__(self, blocks: Iterator[Block], count: int, notify: ProgressCallback) -> None:
        self.blocks, self.count, self.notify, self.done = blocks, count, notify, 0
        self._rest: Block | None = None

    def take(self, most: int) -> Block:
        images, labels = self._rest or next(self.blocks)
        self._rest = (images[most:], labels[most:]) if len(images) > most else None
        self.done += len(images[:most])
        self.notify("converting", self.done, self.count, {})
        return images[:most], labels[:most]

    def finish(self) -> None:
        """Read past the last block, as an archive verifies its checksum only at its end."""
        left = next(self.blocks, None)
        assert (left, self._rest) == (None, None)


def _write_pair(
    pair: tuple[Path, Path], stream: _Stream, index: Index, length: int, digest: Callable[[bytes], None]
) -> None:
    shape = (length, index.image_size, index.image_size, 3)
    with _whole(pair[0]) as image_file, _whole(pair[1]) as label_file:
        _write_header(image_file, np.dtype("u1"), shape)
        _write_header(label_file, index.label_dtype, shape[:1])
        while length:
            images, labels = stream.take(length)
            written = labels.astype(index.label_dtype).tobytes()
            image_file.write(np.ascontiguousarray(images).data)
            label_file.write(written)
            digest(written)
            length -= len(images)


def _write_header(file: IO[bytes], dtype: np.dtype[np.unsignedinteger], shape: tuple[int, ...]) -> None:
    npy.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": shape})


@contextmanager
def _whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that is renamed to `path` when it is completely written."""
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@contextmanager
def _claimed(folder: Path, *, need: int) -> Iterator[None]:
    """Lock an empty folder for this process; it is emptied again after an error."""
    try:
        _check_empty_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with _marked(folder):
            _check_empty_folder(folder)  # another process may have finished since
            _delete_own_files(folder)
            free = shutil.disk_usage(folder).free
            if free < need:
                raise UsageError(
                    f"the images take {need / 1e9:.1f} GB, but {folder} has {free / 1e9:.1f} GB free. "
                    "Choose a folder on a larger disk."
                )
            try:
                yield
            except BaseException:
                _delete_own_files(folder)
                raise
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror or error}. Choose a folder you may write to, with space left."
        ) from error


@contextmanager
def _marked(folder: Path) -> Iterator[None]:
    """A locked file that marks the folder as unfinished; after an interruption the file remains, without the lock."""
    with (folder / MARK).open("ab") as mark:
        try:
            lock(mark)
        except OSError:
            raise UsageError(f"another process is filling {folder}. Wait for it, or choose a new folder.") from None
        try:
            yield
        finally:
            (folder / MARK).unlink(missing_ok=True)


def _check_empty_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; the shards need a folder. Choose another name.")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if INDEX in names:
        raise UsageError(f"{folder} already holds shards. Use them, or choose a new folder.")
    ours = {name for name in names if _OURS.fullmatch(name)} if MARK in names else set()
    if others := [name for name in names if name != MARK and name not in ours]:
        raise UsageError(f"{folder} is not empty: it holds {others[0]!r}. Choose a new folder.")


def _delete_own_files(folder: Path) -> None:
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name):
            path.unlink()
