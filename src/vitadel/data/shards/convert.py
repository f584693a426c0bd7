"""Conversion of .npz archives of generated images to a folder of shards, in one pass and little memory.

`np.load` reads a whole member of an archive: 154 GB for 50 million images. Here a member is read as a stream of blocks.
Nothing is unpickled.
"""

import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitadel.core.errors import UsageError
from vitadel.core.files import check_regular_file
from vitadel.core.progress import ProgressCallback, silent
from vitadel.data.shards.format import MOST_CLASSES, Shards
from vitadel.data.shards.writer import SHARD_IMAGES, Block, write_shards

# bytes of pixels read at once
BLOCK_BYTES = 4 * 2**20
_LABELS_AT_ONCE = 2**18
_MAKE = "Write the archive that np.savez(path, image=..., label=...) makes."
_FETCH = "Fetch it again."


def convert(
    archives: Sequence[Path],
    folder: Path,
    *,
    image_key: str = "image",
    label_key: str = "label",
    num_classes: int | None = None,
    shard_images: int = SHARD_IMAGES,
    notify: ProgressCallback = silent,
) -> Shards:
    """Write the images of all archives, one after the other, into an empty folder, and open it.

    Headers and labels are checked before the first image is written.

    Args:
        archives: .npz files with images, uint8 [N, H, W, 3], and integer labels.
        folder: The folder of the shards, new or empty.
        image_key: The name of the images inside an archive.
        label_key: The name of the labels.
        num_classes: By default one more than the highest label.
        shard_images: Images per file.
        notify: Called with the progress.

    Returns:
        The shards, opened.

    Raises:
        UsageError: An archive is damaged or does not fit, the folder is not empty, or the disk is full.
    """
    if shard_images < 1:
        raise UsageError(
            f"a shard must hold at least 1 image, got {shard_images}. Write for example {SHARD_IMAGES}, the default."
        )
    opened = [Archive.open(path, image_key, label_key) for path in archives]
    if not opened:
        raise UsageError("no archive is named. Write at least one .npz file.")
    for archive in opened[1:]:
        if archive.image_size != opened[0].image_size:
            raise UsageError(
                f"{archive.path} holds images of {archive.image_size} x {archive.image_size} pixels, {opened[0].path} "
                f"of {opened[0].image_size} x {opened[0].image_size}. Convert them into separate folders."
            )
    return write_shards(
        folder,
        (block for archive in opened for block in archive.blocks()),
        count=sum(len(archive) for archive in opened),
        image_size=opened[0].image_size,
        num_classes=_classes(opened, num_classes),
        shard_images=shard_images,
        notify=notify,
    )


@dataclass(frozen=True, slots=True)
class Member:
    """An array in an archive, described by its header."""

    path: Path
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @classmethod
    def open(cls, path: Path, key: str) -> Self:
        check_regular_file(path)
        with _reading(path), _opened(path, key) as file:
            shape, fortran_order, dtype = _header(file, path, key)
        if dtype.hasobject:
            raise UsageError(f"{key!r} in {path} holds Python objects, which are never unpickled. {_MAKE}")
        if fortran_order:
            raise UsageError(
                f"{key!r} in {path} is in Fortran order: its images do not lie one after the other. "
                "Write it again with np.ascontiguousarray."
            )
        return cls(path, key, shape, dtype)

    def blocks(self, length: int) -> Iterator[NDArray[np.generic]]:
        """The array in pieces of `length`; the checksum is compared at the end."""
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        with _reading(self.path), _opened(self.path, self.key) as file:
            _header(file, self.path, self.key)
            for first in range(0, self.shape[0], length):
                count = min(length, self.shape[0] - first)
                read = file.read(count * row_bytes)
                if len(read) < count * row_bytes:
                    raise EOFError(f"{self.key!r} ends before its {self.shape[0]} entries")
                yield np.frombuffer(read, self.dtype).reshape(count, *self.shape[1:])
            if file.read(1):  # zipfile verifies the checksum when the end is reached
                raise EOFError(f"{self.key!r} goes on after its {self.shape[0]} entries")


@dataclass(frozen=True, slots=True)
class Archive:
    """The images and labels of one .npz file, whose headers have been checked."""

    image: Member
    label: Member

    @classmethod
    def open(cls, path: Path, image_key: str, label_key: str) -> Self:
        image, label = Member.open(path, image_key), Member.open(path, label_key)
        _check_images(image)
        if label.dtype.kind not in "iu" or len(label.shape) != 1:
            raise UsageError(
                f"{label_key!r} in {path} must be one whole number per image, got {_form(label)}. "
                "Write class numbers, not scores or one-hot rows."
            )
        if label.shape[0] != image.shape[0]:
            raise UsageError(f"{path} has {image.shape[0]} images and {label.shape[0]} labels. {_MAKE}")
        return cls(image, label)

    def __len__(self) -> int:
        return self.image.shape[0]

    @property
    def path(self) -> Path:
        return self.image.path

    @property
    def image_size(self) -> int:
        return self.image.shape[1]

    def blocks(self) -> Iterator[Block]:
        length = max(1, BLOCK_BYTES // (3 * self.image_size**2))
        for images, labels in zip(self.image.blocks(length), self.label.blocks(length), strict=True):
            yield images.view(np.uint8), labels.astype(np.int64)

    def highest_label(self) -> int:
        lowest, highest = 0, 0
        for labels in self.label.blocks(_LABELS_AT_ONCE):
            lowest, highest = min(lowest, int(labels.min())), max(highest, int(labels.max()))
        if lowest < 0:
            raise UsageError(f"{self.path} has the label {lowest}. Make labels count from 0.")
        return highest


def _classes(archives: Sequence[Archive], requested: int | None) -> int:
    """The number of classes; reads all labels."""
    if requested is not None and not 1 <= requested <= MOST_CLASSES:
        raise UsageError(
            f"the number of classes must lie between 1 and {MOST_CLASSES}, got {requested}. Leave it out to count."
        )
    limit, count = MOST_CLASSES if requested is None else requested, 0
    for archive in archives:
        highest = archive.highest_label()
        if highest >= limit:
            raise UsageError(
                f"{archive.path} has the label {highest}, but {limit} classes have labels from 0 to {limit - 1}. "
                f"Write a larger number of classes, at most {MOST_CLASSES}, or leave it out."
            )
        count = max(count, highest + 1)
    return requested or count


def _check_images(image: Member) -> None:
    what = f"{image.key!r} in {image.path}"
    if image.dtype != np.uint8:
        raise UsageError(f"{what} must be uint8, got {_form(image)}. Write pixels from 0 to 255, not normalized.")
    if len(image.shape) == 4 and image.shape[1] == 3 and image.shape[2] == image.shape[3] != 3:
        raise UsageError(
            f"{what} has its channels first, got {_form(image)}. Write [N, H, W, 3]: image.transpose(0, 2, 3, 1)."
        )
    if len(image.shape) != 4 or image.shape[3] != 3 or image.shape[1] != image.shape[2] or image.shape[1] < 1:
        raise UsageError(f"{what} must be square images in color, got {_form(image)}. Write [N, H, W, 3] with H = W.")
    if image.shape[0] < 1:
        raise UsageError(f"{what} holds no image. Leave that archive out.")


def _form(member: Member) -> str:
    return f"{member.dtype.name} {list(member.shape)}"


@contextmanager
def _opened(path: Path, key: str) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(path) as archive:
        keys = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        if key not in keys:
            raise UsageError(
                f"{path} has no array {key!r}. It has: {', '.join(sorted(keys)) or 'none'}. "
                "Write the names of the images and the labels with --image-key and --label-key."
            )
        with archive.open(f"{key}.npy") as file:
            yield file


def _header(file: IO[bytes], path: Path, key: str) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    try:
        version = npy.read_magic(file)
        return npy.read_array_header_1_0(file) if version == (1, 0) else npy.read_array_header_2_0(file)
    except ValueError as error:
        raise UsageError(f"{key!r} in {path} is not a numpy array ({error}). {_MAKE}") from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn whatever can be wrong with an archive into a UsageError."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        if not _begins_as_zip(path):
            raise UsageError(f"{path} is not an .npz archive. {_MAKE}") from error
        raise UsageError(f"{path} is cut short or damaged: {str(error) or 'it ends too early'}. {_FETCH}") from error
    except (NotImplementedError, RuntimeError) as error:  # an unknown compression, a password
        raise UsageError(f"cannot unpack {path}: {error}. {_MAKE}") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}. Check the path.") from error


def _begins_as_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"
