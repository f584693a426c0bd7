"""Where the pixels of a split lie: held in memory, to be resized, or to be read from files."""

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
from vitadel.core.files import refuse_special
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
# Pillow goes by the content, whatever a file is called, and has Ghostscript run what is PostScript
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


class Pixels(ABC):
    """One picture per row; reading it gives the same values whatever else is read with it."""

    @property
    @abstractmethod
    def bytes_per_image(self) -> int:
        """What one image takes once it is held in memory."""

    @abstractmethod
    def read(self, rows: Tensor) -> Tensor:
        """uint8 [B, 3, H, W] of the images in `rows`."""

    @abstractmethod
    def take(self, rows: Tensor) -> "Pixels":
        """The images in `rows` alone, in that order."""

    @property
    @abstractmethod
    def image_size(self) -> tuple[int, int]:
        """Height and width of what `read` gives."""

    @abstractmethod
    def original(self, row: int) -> Image.Image:
        """One picture in RGB at its own size, before any preprocess; what is held in memory has no other size."""

    def finished(self, row: int) -> Image.Image:
        """One picture as `read` gives it."""
        return _picture(self.read(torch.tensor([row]))[0])


@dataclass(frozen=True, slots=True, eq=False)
class Held(Pixels):
    """Finished pixels, uint8 [N, 3, H, W]."""

    pixels: Tensor

    @property
    def bytes_per_image(self) -> int:
        return self.pixels[:1].numel()

    @property
    def image_size(self) -> tuple[int, int]:
        height, width = self.pixels.shape[2:]
        return height, width

    def read(self, rows: Tensor) -> Tensor:
        return self.pixels[rows]

    def take(self, rows: Tensor) -> "Held":
        return Held(self.pixels[rows])

    def original(self, row: int) -> Image.Image:
        return _picture(self.pixels[row])


class Prepared(Pixels):
    """Pictures that pass through the preprocess each time they are read."""

    preprocess: Preprocess

    @property
    def bytes_per_image(self) -> int:
        return 3 * self.preprocess.size**2

    @property
    def image_size(self) -> tuple[int, int]:
        return self.preprocess.size, self.preprocess.size

    @abstractmethod
    def picture(self, row: int) -> Tensor:
        """uint8 [3, H, W] of one image."""

    def area(self, row: int) -> int:
        """How many pixels the picture has before any preprocess."""
        width, height = self.original(row).size
        return width * height

    def read(self, rows: Tensor) -> Tensor:
        numbers = rows.tolist()
        out = torch.empty(len(numbers), 3, self.preprocess.size, self.preprocess.size, dtype=torch.uint8)

        def fill(place: int) -> None:
            out[place] = self.picture(numbers[place])

        workers = min(threads(self.area(numbers[0])), len(numbers)) if len(numbers) > 1 else 1
        if workers < 2:
            for place in range(len(numbers)):
                fill(place)
            return out
        with ThreadPoolExecutor(workers, "vitadel-decode") as pool:
            done = [pool.submit(fill, place) for place in range(len(numbers))]
            try:
                for future in done:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return out


@dataclass(frozen=True, slots=True, eq=False)
class Arrays(Prepared):
    """Pictures in memory at their own size, uint8 [N, 3, H, W]."""

    pictures: Tensor
    preprocess: Preprocess

    @classmethod
    def of(cls, pictures: Tensor, preprocess: Preprocess) -> "Arrays | Held":
        """The pictures as they are, if the preprocess would not change them."""
        height, width = pictures.shape[2:]
        return Held(pictures) if preprocess.keeps(width, height) else cls(pictures, preprocess)

    def picture(self, row: int) -> Tensor:
        return self.preprocess(self.original(row))

    def original(self, row: int) -> Image.Image:
        return _picture(self.pictures[row])

    def take(self, rows: Tensor) -> "Arrays":
        return Arrays(self.pictures[rows], self.preprocess)


@dataclass(frozen=True, slots=True, eq=False)
class Files(Prepared):
    """Pictures in files, decoded by several threads: Pillow lets go of the interpreter while it works."""

    root: Path
    paths: tuple[str, ...]
    preprocess: Preprocess

    def picture(self, row: int) -> Tensor:
        with self._opened(row) as picture:
            return self.preprocess(picture)

    def original(self, row: int) -> Image.Image:
        with self._opened(row) as picture:
            return rgb(picture)

    def area(self, row: int) -> int:
        with self._opened(row) as picture:
            return picture.width * picture.height

    @contextmanager
    def _opened(self, row: int) -> Iterator[Image.Image]:
        # a file is only decoded when its pixels are asked for, so what fails inside the block is the file's fault too
        path = self.root / self.paths[row]
        refuse_special(path)
        try:
            with Image.open(path, formats=_FORMATS) as picture:
                yield picture
        except _UNREADABLE as error:
            raise UsageError(
                f"cannot read the image {path}: {_reason(error)}. Replace or remove that file; "
                "`vitadel data check --json` lists every such file."
            ) from error

    def take(self, rows: Tensor) -> "Files":
        return Files(self.root, tuple(self.paths[row] for row in rows.tolist()), self.preprocess)


def threads(area: int | None = None) -> int:
    """How many threads decode pictures of so many pixels at once, or of any size.

    Around the decoding itself a thread holds the interpreter, for about as long as 100 x 100 pixels take: of pictures
    that small, several threads read fewer than one does.
    """
    most = min(16, os.cpu_count() or 1)
    return most if area is None else max(1, min(most, area >> 14))


def _picture(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "not an image file" if isinstance(error, UnidentifiedImageError) else str(error).rstrip(".")
