"""Sources of a split's pixels: memory, or files that are decoded when they are read."""

import os
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin  # noqa: F401 (makes formats known)
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.files import check_regular_file
from vitadel.data.preprocess import Preprocess, rgb

_UNREADABLE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,  # where warnings are errors
)
# Pillow decides by the content, whatever a file is called, and would run Ghostscript on PostScript
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


class Pixels(ABC):
    """The pictures of a split by index; a picture has the same values whatever else is read with it."""

    @property
    @abstractmethod
    def bytes_per_image(self) -> int:
        """What one image takes once it is in memory."""

    @abstractmethod
    def read(self, index: Tensor) -> Tensor:
        """uint8 [B, 3, H, W] of the images at `index`, int64 [B]."""

    @abstractmethod
    def take(self, index: Tensor) -> "Pixels":
        """The images at `index`, in that order."""

    @property
    @abstractmethod
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images that `read` returns."""

    @abstractmethod
    def original(self, i: int) -> Image.Image:
        """One picture in RGB at its own size, before any preprocess; pixels in memory have no other size."""

    def finished(self, i: int) -> Image.Image:
        """One picture as `read` gives it."""
        return _picture(self.read(torch.tensor([i]))[0])


@dataclass(frozen=True, slots=True, eq=False)
class InMemory(Pixels):
    """Preprocessed images held in memory.

    Args:
        pixels: uint8 [N, 3, H, W].
    """

    pixels: Tensor

    @property
    def bytes_per_image(self) -> int:
        return self.pixels[:1].numel()

    @property
    def image_size(self) -> tuple[int, int]:
        height, width = self.pixels.shape[2:]
        return height, width

    def read(self, index: Tensor) -> Tensor:
        return self.pixels[index]

    def take(self, index: Tensor) -> "InMemory":
        return InMemory(self.pixels[index])

    def original(self, i: int) -> Image.Image:
        return _picture(self.pixels[i])


class Preprocessed(Pixels):
    """Images in files, which threads decode and preprocess each time they are read."""

    preprocess: Preprocess

    @property
    def bytes_per_image(self) -> int:
        return 3 * self.preprocess.size**2

    @property
    def image_size(self) -> tuple[int, int]:
        return self.preprocess.size, self.preprocess.size

    @abstractmethod
    def picture(self, i: int) -> Tensor:
        """uint8 [3, H, W] of one image, preprocessed."""

    def area(self, i: int) -> int:
        """How many pixels the picture has before any preprocess."""
        width, height = self.original(i).size
        return width * height

    def read(self, index: Tensor) -> Tensor:
        wanted = index.tolist()
        out = torch.empty(len(wanted), 3, self.preprocess.size, self.preprocess.size, dtype=torch.uint8)

        def fill(slot: int) -> None:
            out[slot] = self.picture(wanted[slot])

        workers = min(threads(self.area(wanted[0])), len(wanted)) if len(wanted) > 1 else 1
        if workers < 2:
            for slot in range(len(wanted)):
                fill(slot)
            return out
        with ThreadPoolExecutor(workers, "vitadel-decode") as pool:
            done = [pool.submit(fill, slot) for slot in range(len(wanted))]
            try:
                for future in done:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return out


@dataclass(frozen=True, slots=True, eq=False)
class Arrays(Preprocessed):
    """Pictures in memory at their own size, uint8 [N, 3, H, W]."""

    pictures: Tensor
    preprocess: Preprocess

    @classmethod
    def of(cls, pictures: Tensor, preprocess: Preprocess) -> "Arrays | InMemory":
        """The pictures with their preprocess; finished if the preprocess would not change them."""
        height, width = pictures.shape[2:]
        return InMemory(pictures) if preprocess.is_noop_for(width, height) else cls(pictures, preprocess)

    def picture(self, i: int) -> Tensor:
        return self.preprocess(self.original(i))

    def original(self, i: int) -> Image.Image:
        return _picture(self.pictures[i])

    def take(self, index: Tensor) -> "Arrays":
        return Arrays(self.pictures[index], self.preprocess)


@dataclass(frozen=True, slots=True, eq=False)
class Files(Preprocessed):
    """Pictures in files, decoded in several threads: Pillow releases the interpreter lock while it decodes."""

    root: Path
    paths: tuple[str, ...]
    preprocess: Preprocess

    def picture(self, i: int) -> Tensor:
        with self._opened(i) as picture:
            return self.preprocess(picture)

    def original(self, i: int) -> Image.Image:
        with self._opened(i) as picture:
            return rgb(picture)

    def area(self, i: int) -> int:
        with self._opened(i) as picture:
            return picture.width * picture.height

    @contextmanager
    def _opened(self, i: int) -> Iterator[Image.Image]:
        # Pillow decodes when pixels are first accessed, so an error inside the caller's block is about the file too
        path = self.root / self.paths[i]
        check_regular_file(path)
        try:
            with Image.open(path, formats=_FORMATS) as picture:
                _check_area(picture)
                yield picture
        except _UNREADABLE as error:
            raise UsageError(
                f"cannot read the image {path}: {_reason(error)}. Replace or remove that file; "
                "`vitadel data check --json` lists every such file."
            ) from error

    def take(self, index: Tensor) -> "Files":
        return Files(self.root, tuple(self.paths[i] for i in index.tolist()), self.preprocess)


def threads(area: int | None = None) -> int:
    """Number of threads for decoding pictures of `area` pixels, or of any size.

    Around the decoding itself a thread holds the interpreter lock for about as long as decoding 100 x 100 pixels takes:
    for pictures that small, one thread is faster than several.
    """
    most = min(16, os.cpu_count() or 1)
    return most if area is None else max(1, min(most, area >> 14))


def _check_area(picture: Image.Image) -> None:
    """Refuse pictures that Pillow warns of: a few kilobytes can claim gigabytes of pixels."""
    limit, area = Image.MAX_IMAGE_PIXELS, picture.width * picture.height
    if limit is not None and area > limit:
        raise Image.DecompressionBombError(f"it has {picture.width} x {picture.height} pixels, more than {limit}")


def _picture(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "not an image file" if isinstance(error, UnidentifiedImageError) else str(error).rstrip(".")
