"""Exhibits: figures and tables of a study or a suite as plain data, which reports draw.

An exhibit says what is to be seen and how it was obtained, and nothing about how it is drawn. Studies and suites make
them, `vitadel.runs.schema` stores them with the results, the report reads the same classes. Numbers are plain numbers;
None, or one that is not finite, is a gap.

    Lines("Accuracy and steps", "PGD on 200 images.", [Line("PGD", [10, 20, 50], [0.4, 0.38, 0.37])], "steps", "share")
"""

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitadel.core.errors import UsageError
from vitadel.core.stats import Accuracy

Numbers = Sequence[float | None]
Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Line:
    """One series; `low` and `high` make a band around it. Lines of one `color` share it, others have their own."""

    name: str
    x: Numbers
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    dashed: bool = False
    color: int | None = None

    @classmethod
    def of(cls, name: str, x: Numbers, shares: Sequence[Accuracy | None]) -> "Line":
        """Accuracies with their intervals; None if missing."""
        y, low, high = _with_ends(shares)
        return cls(name, x, y, low, high)

    def __post_init__(self) -> None:
        _same_length(f"Line {self.name!r}", len(self.x), y=self.y, low=self.low or self.x, high=self.high or self.x)


@dataclass(frozen=True, slots=True)
class Lines:
    """Series over one axis; `references` are horizontal lines with names."""

    kind: ClassVar[str] = "lines"
    version: ClassVar[int] = 1

    title: str
    caption: str
    lines: Sequence[Line]
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    y_range: tuple[float, float] | None = None
    references: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of numbers under a name."""

    name: str
    values: Sequence[Numbers]


@dataclass(frozen=True, slots=True)
class Heatmap:
    """Matrices side by side under one scale of colors.

    The scale goes from `low` to `high`, from the least to the greatest value if they are left out; with a `center` it
    is blue below and red above. `digits` prints every value into its cell with this many decimals.
    """

    kind: ClassVar[str] = "heat"
    version: ClassVar[int] = 1

    title: str
    caption: str
    matrices: Sequence[Matrix]
    value_label: str
    row_label: str = ""
    column_label: str = ""
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    low: float | None = None
    high: float | None = None
    center: float | None = None
    digits: int | None = None

    def __post_init__(self) -> None:
        _not_empty("Heatmap", matrices=self.matrices)
        for matrix in self.matrices:
            _not_empty(f"Matrix {matrix.name!r}", rows=matrix.values)
            columns = self.columns or (matrix.values[0] if matrix.values else ())
            _same_length(f"Matrix {matrix.name!r}", len(self.rows or matrix.values), rows=matrix.values)
            for row in matrix.values:
                _same_length(f"Matrix {matrix.name!r}", len(columns), row=row)


class Scale(enum.Enum):
    """The colors of a map over a picture: blue, white in the middle, red; or the stronger the higher."""

    DIVERGING = "diverging"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A picture, a map [h, w] of any other size over it, or both; `Picture.of` makes one from an image tensor.

    Args:
        pixels: Bytes [H, W] or [H, W, 3].
        overlay: The map, drawn over the pixels with the colors of `Pictures.scale`.
        note: A few words below the picture.
    """

    pixels: NDArray[np.uint8] | None
    overlay: NDArray[np.float32] | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.pixels is None and self.overlay is None:
            raise UsageError("a Picture has neither pixels nor a map. Where there is none, write None in its place.")
        if self.pixels is not None:
            pixels = np.asarray(self.pixels)
            if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)):
                raise UsageError(
                    f"Picture.pixels are bytes [H, W] or [H, W, 3], got {pixels.dtype} of {list(pixels.shape)}. "
                    "Write Picture.of(image) for an image [3, H, W] with pixels in [0, 1]."
                )
            object.__setattr__(self, "pixels", pixels)
        if self.overlay is not None:
            overlay = np.asarray(self.overlay)
            if overlay.ndim != 2:
                raise UsageError(f"Picture.overlay is a map [h, w], got {list(overlay.shape)}. Pass one map.")
            object.__setattr__(self, "overlay", overlay.astype(np.float32))

    @classmethod
    def of(cls, image: ArrayLike, overlay: ArrayLike | None = None, note: str = "") -> "Picture":
        """A picture of an image [1 or 3, H, W] with pixels in [0, 1]."""
        levels = np.rint(255 * np.clip(np.asarray(image, np.float64), 0, 1)).astype(np.uint8)
        pixels = levels[0] if len(levels) == 1 else levels.transpose(1, 2, 0)
        return cls(pixels, None if overlay is None else np.asarray(overlay, np.float32), note)


@dataclass(frozen=True, slots=True)
class Pictures:
    """A grid of pictures, with None for empty cells; `low` and `high` are the ends of the scale of their maps."""

    kind: ClassVar[str] = "pictures"
    version: ClassVar[int] = 1

    title: str
    caption: str
    cells: Sequence[Sequence[Picture | None]]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    scale: Scale = Scale.DIVERGING
    scale_label: str = ""
    low: float = 0.0
    high: float = 1.0

    @classmethod
    def grid(cls, title: str, caption: str, pictures: Sequence[Picture | None], columns: int = 5) -> "Pictures":
        """Pictures in reading order, with a given number per row."""
        padded = [*pictures, *[None] * (-len(pictures) % columns)]
        return cls(title, caption, [padded[first : first + columns] for first in range(0, len(padded), columns)])

    def __post_init__(self) -> None:
        _not_empty("Pictures", rows=self.cells)
        _same_length("Pictures", len(self.rows or self.cells), rows=self.cells)
        for row in self.cells:
            _same_length("Pictures", len(self.columns or self.cells[0]), columns=row)


@dataclass(frozen=True, slots=True)
class Bar:
    """One value per group, with the ends of its error bar if there are any."""

    name: str
    values: Numbers
    low: Numbers = ()
    high: Numbers = ()

    @classmethod
    def of(cls, name: str, shares: Sequence[Accuracy | None]) -> "Bar":
        """Accuracies with their intervals; None if missing."""
        values, low, high = _with_ends(shares)
        return cls(name, values, low, high)


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars in groups, one color per name."""

    kind: ClassVar[str] = "bars"
    version: ClassVar[int] = 1

    title: str
    caption: str
    groups: Sequence[str]
    bars: Sequence[Bar]
    y_label: str
    y_range: tuple[float, float] | None = None
    references: Sequence[tuple[str, float]] = ()

    def __post_init__(self) -> None:
        for bar in self.bars:
            low, high = bar.low or self.groups, bar.high or self.groups
            _same_length(f"Bar {bar.name!r}", len(self.groups), values=bar.values, low=low, high=high)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of words and numbers; whole numbers stay whole, others get `digits` decimals."""

    kind: ClassVar[str] = "table"
    version: ClassVar[int] = 1

    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    digits: int = 3

    def __post_init__(self) -> None:
        for row in self.rows:
            _same_length(f"Table {self.title!r}", len(self.columns), row=row)

    @property
    def text_rows(self) -> list[list[str]]:
        """The rows as text, a dash for None."""
        return [[self._text(cell) for cell in row] for row in self.rows]

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers."""
        return [
            bool(self.rows) and not any(isinstance(row[number], str) for row in self.rows)
            for number in range(len(self.columns))
        ]

    def _text(self, cell: Cell) -> str:
        if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
            return "\N{EN DASH}"
        return f"{cell:.{self.digits}f}" if isinstance(cell, float) else str(cell)


@dataclass(frozen=True, slots=True)
class Histogram:
    """One panel of `Histograms`: its name, and the share of every bin for each series."""

    name: str
    shares: Sequence[Numbers]


@dataclass(frozen=True, slots=True)
class Histograms:
    """Histograms side by side over the same bins, each of the same series: the first filled, the others outlined.

    Args:
        title: What is shown.
        caption: How it was obtained, and how to read it.
        panels: The histograms.
        series: The names of the series.
        edges: The edges of the bins, one more than there are bins.
        x_label: What the bins are of.
        y_label: What the shares are of.
        log_x: Whether the bins lie on a logarithmic axis.
        references: Vertical lines with names; those of one name are drawn in the same style.
    """

    kind: ClassVar[str] = "histograms"
    version: ClassVar[int] = 1

    title: str
    caption: str
    panels: Sequence[Histogram]
    series: Sequence[str]
    edges: Sequence[float]
    x_label: str
    y_label: str
    log_x: bool = False
    references: Sequence[tuple[str, float]] = ()

    def __post_init__(self) -> None:
        for panel in self.panels:
            _same_length(f"Histogram {panel.name!r}", len(self.series), series=panel.shares)
            for shares in panel.shares:
                _same_length(f"Histogram {panel.name!r}", len(self.edges) - 1, shares=shares)


Exhibit = Lines | Heatmap | Pictures | Bars | Table | Histograms


def _not_empty(what: str, **parts: Sequence[object]) -> None:
    for name, part in parts.items():
        if not len(part):
            raise UsageError(f"{what} has no {name}. Give at least one, or leave it out.")


def _with_ends(shares: Sequence[Accuracy | None]) -> Iterator[list[float | None]]:
    for end in ("accuracy", "low", "high"):
        yield [None if share is None else getattr(share, end) for share in shares]


def _same_length(what: str, wanted: int, **parts: Sequence[object]) -> None:
    for name, part in parts.items():
        if len(part) != wanted:
            raise UsageError(f"{what} needs {wanted} {name}, got {len(part)}. Give one for each.")
