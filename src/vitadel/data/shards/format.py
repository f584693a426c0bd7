"""Millions of images in plain .npy files, memory-mapped: read by index, never held in memory.

shards.json        what the folder holds; written last, so a folder without it is unfinished
images-00000.npy   uint8 [n, H, W, 3]
labels-00000.npy   uint8 [n], or uint16 where there are more than 256 classes
"""

import hashlib
import json
import math
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.files import check_regular_file, parse_json
from vitadel.data.split import checked_index

MOST_CLASSES = 2**16
INDEX = "shards.json"
# exists while a folder is being filled, and after an interruption
MARK = ".unfinished"
_FORMAT = 1
# a file is hashed in blocks of this size; a quick check reads the first and the last
HASHED_BYTES = 2**20
# images read before their pages are released: enough to fill a disk's queue, few enough to take little memory
READ_AT_ONCE = 4096
_AGAIN = "Convert the archives again, into a new folder."


@dataclass(frozen=True, slots=True)
class Shard:
    """One pair of files in shards.json; the hash is of the first and last megabyte of the images."""

    count: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Index:
    """The content of shards.json."""

    image_size: int
    num_classes: int
    labels_sha256: str
    shards: tuple[Shard, ...]

    @property
    def count(self) -> int:
        return sum(shard.count for shard in self.shards)

    @property
    def label_dtype(self) -> np.dtype[np.unsignedinteger]:
        return np.dtype("u1" if self.num_classes <= 256 else "<u2")

    def as_json(self) -> str:
        size, shards = self.image_size, [asdict(shard) for shard in self.shards]
        content = {"format": _FORMAT, "count": self.count, "image_shape": [size, size, 3], "classes": self.num_classes}
        return json.dumps({**content, "labels_sha256": self.labels_sha256, "shards": shards}, indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        check_regular_file(path)
        try:
            content: Any = parse_json(path.read_text(encoding="utf-8"))
            if (version := content["format"]) != _FORMAT:
                raise UsageError(
                    f"{path} has format {version!r:.40}, but this version of vitadel reads format {_FORMAT}. "
                    "Use the version that wrote it, or convert the archives again."
                )
            shards = tuple(Shard(int(one["count"]), str(one["sha256"])) for one in content["shards"])
            size, classes = int(content["image_shape"][0]), int(content["classes"])
            index = cls(size, classes, str(content["labels_sha256"]), shards)
            if json.loads(index.as_json()) != content or not index.count:
                raise ValueError("its numbers contradict each other")
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}. Check the file's permissions.") from error
        except (ValueError, LookupError, TypeError, OverflowError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise UsageError(f"{path} is damaged: {reason}. {_AGAIN}") from error
        return index


@dataclass(frozen=True, slots=True, eq=False)
class Mapped:
    """The entries of one .npy file, memory-mapped; the pages that were read are released after each batch.

    Pages of a mapped file count as memory of the process. Released, they stay in the system's file cache for as long as
    memory is left.
    """

    entries: NDArray[np.unsignedinteger]
    memory: mmap.mmap
    start: int
    scattered: bool

    @classmethod
    def open(cls, path: Path, dtype: np.dtype[np.unsignedinteger], shape: tuple[int, ...], *, scattered: bool) -> Self:
        """Memory-map a file that must contain exactly this array; `scattered` if it is read in random order."""
        check_regular_file(path)
        try:
            with path.open("rb") as file:
                start = _checked_header(file, path, dtype, shape)
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}. {_AGAIN}") from error
        if scattered:
            _advise(memory, "MADV_RANDOM")  # or each entry read would bring its neighbors along
        return cls(np.ndarray(shape, dtype, memory, start), memory, start, scattered)

    def prefetch(self, index: NDArray[np.int64]) -> None:
        """Ask the system to read these entries ahead in parallel, which is six times as fast as one by one."""
        if not self.scattered or not hasattr(mmap, "MADV_WILLNEED"):
            return
        length = self.entries[:1].nbytes
        for first in (index * length + self.start).tolist():
            page = first - first % mmap.PAGESIZE
            self.memory.madvise(mmap.MADV_WILLNEED, page, first + length - page)

    def take(self, index: NDArray[np.int64]) -> NDArray[np.unsignedinteger]:
        entries = self.entries[index]  # a copy
        _advise(self.memory, "MADV_DONTNEED")
        return entries


@dataclass(frozen=True, eq=False)
class Shards:
    """A folder of images and labels that `convert` wrote; index i is the same image wherever the folder is copied."""

    folder: Path
    index: Index
    image_files: tuple[Mapped, ...]
    label_files: tuple[Mapped, ...]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Open a folder written by `convert`; checks sizes and hashes of the ends, without reading all pixels."""
        _check_finished(folder)
        index = Index.read(folder / INDEX)
        images, labels, digest = [], [], hashlib.sha256()
        for number, shard in enumerate(index.shards):
            image_path, label_path = paths(folder, number)
            shape = (shard.count, index.image_size, index.image_size, 3)
            images.append(Mapped.open(image_path, np.dtype("u1"), shape, scattered=True))
            labels.append(Mapped.open(label_path, index.label_dtype, shape[:1], scattered=False))
            if ends_sha256(image_path) != shard.sha256:
                raise UsageError(f"{image_path} is not the file that {INDEX} describes: its hash differs. {_AGAIN}")
            _digest_rest(label_path, labels[-1].start, digest.update)
        if digest.hexdigest() != index.labels_sha256:
            raise UsageError(f"the labels in {folder} are not those {INDEX} describes: their hash differs. {_AGAIN}")
        return cls(folder, index, tuple(images), tuple(labels))

    def __len__(self) -> int:
        return self.index.count

    @property
    def num_classes(self) -> int:
        return self.index.num_classes

    @property
    def image_size(self) -> int:
        return self.index.image_size

    def pixels(self, index: Tensor) -> Tensor:
        """uint8 [B, 3, H, W], on the CPU."""
        pixels = self._gather(self.image_files, self._checked(index))
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()

    def images(self, index: Tensor) -> Tensor:
        """float32 [B, 3, H, W] in [0, 1], on the CPU."""
        return self.pixels(index).to(torch.float32).div_(255)

    def labels(self, index: Tensor) -> Tensor:
        """int64 [B], on the CPU."""
        return torch.from_numpy(self._gather(self.label_files, self._checked(index)).astype(np.int64))

    def describe(self) -> dict[str, object]:
        """What a manifest needs to tell these images from others."""
        sha256 = hashlib.sha256(self.index.as_json().encode()).hexdigest()
        return {"count": len(self), "image_size": self.image_size, "classes": self.num_classes, "sha256": sha256}

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """The index of the first image of each shard, and after them the number of all images."""
        return np.cumsum([0, *(shard.count for shard in self.index.shards)])

    def _gather(self, files: Sequence[Mapped], index: NDArray[np.int64]) -> NDArray[np.unsignedinteger]:
        out = np.empty((len(index), *files[0].entries.shape[1:]), files[0].entries.dtype)
        order = np.argsort(index, kind="stable")
        for first in range(0, len(index), READ_AT_ONCE):
            slots = order[first : first + READ_AT_ONCE]
            edges = np.searchsorted(index[slots], self._starts)
            parts = [
                (shard, slots[edges[shard] : edges[shard + 1]]) for shard in np.flatnonzero(np.diff(edges)).tolist()
            ]
            for shard, part in parts:
                files[shard].prefetch(index[part] - self._starts[shard])
            for shard, part in parts:
                out[part] = files[shard].take(index[part] - self._starts[shard])
        return out

    def _checked(self, index: Tensor) -> NDArray[np.int64]:
        hint = " Permutation(len(shards), seed).at(positions) gives valid numbers."
        return checked_index(index, len(self), str(self.folder), hint).numpy()


def _check_finished(folder: Path) -> None:
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}. Write the --out of an earlier `vitadel data convert`.")
    if (folder / INDEX).exists():
        return
    if (folder / MARK).exists():
        raise UsageError(f"{folder} is unfinished. Run the `vitadel data convert` that was to fill it again.")
    raise UsageError(f"{folder} has no {INDEX}. Write the --out of an earlier `vitadel data convert`.")


def paths(folder: Path, number: int) -> tuple[Path, Path]:
    """The images and the labels of one shard."""
    return folder / f"images-{number:05d}.npy", folder / f"labels-{number:05d}.npy"


def _checked_header(file: IO[bytes], path: Path, dtype: np.dtype[np.unsignedinteger], shape: tuple[int, ...]) -> int:
    """The offset of the array in a file that must contain exactly this array."""
    try:
        npy.read_magic(file)
        header = npy.read_array_header_1_0(file)
    except ValueError as error:
        raise UsageError(f"{path} is damaged: it is not an .npy file ({error}). {_AGAIN}") from error
    if header != (shape, False, dtype):
        raise UsageError(
            f"{path} should hold {dtype.name} {list(shape)} as {INDEX} says, "
            f"got {header[2].name} {list(header[0])}{' in Fortran order' if header[1] else ''}. {_AGAIN}"
        )
    start = file.tell()
    whole, size = start + math.prod(shape) * dtype.itemsize, os.fstat(file.fileno()).st_size
    if size != whole:
        raise UsageError(f"{path} should be {whole} bytes long, got {size}. {_AGAIN}")
    return start


def ends_sha256(path: Path) -> str:
    """A hash of the first and the last megabyte: fast, and enough to tell one shard from another."""
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(HASHED_BYTES))
        file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - HASHED_BYTES))
        digest.update(file.read())
    return digest.hexdigest()


def _digest_rest(path: Path, start: int, digest: Callable[[bytes], None]) -> None:
    with path.open("rb") as file:
        file.seek(start)
        while block := file.read(HASHED_BYTES):
            digest(block)


def _advise(memory: mmap.mmap, advice: str) -> None:
    if (number := getattr(mmap, advice, None)) is not None:  # not every platform takes advice
        memory.madvise(number)
