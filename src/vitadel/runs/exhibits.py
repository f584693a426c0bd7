"""What a run shows: plain data that says what is to be seen and how it came about, and nothing of how it is drawn.

    parts.close(findings("gates", "Gates", "Robustness wins late.", [Lines(...), Table(...)], {"share": [...]}))

The report reads exhibits from `study/result.json`: each carries its kind and a version. Numbers are plain numbers; one
that is not finite is a gap. Pictures are arrays, or anything numpy takes for one, stored byte by byte.
"""

import base64
import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitadel.core.errors import UsageError

Numbers = Sequence[float | None]
Cell = str | float | None

_VERSION = 1


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

    def __post_init__(self) -> None:
        _same_length(f"Line {self.name!r}", len(self.x), y=self.y, low=self.low or self.x, high=self.high or self.x)


@dataclass(frozen=True, slots=True)
class Lines:
    """Series over one axis; `references` are horizontal lines with names."""

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
class Heat:
    """Matrices side by side under one scale of colors.

    The scale goes from `low` to `high`, from the least to the greatest value if they are left out; with a `center` it
    is blue below and red above. `digits` prints every value into its cell with so many decimals.
    """

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
        for matrix in self.matrices:
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
    """Bytes [H, W] or [H, W, 3], and over them a map [h, w] of any other size; one of them may be missing."""

    pixels: ArrayLike | None
    overlay: ArrayLike | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.pixels is None and self.overlay is None:
            raise UsageError("a Picture has neither pixels nor a map. Where there is none, write None in its place.")
        if self.pixels is not None:
            pixels = np.asarray(self.pixels)
            if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
                raise UsageError(
                    f"Picture.pixels are bytes [H, W] or [H, W, 3], got {pixels.dtype} of {list(pixels.shape)}. "
                    "Picture.of takes an image [3, H, W] with pixels in [0, 1]."
                )
        if self.overlay is not None and len(shape := np.shape(self.overlay)) != 2:
            raise UsageError(f"Picture.overlay is a map [h, w], got {list(shape)}.")

    @classmethod
    def of(cls, image: ArrayLike, overlay: ArrayLike | None = None, note: str = "") -> "Picture":
        """A picture of an image [1 or 3, H, W] with pixels in [0, 1]."""
        levels = np.rint(255 * np.clip(np.asarray(image, np.float64), 0, 1)).astype(np.uint8)
        return cls(levels[0] if len(levels) == 1 else levels.transpose(1, 2, 0), overlay, note)


@dataclass(frozen=True, slots=True)
class Pictures:
    """A grid of pictures, None where there is none; `low` and `high` are the ends of the scale of their maps."""

    title: str
    caption: str
    cells: Sequence[Sequence[Picture | None]]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    scale: Scale = Scale.DIVERGING
    scale_label: str = ""
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
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


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars in groups, one color per name."""

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

    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    digits: int = 3

    def __post_init__(self) -> None:
        for row in self.rows:
            _same_length(f"Table {self.title!r}", len(self.columns), row=row)


Exhibit = Lines | Heat | Pictures | Bars | Table


def findings(
    study: str, title: str, summary: str, exhibits: Sequence[Exhibit], numbers: Mapping[str, object]
) -> dict[str, object]:
    """The result of a study as plain JSON: the main finding in a sentence or two, the exhibits, and its raw numbers."""
    ours = {"study": study, "title": title, "summary": summary, "exhibits": shown(exhibits)}
    assert not ours.keys() & numbers.keys(), f"a study's own numbers may not be called {', '.join(ours)}"
    plain = {key: _plain(value) for key, value in numbers.items()}
    return {"study": study, "title": title, "summary": summary, **plain, "exhibits": ours["exhibits"]}


def shown(exhibits: Sequence[Exhibit]) -> list[dict[str, object]]:
    """Exhibits as plain JSON, each with its kind and version."""
    return [{"kind": type(one).__name__.lower(), "version": _VERSION, **_fields(one)} for one in exhibits]


def _fields(value: object) -> dict[str, object]:
    return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}  # type: ignore[arg-type]


def _plain(value: object) -> object:
    if isinstance(value, Picture):
        pixels, overlay = (None if one is None else np.asarray(one) for one in (value.pixels, value.overlay))
        return {
            "pixels": None if pixels is None else _packed(pixels),
            "overlay": None if overlay is None else _packed(overlay.astype(np.float32)),
            "note": value.note,
        }
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    return _fields(value) if dataclasses.is_dataclass(value) else value


def _packed(values: NDArray[np.generic]) -> dict[str, object]:
    text = base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
    return {"dtype": str(values.dtype), "shape": list(values.shape), "base64": text}


def _same_length(what: str, wanted: int, **parts: Sequence[object]) -> None:
    for name, part in parts.items():
        if len(part) != wanted:
            raise UsageError(f"{what} wants {wanted} {name}, got {len(part)}. Give one for each.")
