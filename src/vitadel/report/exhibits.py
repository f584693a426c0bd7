"""What a study or a survey shows, read and checked: the same exhibits as `vitadel.runs.exhibits` describes."""

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vitadel.core.errors import UsageError, unknown
from vitadel.report.json_fields import Told, flag, mapping, mappings, number, text, values, whole

_VERSION = 1
_DTYPES = ("uint8", "float32")

Floats = NDArray[np.float64]  # nan where there is a gap
Reference = tuple[str, float]
Range = tuple[float, float]
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A series; the band is empty if there is none."""

    name: str
    x: Floats
    y: Floats
    low: Floats
    high: Floats
    dashed: bool
    color: int | None


@dataclass(frozen=True, slots=True)
class Lines:
    """Series over one axis."""

    title: str
    caption: str
    lines: tuple[Line, ...]
    x_label: str
    y_label: str
    log_x: bool
    log_y: bool
    y_range: Range | None
    references: tuple[Reference, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Heat:
    """Named matrices under one scale of colors."""

    title: str
    caption: str
    matrices: tuple[tuple[str, Floats], ...]
    value_label: str
    row_label: str
    column_label: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    low: float | None
    high: float | None
    center: float | None
    digits: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """Pixels [H, W, 3], a map over them, or both."""

    pixels: NDArray[np.uint8] | None
    overlay: NDArray[np.float32] | None
    note: str


@dataclass(frozen=True, slots=True)
class Pictures:
    """A grid of pictures."""

    title: str
    caption: str
    cells: tuple[tuple[Picture | None, ...], ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    diverging: bool
    scale_label: str
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class Bar:
    """One value per group; the error bars are empty if there are none."""

    name: str
    values: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars in groups."""

    title: str
    caption: str
    groups: tuple[str, ...]
    bars: tuple[Bar, ...]
    y_label: str
    y_range: Range | None
    references: tuple[Reference, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are to be printed; `numeric` says of each column whether it holds numbers."""

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]


Exhibit = Lines | Heat | Pictures | Bars | Table


@dataclass(frozen=True, slots=True)
class Findings:
    """A finished study: which it is, the main finding, and what it shows."""

    study: str
    title: str
    summary: str
    exhibits: tuple[Exhibit, ...]

    @property
    def tables(self) -> list[Table]:
        return [one for one in self.exhibits if isinstance(one, Table)]


def findings(t: Told) -> Findings:
    """A finished study, from its result."""
    return Findings(text(t["study"]), text(t["title"]), text(t["summary"]), exhibits(t["exhibits"]))


def exhibits(value: object) -> tuple[Exhibit, ...]:
    """Whatever a study or a survey shows, in its order."""
    return tuple(_exhibit(one) for one in mappings(value) if one["kind"] != "histograms")


def alike(exhibits: Sequence[Exhibit]) -> list[Exhibit]:
    """The same exhibit of several runs with one range for all, so that the eye may compare them."""
    ranges = [_range(one) for one in exhibits]
    finite = [one for one in ranges if one is not None]
    if len(finite) < len(ranges) or len(finite) < 2:
        return list(exhibits)
    low, high = min(one[0] for one in finite), max(one[1] for one in finite)
    return [_ranged(one, low, high) for one in exhibits]


def _range(exhibit: Exhibit) -> Range | None:
    """Where an exhibit's values lie, or what it asked for; None if no range can be set for it."""
    if isinstance(exhibit, Pictures):
        return exhibit.low, exhibit.high
    if isinstance(exhibit, Heat):
        low, high = extent([matrix for _, matrix in exhibit.matrices])
        return (low if exhibit.low is None else exhibit.low), (high if exhibit.high is None else exhibit.high)
    if isinstance(exhibit, Lines):
        drawn = [part for line in exhibit.lines for part in (line.y, line.low, line.high)]
    elif isinstance(exhibit, Bars):
        drawn = [part for bar in exhibit.bars for part in (bar.values, bar.low, bar.high)]
    else:
        return None
    low, high = exhibit.y_range or extent([*drawn, np.array([at for _, at in exhibit.references])])
    return low, high


def _ranged(exhibit: Exhibit, low: float, high: float) -> Exhibit:
    if isinstance(exhibit, Heat | Pictures):
        return replace(exhibit, low=low, high=high)
    if isinstance(exhibit, Table) or exhibit.y_range == (low, high):
        return exhibit
    if isinstance(exhibit, Bars):
        room = 0.05 * (high - low)
        return replace(exhibit, y_range=(min(0.0, low - room * (low < 0)), high + room))
    if exhibit.log_y and low > 0:
        factor = (high / low) ** 0.05
        return replace(exhibit, y_range=(low / factor, high * factor))
    room = 0.05 * (high - low) or 0.05 * (abs(high) or 1.0)
    return replace(exhibit, y_range=(low - room, high + room))


def extent(parts: Sequence[NDArray[np.generic]]) -> Range:
    """The least and the greatest finite value; (0, 1) if there is none."""
    flat = np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in parts] or [np.empty(0)])
    finite = flat[np.isfinite(flat)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)


def _exhibit(t: Told) -> Exhibit:
    kind, version = text(t["kind"]), whole(t["version"])
    if kind not in _KINDS:
        raise unknown("kind of exhibit", kind, _KINDS)
    if version > _VERSION:
        raise UsageError(f"an exhibit has version {version}, and this Vitadel reads up to {_VERSION}. Update it.")
    return _KINDS[kind](t, text(t["title"]), text(t["caption"]))


def _lines(t: Told, title: str, caption: str) -> Lines:
    return Lines(
        title,
        caption,
        tuple(_line(one) for one in mappings(t["lines"])),
        text(t["x_label"]),
        text(t["y_label"]),
        flag(t["log_x"]),
        flag(t["log_y"]),
        _maybe(t["y_range"], _pair),
        tuple(_reference(one) for one in values(t["references"])),
    )


def _line(t: Told) -> Line:
    x = _floats(t["x"])
    y, low, high = _floats(t["y"], len(x)), _floats(t["low"], len(x), 0), _floats(t["high"], len(x), 0)
    return Line(text(t["name"]), x, y, low, high, flag(t["dashed"]), _maybe(t["color"], whole))


def _heat(t: Told, title: str, caption: str) -> Heat:
    rows, columns = _texts(t["rows"]), _texts(t["columns"])
    return Heat(
        title,
        caption,
        tuple((text(one["name"]), _matrix(one["values"], len(rows), len(columns))) for one in mappings(t["matrices"])),
        text(t["value_label"]),
        text(t["row_label"]),
        text(t["column_label"]),
        rows,
        columns,
        _maybe(t["low"], number),
        _maybe(t["high"], number),
        _maybe(t["center"], number),
        _maybe(t["digits"], whole),
    )


def _matrix(value: object, rows: int, columns: int) -> Floats:
    told = values(value)
    if not told or (rows and len(told) != rows):
        raise ValueError(f"a matrix of {rows or 'some'} rows was expected, got {len(told)}")
    width = columns or len(values(told[0]))
    return np.stack([_floats(row, width) for row in told])


def _pictures(t: Told, title: str, caption: str) -> Pictures:
    rows, columns, scale = _texts(t["rows"]), _texts(t["columns"]), text(t["scale"])
    if scale not in ("diverging", "sequential"):
        raise unknown("scale", scale, ("diverging", "sequential"))
    cells = tuple(tuple(_maybe(one, _picture) for one in values(row)) for row in values(t["cells"]))
    widths = {len(row) for row in cells} | ({len(columns)} if columns else set())
    if not cells or len(widths) != 1 or (rows and len(rows) != len(cells)):
        raise ValueError("the cells of a grid of pictures do not fit its labels")
    low, high = number(t["low"]), number(t["high"])
    return Pictures(title, caption, cells, rows, columns, scale == "diverging", text(t["scale_label"]), low, high)


def _picture(value: object) -> Picture:
    t = mapping(value)
    pixels, overlay = _maybe(t["pixels"], _pixels), _maybe(t["overlay"], _overlay)
    if pixels is None and overlay is None:
        raise ValueError("a picture has neither pixels nor a map")
    return Picture(pixels, overlay, text(t["note"]))


def _pixels(value: object) -> NDArray[np.uint8]:
    pixels = _array(value)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)):
        raise ValueError(f"a picture should be bytes [H, W] or [H, W, 3], got {pixels.dtype} of {pixels.shape}")
    return (np.repeat(pixels[:, :, None], 3, 2) if pixels.ndim == 2 else pixels).astype(np.uint8)


def _overlay(value: object) -> NDArray[np.float32]:
    overlay = _array(value)
    if overlay.ndim != 2:
        raise ValueError(f"a map over a picture should be [h, w], got {overlay.shape}")
    return overlay.astype(np.float32)


def _bars(t: Told, title: str, caption: str) -> Bars:
    groups = _texts(t["groups"])
    return Bars(
        title,
        caption,
        groups,
        tuple(_bar(one, len(groups)) for one in mappings(t["bars"])),
        text(t["y_label"]),
        _maybe(t["y_range"], _pair),
        tuple(_reference(one) for one in values(t["references"])),
    )


def _bar(t: Told, n: int) -> Bar:
    return Bar(text(t["name"]), _floats(t["values"], n), _floats(t["low"], n, 0), _floats(t["high"], n, 0))


def _table(t: Told, title: str, caption: str) -> Table:
    columns, digits = _texts(t["columns"]), whole(t["digits"])
    told = [values(row) for row in values(t["rows"])]
    if any(len(row) != len(columns) for row in told):
        raise ValueError(f"every row of the table {title!r} should have {len(columns)} cells")
    numeric = tuple(
        bool(told) and all(isinstance(row[at], int | float) or row[at] is None for row in told)
        for at in range(len(columns))
    )
    rows = tuple(tuple(_cell(cell, digits) for cell in row) for row in told)
    return Table(title, caption, columns, rows, numeric)


def _cell(value: object, digits: int) -> str:
    if value is None:
        return "\N{EN DASH}"
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


_KINDS: dict[str, Callable[[Told, str, str], Exhibit]] = {
    "lines": _lines,
    "heat": _heat,
    "pictures": _pictures,
    "bars": _bars,
    "table": _table,
}


def _floats(value: object, *lengths: int) -> Floats:
    told = values(value)
    if lengths and len(told) not in lengths:
        raise ValueError(f"{lengths[0]} numbers were expected, got {len(told)}")
    return np.array([math.nan if one is None else number(one) for one in told], dtype=np.float64)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(text(one) for one in values(value))


def _pair(value: object) -> Range:
    low, high = (number(one) for one in values(value))
    return low, high


def _reference(value: object) -> Reference:
    name, at = values(value)
    return text(name), number(at)


def _maybe(value: object, read: Callable[[object], Read]) -> Read | None:
    return None if value is None else read(value)


def _array(value: object) -> NDArray[np.generic]:
    t = mapping(value)
    kind, shape = text(t["dtype"]), [whole(side) for side in values(t["shape"])]
    if kind not in _DTYPES:
        raise unknown("dtype", kind, _DTYPES)
    return np.frombuffer(base64.b64decode(text(t["base64"]), validate=True), dtype=kind).reshape(shape)
