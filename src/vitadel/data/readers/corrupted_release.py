"""Released corrupted images, in the order of the clean images that they were computed from.

ImageNet-C is DIR/CORRUPTION/SEVERITY/WNID/FILE, with the folders of the archives (noise, blur, ...) between or not.
CIFAR-10-C and CIFAR-100-C are DIR/CORRUPTION.npy, five blocks of the test images in their order, and DIR/labels.npy.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitadel.core.errors import UsageError, short_reason
from vitadel.core.files import check_regular_file
from vitadel.data.pixels import Files, Preprocessed
from vitadel.data.preprocess import Preprocess, Squash
from vitadel.data.split import Split

_SEVERITIES = 5
_MARKED = 16  # images that such a hash covers
_TEST = re.compile(r"test/(\d+)")


class CorruptedRelease(Protocol):
    """A folder of corrupted images as released."""

    @property
    def about(self) -> str:
        """The source of the images in records."""

    def cell(self, name: str, severity: int) -> Split:
        """The images of one corruption at one severity, in the order of the clean split."""

    def mark(self, name: str, severity: int) -> str:
        """A hash of the first few images, by which a replaced file is detected."""


def open_released(root: Path, clean: Split, preprocess: Preprocess) -> CorruptedRelease:
    """The corrupted images in `root` of the images in `clean`; raises a UsageError if they do not match."""
    if not root.is_dir():
        raise UsageError(f"there is no folder {str(root)!r} of corrupted images. Check the path.")
    squash = Squash(preprocess.size)  # the files were cropped before they were corrupted
    return _Blocks.open(root, clean, squash) if (root / "labels.npy").is_file() else _Folders(root, clean, squash)


@dataclass(frozen=True, slots=True)
class _Folders:
    """ImageNet-C. A file is identified by class and name of the image it was made from."""

    root: Path
    clean: Split
    squash: Squash

    @property
    def about(self) -> str:
        return f"files of ImageNet-C, {self.squash.name}"

    def cell(self, name: str, severity: int) -> Split:
        place = cell_folder(self.root, name, severity)
        if place is None:
            raise UsageError(
                f"{self.root} has no folder {name}/{severity}. The layout is DIR/CORRUPTION/SEVERITY/WNID/FILE; "
                "run `vitadel data check imagenet-c:DIR` for all that is missing."
            )
        tails = tuple("/".join(one.split("/")[-2:]) for one in self.clean.ids)
        for wnid in dict.fromkeys(tail.partition("/")[0] for tail in tails):
            if not (place / wnid).is_dir():
                raise UsageError(
                    f"{place} has no folder {wnid}, and the clean images have that class. Unpack it again."
                )
        return Split(self.clean.name, tails, self.clean.labels, Files(place, tails, self.squash))

    def mark(self, name: str, severity: int) -> str:
        """By the files' names and sizes: no two JPEGs of 20 kB are as long by chance for many images in a row."""
        place = cell_folder(self.root, name, severity)
        assert place is not None
        tails = ["/".join(one.split("/")[-2:]) for one in self.clean.ids[:_MARKED]]
        sizes = [os.path.getsize(place / tail) if os.path.isfile(place / tail) else -1 for tail in tails]
        return hashlib.sha256(repr((name, severity, tails, sizes)).encode()).hexdigest()


def cell_folder(root: Path, name: str, severity: int) -> Path | None:
    """The folder of ImageNet-C's images of one corruption at one severity."""
    places = [root / name / str(severity), *sorted(root.glob(f"*/{name}/{severity}"))]
    return next((place for place in places if place.is_dir()), None)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """CIFAR-10-C or CIFAR-100-C."""

    root: Path
    clean: Split
    squash: Squash
    numbers: tuple[int, ...]

    @classmethod
    def open(cls, root: Path, clean: Split, squash: Squash) -> "_Blocks":
        matches = [_TEST.fullmatch(one) for one in clean.ids]
        if not all(matches):
            raise UsageError(
                f"{root} holds arrays in the order of CIFAR's test images, and the clean images do not say their place "
                f"in it: the first is {clean.ids[0]}. Use --data cifar10:DIR or cifar100:DIR and its test split."
            )
        numbers = tuple(int(one[1]) for one in matches if one is not None)
        labels = read_array(root / "labels.npy", (None,))
        if max(numbers) >= len(labels):
            raise UsageError(
                f"{root / 'labels.npy'} has {len(labels)} labels, and an image has number {max(numbers)}. "
                "Choose the folder of this data set."
            )
        if labels[list(numbers)].tolist() != clean.labels.tolist():
            raise UsageError(
                f"{root / 'labels.npy'} gives other labels than the clean images have. Check that it is the folder for "
                "this data set, and that its classes are all there, in their order."
            )
        return cls(root, clean, squash, numbers)

    @property
    def about(self) -> str:
        return f"arrays of CIFAR-C, {self.squash.name}"

    def cell(self, name: str, severity: int) -> Split:
        pictures = read_array(self.root / f"{name}.npy", (None, None, None, 3))
        count = len(pictures) // _SEVERITIES
        if pictures.dtype != np.uint8 or len(pictures) % _SEVERITIES or max(self.numbers) >= count:
            raise UsageError(
                f"{self.root / f'{name}.npy'} should hold five blocks of bytes, one image each per test image, got "
                f"{pictures.dtype} of {list(pictures.shape)}. Unpack it again."
            )
        numbers = torch.tensor(self.numbers) + (severity - 1) * count
        return Split(self.clean.name, self.clean.ids, self.clean.labels, _Mapped(pictures, numbers, self.squash))

    def mark(self, name: str, severity: int) -> str:
        """By the array's shape and some pictures: all these files have one size."""
        pixels = self.cell(name, severity).pixels
        assert isinstance(pixels, _Mapped)
        some = pixels.pictures[pixels.numbers[:_MARKED].numpy()]
        about = repr((name, severity, pixels.pictures.shape)).encode()
        return hashlib.sha256(about + some.tobytes()).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class _Mapped(Preprocessed):
    """Pictures in a file that is mapped into memory, uint8 [N, H, W, 3]; image i is picture numbers[i]."""

    pictures: NDArray[np.uint8]
    numbers: Tensor
    preprocess: Preprocess

    def picture(self, i: int) -> Tensor:
        return self.preprocess(self.original(i))

    def original(self, i: int) -> Image.Image:
        return Image.fromarray(np.array(self.pictures[int(self.numbers[i])]))

    def take(self, index: Tensor) -> "_Mapped":
        return _Mapped(self.pictures, self.numbers[index], self.preprocess)


def read_array(path: Path, shape: Sequence[int | None]) -> NDArray[np.uint8]:
    """An array of this shape, mapped into memory; bytes, if the caller makes sure of it."""
    check_regular_file(path)
    try:
        array: NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise UsageError(f"{path} is missing. Unpack the archive again, or choose the corruptions there are.") from None
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"cannot read {path}: {short_reason(error)}. Unpack the archive again.") from error
    if not isinstance(array, np.ndarray):  # an .npz archive by the name of an array
        raise UsageError(f"{path} should hold one array, got an archive of several. Unpack it again.")
    if array.ndim != len(shape) or any(want not in (None, got) for want, got in zip(shape, array.shape, strict=True)):
        raise UsageError(f"{path} should hold an array of {list(shape)}, got {list(array.shape)}. Unpack it again.")
    return array
