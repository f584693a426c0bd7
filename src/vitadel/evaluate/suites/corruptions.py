"""Accuracy under the corruptions of ImageNet-C: computed by vitadel, or read from the released files.

Nineteen corruptions at five severities (Hendrycks & Dietterich 2019, arXiv:1903.12261): fifteen make the 75 cells of
the benchmark; with four extra ones there are 95, over which some papers average. Everything that changes the numbers is
recorded: whether images were computed or read, the table of severities, the JPEG compression that the released files
went through (`jpeg=85`), and the source of the frost. mCE divides by AlexNet's error for each corruption. These errors
are known for ImageNet's fifteen corruptions at all five severities; otherwise there is no mCE.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.core.flags import Flag
from vitadel.core.numeric import check_ranges
from vitadel.core.stats import (
    ALEXNET_ERRORS,
    Accuracy,
    accuracy_of,
    mean_corruption_error,
    mean_interval,
    relative_mean_corruption_error,
)
from vitadel.data import CorruptedRelease, DataSet, Split, open_released, wnids
from vitadel.evaluate.context import Batch, Context, Work
from vitadel.evaluate.suites.base import suite_record
from vitadel.evaluate.suites.pictures import picture
from vitadel.runs.exhibits import Bar, Bars, Cell, Exhibit, Heatmap, Matrix, Picture, Pictures, Table
from vitadel.runs.schema import Measure, SuiteRecord
from vitadel.shifts import CORRUPTIONS, GROUPS, SEVERITIES, TABLES, Corruption, Quality, Severity

_SMALLEST = 16
_CLEAN = "clean"
_UNREADABLE = -1  # the prediction on a file that cannot be read
_SHOWN_SEVERITY = 3
# columns of the rows by which models are compared, besides `correct`
_ALL, _MCE = "correct_in_all", "mce"

CorruptionLevel = tuple[str, int]  # a corruption and a severity
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Corruptions:
    """Accuracy under each corruption at each severity, their means, and mCE where it is defined.

    Args:
        names: Corruptions; all if empty.
        severities: Severities from 1 to 5.
        extra: Whether the four corruptions beyond the fifteen of the benchmark are included.
        table: Table of severities, `imagenet` or `cifar`; chosen by the image size if not given.
        jpeg: Quality of JPEG compression after the corruption; that of the released files is 85.
        frost: Folder of photographs for the frost; without it the frost is procedural, unlike that of ImageNet-C.
        files: Folder of ImageNet-C, CIFAR-10-C or CIFAR-100-C to read; without it the corruptions are computed.
        skip: Whether unreadable files of that folder are skipped and counted.
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
                raise unknown_name_error("corruption", name, CORRUPTIONS)
        if not self.severities:
            raise UsageError(f"severities are some of 1 2 3 4 5, got {self.severities}. Write severities=1+3.")
        if self.table is not None and self.table not in TABLES:
            raise unknown_name_error("table of severities", self.table, TABLES)
        if self.files is not None and (self.table or self.jpeg or self.frost):
            raise UsageError("the images in files= are corrupted already. Leave table, jpeg and frost out.")
        if self.skip and self.files is None:
            raise UsageError("skip=true is about files=, and none are named. Leave it out, or write --skip-unreadable.")
        if not self.cells:
            raise UsageError(f"extra=false leaves nothing of {', '.join(self.names)}. Leave it out.")
        for _ in self._corruptions():  # each checks its settings
            pass

    @property
    def cells(self) -> tuple[CorruptionLevel, ...]:
        """Corruption and severity of every cell, in the order of the benchmark."""
        chosen = self.names or tuple(CORRUPTIONS)
        names = [name for name, kind in CORRUPTIONS.items() if name in chosen and (self.extra or kind.group != "extra")]
        return tuple((name, severity) for name in names for severity in self._severities)

    @property
    def _severities(self) -> list[int]:
        return sorted(set(self.severities))

    def check(self, model: nn.Module, data: DataSet, split: str) -> None:
        """Raise a UsageError if images are too small, or if released files do not match them."""
        images = data.split(split)
        if min(images.pixels.image_size) < _SMALLEST:
            raise UsageError(
                f"corruptions need images of at least {_SMALLEST} px a side, got {images.pixels.image_size[0]}. "
                "Use a model for larger images."
            )
        if (released := self._released(data, images)) is not None:
            for cell in self.cells:
                released.cell(*cell)

    def named_files(self, data: DataSet, split: str) -> dict[str, str]:
        """Hashes of the released files and of the photographs of frost."""
        images, hashes = data.split(split), dict[str, str]()
        if (released := self._released(data, images)) is not None:
            marks = [released.mark(*cell) for cell in self.cells]
            hashes["files"] = hashlib.sha256("".join(marks).encode()).hexdigest()
        with_photos = next((one for one in self._corruptions() if one.frost is not None), None)
        if with_photos is not None:
            hashes["frost"] = str(with_photos.describe(*images.pixels.image_size)["frost_sha256"])
        return hashes

    def run(self, ctx: Context) -> None:
        """Predictions on clean images and in every cell."""
        works: dict[str, Work] = {_CLEAN: lambda batch: {"prediction": ctx.predict(batch.x)}}
        released = self._released_of(ctx)
        for cell, corruption in zip(self.cells, self._corruptions(), strict=True):
            if released is None:
                works[_table(cell)] = partial(_on_corrupted, ctx, corruption)
            else:
                works[_table(cell)] = partial(self._on_files, ctx, released.cell(*cell))
        ctx.map_tables(works)

    def rows(self, ctx: Context) -> Mapping[str, Sequence[object]]:
        """All predictions, the share of cells in which each image is classified correctly, and its summand of mCE."""
        results = self._results(ctx)
        more: dict[str, Sequence[object]] = {_ALL: results.shares(self.cells).tolist()}
        if self._undefined(ctx) is None:
            more[_MCE] = (100 * mean_corruption_error(results.errors)).tolist()
        return {
            "clean_prediction": ctx.table(_CLEAN)["prediction"],
            "correct": results.shares(results.common or self.cells).tolist(),
            "predictions": self._predictions(ctx).tolist(),
            **more,
        }

    def summarize(self, ctx: Context) -> SuiteRecord:
        """Mean accuracies over all cells and over groups of cells, and mCE if it is defined."""
        results = self._results(ctx)
        measures = self._measures(ctx, results)
        worst = min(results.cells, key=lambda cell: results.mean([cell]).accuracy)
        mce = next((f" mCE is {one.value:.1f}." for one in measures if one.name == "mCE"), "")
        clean = accuracy_of(results.clean.tolist())
        return suite_record(
            self,
            ctx,
            tables=[_CLEAN, *map(_table, self.cells)],
            clean=clean,
            measures=measures,
            sentence=(
                f"{clean.accuracy:.1%} of {clean.n} images are classified correctly, {measures[0].value:.1%} in the "
                f"{measures[0].name}; {worst[0]} at severity {worst[1]} is the worst with "
                f"{results.mean([worst]).accuracy:.1%}.{mce}"
            ),
            conventions=self._conventions(ctx),
            exhibits=self._exhibits(ctx, results, clean),
            flags=_unreadable_flags(results.correct),
        )

    # ----------------------------------------------------------------- images

    def _corruptions(self) -> Iterator[Corruption]:
        frost = None if self.frost is None else Path(self.frost).expanduser()
        for name, severity in self.cells:
            yield Corruption(name, severity, self.table, self.jpeg, frost if name == "frost" else None)

    def _released(self, data: DataSet, images: Split) -> CorruptedRelease | None:
        return None if self.files is None else open_released(Path(self.files).expanduser(), images, data.preprocess)

    def _released_of(self, ctx: Context) -> CorruptedRelease | None:
        if ctx.data is None or not isinstance(ctx.images, Split):
            return None
        return self._released(ctx.data, ctx.images)

    def _on_files(self, ctx: Context, images: Split, batch: Batch) -> dict[str, Tensor]:
        x = self._read(images, batch.index)
        if x is not None:
            return {"prediction": ctx.predict(x)}
        alone = [self._read(images, one) for one in batch.index.split(1)]
        return {"prediction": torch.cat([torch.tensor([_UNREADABLE]) if x is None else ctx.predict(x) for x in alone])}

    def _read(self, images: Split, index: Tensor) -> Tensor | None:
        """Images of released files; None if one cannot be read and may be skipped."""
        try:
            return images.images(index)
        except UsageError:
            if not self.skip:
                raise
            return None

    # ---------------------------------------------------------------- results

    def _predictions(self, ctx: Context) -> NDArray[np.int64]:
        """[n, cells]."""
        return np.stack([ctx.table(_table(cell))["prediction"] for cell in self.cells], 1)

    def _results(self, ctx: Context) -> "_Results":
        predictions, labels = self._predictions(ctx), ctx.images.labels.numpy()[:, None]
        correct = np.where(predictions == _UNREADABLE, np.nan, predictions == labels)
        # a cell without a readable file has no accuracy, and a mean without it would not be comparable
        unreadable = [
            f"{name}/{severity}"
            for (name, severity), one in zip(self.cells, correct.T, strict=True)
            if np.isnan(one).all()
        ]
        if unreadable:
            raise UsageError(
                f"not one file of {', '.join(unreadable)} in {self.files} can be read, so there is nothing to score "
                "there. Unpack them again, or leave them out with names= or severities= and choose another run folder."
            )
        return _Results(self.cells, correct, np.array(ctx.correct(ctx.table(_CLEAN)["prediction"])))

    def _measures(self, ctx: Context, results: "_Results") -> list[Measure]:
        """All measures; the main one is the mean over the benchmark's cells."""
        common, everything = results.common, self.cells
        main = common or everything
        measures = [Measure.of(f"mean over {len(main)} cells", results.mean(main), main=True)]
        if common and len(everything) > len(common):
            measures.append(Measure.of(f"mean over {len(everything)} cells", results.mean(everything), column=_ALL))
        measures += [Measure.of(group, results.mean(cells)) for group, cells in results.groups.items()]
        if self._undefined(ctx) is None:
            measures += results.corruption_errors()
        return measures

    def _undefined(self, ctx: Context) -> str | None:
        """The reason why mCE is undefined; None if it is defined."""
        if ctx.data is None or ctx.data.classes != wnids():
            return "undefined: AlexNet's errors are known for the 1000 classes of ImageNet only"
        if self.files is None and next(self._corruptions()).table_for(*ctx.image_size) != "imagenet":
            return "undefined: AlexNet's errors are those on ImageNet's table of severities"
        if not {(name, severity) for name in ALEXNET_ERRORS for severity in SEVERITIES} <= set(self.cells):
            return "undefined: it takes all fifteen corruptions at all five severities"
        return None

    def _conventions(self, ctx: Context) -> dict[str, object]:
        mce = self._undefined(ctx) or "normalized by AlexNet's errors, fifteen corruptions by name"
        conventions: dict[str, object] = {"cells": len(self.cells), "mCE": mce}
        if (released := self._released_of(ctx)) is not None:
            return {"source": released.about, **conventions}
        table = next(self._corruptions()).table_for(*ctx.image_size)
        if any(name == "frost" for name, _ in self.cells):
            conventions["frost"] = "procedural, not ImageNet-C's" if self.frost is None else "photographs in a folder"
        return {"source": "computed by vitadel", "table": table, "jpeg": self.jpeg or "none", **conventions}

    # --------------------------------------------------------------- exhibits

    def _exhibits(self, ctx: Context, results: "_Results", clean: Accuracy) -> list[Exhibit]:
        by_cell = [[results.mean([(name, s)]).accuracy for s in self._severities] for name in results.names]
        return [
            Heatmap(
                "Accuracy per corruption and severity",
                f"On {clean.n} images; {clean.accuracy:.1%} without a corruption.",
                [Matrix("accuracy", by_cell)],
                "accuracy",
                "corruption",
                "severity",
                results.names,
                [str(severity) for severity in self._severities],
                low=0.0,
                high=1.0,
                digits=2,
            ),
            Bars(
                "Accuracy per group of corruptions",
                "Means over corruptions and severities of a group, with 95% intervals over images.",
                list(results.groups),
                [Bar.of("accuracy", [results.mean(cells) for cells in results.groups.values()])],
                "accuracy",
                (0.0, 1.0),
                [("clean", clean.accuracy)],
            ),
            self._by_corruption(ctx, results),
            self._pictures(ctx, results),
        ]

    def _by_corruption(self, ctx: Context, results: "_Results") -> Table:
        defined, rows = self._undefined(ctx) is None, list[list[Cell]]()
        for name in results.names:
            mean = results.mean(results.of_name(name))
            shares = [100 * one for one in (mean.accuracy, mean.low, mean.high)]
            has_baseline = defined and name in ALEXNET_ERRORS
            error = 100 * (1 - mean.accuracy) / ALEXNET_ERRORS[name] if has_baseline else None
            rows.append([name, CORRUPTIONS[name].group, *shares, error])
        caption = "Means over severities. CE is the error in percent of AlexNet's error, where that is known."
        columns = ["corruption", "group", "accuracy, %", "low", "high", "CE"]
        return Table("Accuracy per corruption", caption, columns, rows, digits=1)

    def _pictures(self, ctx: Context, results: "_Results") -> Pictures:
        """The first image, clean and in every corruption at one severity."""
        known = self._severities
        severity = _SHOWN_SEVERITY if _SHOWN_SEVERITY in known else known[len(known) // 2]
        index, released = torch.zeros(1, dtype=torch.int64), self._released_of(ctx)
        clean = ctx.images.images(index)
        cells: list[Picture | None] = [picture(clean[0], "clean")]
        for cell, corruption in zip(self.cells, self._corruptions(), strict=True):
            if cell[1] != severity:
                continue
            if released is None:
                x: Tensor | None = corruption(clean, index, seed=ctx.seed)
            else:
                x = self._read(released.cell(*cell), index)
            note = f"{cell[0]}: {results.mean([cell]).accuracy:.1%} correct"
            cells.append(None if x is None else picture(x[0], note))
        caption = f"The first image of the data set at severity {severity}, and the accuracy of that cell on all."
        return Pictures.grid("What the corruptions look like", caption, cells)


@dataclass(frozen=True, slots=True, eq=False)
class _Results:
    """Whether predictions are correct: [n, cells] 0, 1 or NaN where a file cannot be read, and [n] clean."""

    cells: tuple[CorruptionLevel, ...]
    correct: Numbers
    clean: Numbers

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.cells))

    @property
    def common(self) -> list[CorruptionLevel]:
        """The cells of the benchmark."""
        return [cell for cell in self.cells if CORRUPTIONS[cell[0]].group != "extra"]

    @property
    def groups(self) -> dict[str, list[CorruptionLevel]]:
        """The cells by group, without empty groups."""
        cells = {group: [cell for cell in self.cells if CORRUPTIONS[cell[0]].group == group] for group in GROUPS}
        return {group: some for group, some in cells.items() if some}

    def of_name(self, name: str) -> list[CorruptionLevel]:
        """The cells of one corruption."""
        return [cell for cell in self.cells if cell[0] == name]

    def shares(self, cells: Sequence[CorruptionLevel]) -> Numbers:
        """[n] the share of some cells in which each image is correct; NaN if none can be read."""
        some = self.correct[:, [self.cells.index(cell) for cell in cells]]
        with np.errstate(invalid="ignore"):
            shares: Numbers = np.nansum(some, 1) / (~np.isnan(some)).sum(1)
        return shares

    def mean(self, cells: Sequence[CorruptionLevel]) -> Accuracy:
        """The mean over some cells, with its interval over images."""
        return accuracy_of(_known(self.shares(cells)))

    @property
    def errors(self) -> dict[str, Numbers]:
        """[n] mean errors over severities, of the corruptions of mCE."""
        return {name: 1 - self.shares(self.of_name(name)) for name in ALEXNET_ERRORS}

    def corruption_errors(self) -> list[Measure]:
        """mCE and relative mCE in percent, with intervals over images."""
        measures = []
        for name, values, column in (
            ("mCE", mean_corruption_error(self.errors), _MCE),
            ("relative mCE", relative_mean_corruption_error(self.errors, 1 - self.clean), ""),
        ):
            known = _known(values)
            mean, low, high = (100 * one for one in mean_interval(known))
            measures.append(Measure(name, mean, low, high, len(known), "mCE", higher_is_better=False, column=column))
        return measures


def _on_corrupted(ctx: Context, corruption: Corruption, batch: Batch) -> dict[str, Tensor]:
    return {"prediction": ctx.predict(corruption(batch.x, batch.index, seed=ctx.seed))}


def _table(cell: CorruptionLevel) -> str:
    return f"{cell[0]}-{cell[1]}"


def _known(values: Numbers) -> list[float]:
    known: list[float] = values[~np.isnan(values)].tolist()
    return known


def _unreadable_flags(correct: Numbers) -> list[Flag]:
    unreadable = int(np.isnan(correct).sum())
    if not unreadable:
        return []
    sentence = f"{unreadable} of {correct.size} corrupted files could not be read and were skipped on request"
    return [Flag("files-skipped", sentence, {"files": unreadable, "of": correct.size})]
