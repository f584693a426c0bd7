"""Accuracy under the corruptions of ImageNet-C: made here, or read from the files their authors released.

Nineteen corruptions at five severities (Hendrycks & Dietterich 2019, arXiv:1903.12261): fifteen make the 75 cells of
the benchmark, four more the 95 that some papers average over. What changes the numbers is kept beside them: whether
the images were made or read, the table of severities, the round trip through JPEG that the released files went
through (`jpeg=85`), whose frost it was. mCE divides by AlexNet's errors, corruption by corruption and by name; they are
known for ImageNet's fifteen at all five severities, and without them there is no mCE.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitadel.attacks import Flag
from vitadel.core.errors import UsageError, unknown
from vitadel.core.numeric import check_ranges
from vitadel.core.stats import ALEXNET_CLEAN_ERROR, ALEXNET_ERRORS, Accuracy, accuracy
from vitadel.data import CorruptedRelease, DataSet, open_released, wnids
from vitadel.evaluate.suites.base import Desk, Outcome, share_of
from vitadel.evaluate.suites.pictures import picture
from vitadel.runs.exhibits import Bar, Bars, Exhibit, Heat, Matrix, Picture, Pictures, Table
from vitadel.runs.schema import Measure
from vitadel.shifts import CORRUPTIONS, GROUPS, SEVERITIES, TABLES, Corruption, Quality, Severity

_SMALLEST = 16
_CLEAN = "clean"
_UNREAD = -1  # the prediction on a file that could not be read
_COLUMNS = 5  # of the pictures shown
_SHOWN_SEVERITY = 3
_Z = 1.96  # of a normal 95% interval

Cell = tuple[str, int]
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Corruptions:
    """Accuracy under each corruption at each severity, their means, and mCE where it is defined.

    `names` are the corruptions, all if none is named; `extra=false` leaves out the four beyond the fifteen. `table` is
    `imagenet` or `cifar`, by the size of the images if not said. `jpeg=85` adds the round trip of the released files.
    `frost` is a folder of photographs for the frost, which is procedural otherwise and then not ImageNet-C's. `files`
    is the folder of ImageNet-C, CIFAR-10-C or CIFAR-100-C to read instead of making the images; with `skip=true` files
    of it that cannot be read are left out and counted.
    """

    name: ClassVar[str] = "corruptions"
    title: ClassVar[str] = "Corruptions"
    about: ClassVar[str] = "accuracy under the 19 corruptions of ImageNet-C at 5 severities, and mCE"
    needs_threat: ClassVar[bool] = False

    names: tuple[str, ...] = ()
    severities: tuple[Severity, ...] = SEVERITIES
    extra: bool = True
    table: str | None = None
    jpeg: Quality | None = None
    frost: str | None = None
    files: str | None = None
    skip: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in self.names:
            if name not in CORRUPTIONS:
                raise unknown("corruption", name, CORRUPTIONS)
        if not self.severities:
            raise UsageError(f"severities are some of 1 2 3 4 5, got {self.severities}. Write severities=1+3.")
        if self.table is not None and self.table not in TABLES:
            raise unknown("table of severities", self.table, TABLES)
        if self.files is not None and (self.table or self.jpeg or self.frost):
            raise UsageError("the images in files= are corrupted already. Leave table, jpeg and frost out.")
        if self.skip and self.files is None:
            raise UsageError("skip=true is about files=, and none are named. Leave it out, or say --skip-unreadable.")
        if not self.cells:
            raise UsageError(f"extra=false leaves nothing of {', '.join(self.names)}. Leave it out.")
        for _ in self._made():  # each refuses settings that make no sense
            pass

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Corruption and severity of every cell, in the order of the benchmark."""
        chosen = self.names or tuple(CORRUPTIONS)
        names = [name for name, kind in CORRUPTIONS.items() if name in chosen and (self.extra or kind.group != "extra")]
        return tuple((name, severity) for name in names for severity in sorted(set(self.severities)))

    def refuse(self, model: nn.Module, data: DataSet, split: str) -> None:
        images = data.split(split)
        if min(images.pixels.image_size) < _SMALLEST:
            raise UsageError(
                f"corruptions need images of at least {_SMALLEST} px a side, got {images.pixels.image_size[0]}. "
                "Use a model for larger images."
            )
        if (released := self._released(data, split)) is not None:
            for cell in self.cells:
                released.cell(*cell)

    def named_files(self, data: DataSet, split: str) -> dict[str, str]:
        found: dict[str, str] = {}
        if (released := self._released(data, split)) is not None:
            marks = [released.mark(*cell) for cell in self.cells]
            found["files"] = hashlib.sha256("".join(marks).encode()).hexdigest()
        icy = next((one for one in self._made() if one.frost is not None), None)
        if icy is not None:
            found["frost"] = str(icy.describe(*data.split(split).pixels.image_size)["frost_sha256"])
        return found

    def look(self, desk: Desk) -> None:
        """Every image as it is and in every cell; an image is decoded once for all cells that are made here."""
        sheets = [desk.sheet(_CLEAN), *(desk.sheet(_page(cell)) for cell in self.cells)]
        share = desk.share
        todo = sorted({row for sheet in sheets for row in sheet.missing(share)})
        missing = sum(len(sheet.missing(share)) for sheet in sheets)
        tell = desk.meter(len(share) * len(sheets), len(share) * len(sheets) - missing)
        works = [desk.classify, *(self._work(desk, corruption) for corruption in self._made())]
        released = self._released(desk.data, desk.images.name)
        readers: list[Callable[[Tensor], Tensor] | None] = [None] * len(sheets)
        if released is not None:
            readers[1:] = [self._reader(desk, released, cell) for cell in self.cells]
            works[1:] = [lambda rows, x: _predictions(desk, rows, x)] * len(self.cells)
        for rows, fetch in desk.portions(todo):
            for sheet, work, reader in zip(sheets, works, readers, strict=True):
                sheet.fill(rows, reader or fetch, work, batch=desk.batch, tell=tell)

    def conclude(self, desk: Desk) -> Outcome:
        labels = np.array(desk.images.labels.tolist())
        clean = np.array(desk.answers(_CLEAN))
        predictions = np.stack([desk.answers(_page(cell)) for cell in self.cells], 1)
        right = np.where(predictions == _UNREAD, np.nan, predictions == labels[:, None])
        self._refuse_unread(right)
        table = _Table(self.cells, right, (clean == labels).astype(np.float64))
        measures = self._measures(desk, table)
        main = next(measure for measure in measures if measure.main)
        shares = _row_means(right[:, table.places(table.common or self.cells)])
        return Outcome(
            columns={
                "clean_prediction": clean.tolist(),
                "right": shares.tolist(),
                "predictions": predictions.tolist(),
            },
            clean=accuracy(int(table.clean.sum()), len(labels)),
            measures=measures,
            sentence=_sentence(table, main, measures),
            conventions=self._conventions(desk, table),
            exhibits=self._exhibits(desk, table),
            flags=_unread_flags(right),
        )

    def _refuse_unread(self, right: Numbers) -> None:
        """A cell none of whose files could be read has no accuracy, and a mean without it is another number."""
        unread = [
            f"{name}/{severity}"
            for (name, severity), known in zip(self.cells, right.T, strict=True)
            if np.isnan(known).all()
        ]
        if unread:
            raise UsageError(
                f"not one file of {', '.join(unread)} in {self.files} can be read, so there is nothing to score there. "
                "Unpack them again, or leave them out with names= or severities= and choose a new --run."
            )

    # ------------------------------------------------------------------ cells

    def _made(self) -> Iterator[Corruption]:
        frost = None if self.frost is None else Path(self.frost).expanduser()
        for name, severity in self.cells:
            yield Corruption(name, severity, self.table, self.jpeg, frost if name == "frost" else None)

    def _work(self, desk: Desk, corruption: Corruption) -> Callable[[Tensor, Tensor], dict[str, list[object]]]:
        return lambda rows, x: desk.classify(rows, corruption(x, rows, seed=desk.seed))

    def _released(self, data: DataSet, split: str) -> CorruptedRelease | None:
        if self.files is None:
            return None
        return open_released(Path(self.files).expanduser(), data.split(split), data.preprocess)

    def _reader(self, desk: Desk, released: CorruptedRelease, cell: Cell) -> Callable[[Tensor], Tensor]:
        images = released.cell(*cell)

        def read(rows: Tensor) -> Tensor:
            try:
                return images.images(rows).to(desk.device)
            except UsageError:
                if not self.skip:
                    raise
            if len(rows) == 1:  # no image has such pixels
                return torch.full((1, 3, *desk.size), torch.nan, device=desk.device)
            return torch.cat([read(one) for one in rows.split(1)])

        return read

    # ---------------------------------------------------------------- numbers

    def _measures(self, desk: Desk, table: "_Table") -> list[Measure]:
        common, everything = table.common, self.cells
        main = common or everything
        found = [Measure.of(f"mean over {len(main)} cells", table.mean(main), main=True)]
        if common and len(everything) > len(common):
            found.append(Measure.of(f"mean over {len(everything)} cells", table.mean(everything)))
        for group in GROUPS:
            if cells := table.of_group(group):
                found.append(Measure.of(group, table.mean(cells)))
        if self._undefined(desk) is None:
            found += table.corruption_errors()
        return found

    def _undefined(self, desk: Desk) -> str | None:
        """Why there is no mCE, if there is none."""
        if desk.data.classes != wnids():
            return "undefined: AlexNet's errors are known for the 1000 classes of ImageNet only"
        if self.files is None and Corruption(*self.cells[0], self.table).table_for(*desk.size) != "imagenet":
            return "undefined: AlexNet's errors are those on ImageNet's table of severities"
        if not {(name, severity) for name in ALEXNET_ERRORS for severity in SEVERITIES} <= set(self.cells):
            return "undefined: it takes all fifteen corruptions at all five severities"
        return None

    def _conventions(self, desk: Desk, table: "_Table") -> dict[str, object]:
        mce = self._undefined(desk) or "normalized by AlexNet's errors, fifteen corruptions by name"
        told: dict[str, object] = {"cells": len(self.cells), "mCE": mce}
        released = self._released(desk.data, desk.images.name)
        if released is not None:
            return {"source": released.about, **told}
        first = next(self._made())
        if any(name == "frost" for name, _ in self.cells):
            told["frost"] = "procedural, not ImageNet-C's" if self.frost is None else "photographs in a folder"
        return {"source": "made here", "table": first.table_for(*desk.size), "jpeg": self.jpeg or "none", **told}

    # --------------------------------------------------------------- exhibits

    def _exhibits(self, desk: Desk, table: "_Table") -> list[Exhibit]:
        groups = [group for group in GROUPS if table.of_group(group)]
        shares = [table.mean(table.of_group(group)) for group in groups]
        bars = Bar("accuracy", *([getattr(s, what) for s in shares] for what in ("accuracy", "low", "high")))
        severities = sorted(set(self.severities))
        grid = Matrix("accuracy", [[table.mean([(n, s)]).accuracy for s in severities] for n in table.names])
        clean = float(table.clean.mean())
        return [
            Heat(
                "Accuracy per corruption and severity",
                f"On {len(table.clean)} images; {clean:.1%} of them as they are.",
                [grid],
                "accuracy",
                "corruption",
                "severity",
                table.names,
                [str(severity) for severity in severities],
                low=0.0,
                high=1.0,
                digits=2,
            ),
            Bars(
                "Accuracy per group of corruptions",
                "Means over corruptions and severities of a group, with 95% intervals over images.",
                groups,
                [bars],
                "accuracy",
                (0.0, 1.0),
                [("as they are", clean)],
            ),
            self._numbers(desk, table),
            self._strip(desk, table),
        ]

    def _numbers(self, desk: Desk, table: "_Table") -> Table:
        rows = []
        for name in table.names:
            mean = table.mean(table.of_name(name))
            shares = [100 * one for one in (mean.accuracy, mean.low, mean.high)]
            row: list[str | float | None] = [name, CORRUPTIONS[name].group, *shares]
            with_base = self._undefined(desk) is None and name in ALEXNET_ERRORS
            rows.append([*row, 100 * (1 - mean.accuracy) / ALEXNET_ERRORS[name] if with_base else None])
        caption = "Means over severities. CE is the error in percent of AlexNet's, where that is known."
        columns = ["corruption", "group", "accuracy, %", "low", "high", "CE"]
        return Table("Accuracy per corruption", caption, columns, rows, digits=1)

    def _strip(self, desk: Desk, table: "_Table") -> Pictures:
        """The first image as it is and in every corruption at one severity."""
        severities = sorted(set(self.severities))
        severity = _SHOWN_SEVERITY if _SHOWN_SEVERITY in severities else severities[len(severities) // 2]
        row = torch.zeros(1, dtype=torch.int64)
        x = desk.images.images(row)
        cells: list[Picture | None] = [picture(x[0], "as it is")]
        released = self._released(desk.data, desk.images.name)
        for cell, corruption in zip(self.cells, self._made(), strict=True):
            if cell[1] == severity:
                read = None if released is None else self._reader(desk, released, cell)
                looks = corruption(x, row, seed=desk.seed) if read is None else read(row)
                note = f"{cell[0]}: {table.mean([cell]).accuracy:.1%} right"
                cells.append(picture(looks[0], note) if bool(looks.isfinite().all()) else None)
        cells += [None] * (-len(cells) % _COLUMNS)
        rows = [cells[at : at + _COLUMNS] for at in range(0, len(cells), _COLUMNS)]
        caption = f"The first image of the data set at severity {severity}, and the accuracy of that cell on all."
        return Pictures("What the corruptions look like", caption, rows)


@dataclass(frozen=True, slots=True)
class _Table:
    """Verdicts: [n, cells] 0, 1 or NaN where a file could not be read, and [n] on the clean images."""

    cells: tuple[Cell, ...]
    right: Numbers
    clean: Numbers

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.cells))

    @property
    def common(self) -> tuple[Cell, ...]:
        """The cells that are not extra."""
        return tuple(cell for cell in self.cells if CORRUPTIONS[cell[0]].group != "extra")

    def of_group(self, group: str) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if CORRUPTIONS[cell[0]].group == group)

    def of_name(self, name: str) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if cell[0] == name)

    def places(self, cells: Sequence[Cell]) -> list[int]:
        return [self.cells.index(cell) for cell in cells]

    def mean(self, cells: Sequence[Cell]) -> Accuracy:
        """The mean over some cells, with its interval over images."""
        shares = _row_means(self.right[:, self.places(cells)])
        return share_of(shares[~np.isnan(shares)].tolist())

    def corruption_errors(self) -> list[Measure]:
        """mCE and its relative, in percent; both are means over images, so their intervals are too."""
        plain, relative = np.zeros(len(self.clean)), np.zeros(len(self.clean))
        for name, base in ALEXNET_ERRORS.items():
            error = 1 - _row_means(self.right[:, self.places(self.of_name(name))])
            plain += error / base / len(ALEXNET_ERRORS)
            relative += (error - (1 - self.clean)) / (base - ALEXNET_CLEAN_ERROR) / len(ALEXNET_ERRORS)
        return [_of_alexnet("mCE", plain), _of_alexnet("relative mCE", relative)]


def _of_alexnet(name: str, values: Numbers) -> Measure:
    known = values[~np.isnan(values)]
    spread = float(known.std(ddof=1)) if len(known) > 1 else 0.0
    mean, reach = float(known.mean()), _Z * spread / math.sqrt(len(known))
    return Measure(name, 100 * mean, 100 * (mean - reach), 100 * (mean + reach), len(known), "mCE", False)


def _predictions(desk: Desk, rows: Tensor, x: Tensor) -> dict[str, list[object]]:
    """Answers about files, and a mark where one could not be read."""
    read_B = x.flatten(1).isfinite().all(1).cpu()
    said = torch.full((len(x),), _UNREAD)
    if bool(read_B.any()):
        said[read_B] = desk.answer(x[read_B.to(x.device)], rows[read_B]).argmax(1)
    return {"prediction": list(said.tolist())}


def _unread_flags(right: Numbers) -> list[Flag]:
    unread = int(np.isnan(right).sum())
    if not unread:
        return []
    sentence = f"{unread} of {right.size} corrupted files could not be read and were skipped on request"
    return [Flag("files-skipped", sentence, {"files": unread, "of": right.size})]


def _sentence(table: _Table, main: Measure, measures: Sequence[Measure]) -> str:
    worst = min(table.cells, key=lambda cell: table.mean([cell]).accuracy)
    mce = next((f" mCE is {one.value:.1f}." for one in measures if one.name == "mCE"), "")
    return (
        f"{table.clean.mean():.1%} of {len(table.clean)} images are right as they are, {main.value:.1%} in the "
        f"{main.name}; {worst[0]} at severity {worst[1]} is the worst with {table.mean([worst]).accuracy:.1%}.{mce}"
    )


def _page(cell: Cell) -> str:
    return f"{cell[0]}-{cell[1]}"


def _row_means(right: Numbers) -> Numbers:
    """The share of cells per image, NaN if it has none."""
    known = ~np.isnan(right)
    counts = known.sum(1)
    sums = np.where(known, right, 0.0).sum(1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
