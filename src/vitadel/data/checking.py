"""Whether every image of a data set can be read."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from vitadel.data.dataset import DataSet
from vitadel.data.pixels import threads
from vitadel.data.split import Split
from vitadel.errors import UsageError

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
    counts, unreadable = {}, []
    for name, split in dataset.splits.items():
        numbers = torch.bincount(split.labels, minlength=dataset.num_classes).tolist()
        counts[name] = dict(zip(dataset.classes, numbers, strict=True))
        unreadable += _unreadable(split, progress)
    return CheckReport(counts, tuple(unreadable))


def _unreadable(split: Split, progress: Callable[[int], None] | None) -> list[Unreadable]:
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
