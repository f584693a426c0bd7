"""Whether every image of a data set can be read."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from vitadel.core.errors import UsageError
from vitadel.data.dataset import DataSet
from vitadel.data.pixels import threads
from vitadel.data.split import Split

_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An image that cannot be decoded, and why."""

    split: str
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """How many images each class has in each split, and which of them cannot be read."""

    counts: Mapping[str, Mapping[str, int]]
    unreadable: tuple[Unreadable, ...]

    @property
    def ok(self) -> bool:
        return not self.unreadable


def check(dataset: DataSet, *, progress: Callable[[int], None] | None = None) -> CheckReport:
    """Decode every image of every split once; `progress` is told how many more are done."""
    counts: dict[str, dict[str, int]] = {}
    faults: list[Unreadable] = []
    for name, split in dataset.splits.items():
        numbers = torch.bincount(split.labels, minlength=dataset.num_classes).tolist()
        counts[name] = dict(zip(dataset.classes, numbers, strict=True))
        faults += unreadable(split, progress)
    return CheckReport(counts, tuple(faults))


def readable(dataset: DataSet, name: str) -> DataSet:
    """The data set with every unreadable image of one split left out and counted; every image is decoded once."""
    return without(dataset, name, [fault.id for fault in unreadable(dataset.split(name))])


def without(dataset: DataSet, name: str, faulty: Sequence[str]) -> DataSet:
    """The data set with these images of one split left out and counted as unreadable."""
    split, left_out = dataset.split(name), set(faulty)
    rows = [row for row, one in enumerate(split.ids) if one not in left_out]
    if not rows:
        raise UsageError(f"not one of the {len(split)} images of split {name!r} of {dataset.spec} can be read.")
    told = tuple(f"{one}: cannot be read" for one in split.ids if one in left_out)
    rest = replace(split.take(torch.tensor(rows)), skipped=(*split.skipped, *told))
    return replace(dataset, **{name: rest}) if told else dataset  # type: ignore[arg-type]


def unreadable(split: Split, progress: Callable[[int], None] | None = None) -> list[Unreadable]:
    """The images of a split that cannot be decoded."""
    found: list[Unreadable] = []
    with ThreadPoolExecutor(threads(), "vitadel-check") as pool:
        for start in range(0, len(split), _AT_ONCE):
            rows = range(start, min(start + _AT_ONCE, len(split)))
            found += [fault for fault in pool.map(lambda row: _fault(split, row), rows) if fault is not None]
            if progress is not None:
                progress(len(rows))
    return found


def _fault(split: Split, row: int) -> Unreadable | None:
    try:
        split.images(torch.tensor([row]))
    except UsageError as error:
        return Unreadable(split.name, split.ids[row], str(error))
    return None
