"""A data set: classes, splits, and what a manifest says of them."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch

from vitadel.core.errors import UsageError, unknown
from vitadel.data.preprocess import Preprocess
from vitadel.data.source import Color, Statistics
from vitadel.data.split import Split

_MEASURED = 1000


@dataclass(frozen=True, eq=False)
class DataSet:
    """Images to train on, to choose a checkpoint by (holdout) and to report on (test)."""

    spec: str
    classes: tuple[str, ...]
    preprocess: Preprocess
    train: Split | None
    holdout: Split | None
    test: Split
    published: Statistics | None = None

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def splits(self) -> dict[str, Split]:
        """The splits there are, by name."""
        named = {"train": self.train, "holdout": self.holdout, "test": self.test}
        return {name: split for name, split in named.items() if split is not None}

    @property
    def mean(self) -> Color:
        """The channels' means: published for the known data sets, else measured over the first 1000 images."""
        return self._statistics.mean

    @property
    def std(self) -> Color:
        """The channels' standard deviations, from where the means come from."""
        return self._statistics.std

    def split(self, name: str) -> Split:
        if name not in ("train", "holdout", "test"):
            raise unknown("split", name, ("train", "holdout", "test"))
        if name not in self.splits:
            raise UsageError(f"{self.spec} has no {name} split. It has: {', '.join(self.splits)}.")
        return self.splits[name]

    def describe(self) -> dict[str, object]:
        """What a manifest needs to tell this data set from another."""
        names = hashlib.sha256("\n".join(self.classes).encode(errors="surrogateescape")).hexdigest()
        return {
            "spec": self.spec,
            "preprocess": self.preprocess.name,
            "classes": {"count": self.num_classes, "sha256": names},
            "splits": {name: {"count": len(s), "sha256": s.sha256} for name, s in self.splits.items()},
        }

    @cached_property
    def _statistics(self) -> Statistics:
        return self.published or measure(self.test if self.train is None else self.train)


def measure(split: Split) -> Statistics:
    """Mean and deviation of the first 1000 images, summed in whole numbers so that no order of sums matters."""
    total, squares, count = torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), 0
    for rows in torch.arange(min(_MEASURED, len(split))).split(50):
        pixels = split.pixels.read(rows).to(torch.int64)
        total += pixels.sum((0, 2, 3))
        squares += pixels.square().sum((0, 2, 3))
        count += pixels.numel() // 3
    mean = total.double() / count
    std = (squares.double() / count - mean.square()).clamp_min(0).sqrt()
    # a channel of one color has no spread; one gray level keeps the division by it defined
    return Statistics(_rounded(mean / 255), _rounded(std.clamp_min(1) / 255))


def _rounded(values: torch.Tensor) -> Color:
    red, green, blue = (round(value, 4) for value in values.tolist())
    return red, green, blue
