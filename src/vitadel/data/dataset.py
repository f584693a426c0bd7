"""A data set: its classes, its splits, and their description for manifests."""

import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.data.preprocess import Preprocess
from vitadel.data.split import Split

Color = tuple[float, float, float]

# number of images from which mean and standard deviation are computed
_MEASURED = 1000
# classes that an error lists in full
_LISTED = 100


@dataclass(frozen=True, slots=True)
class Statistics:
    """Mean and standard deviation of the three channels, for pixels in [0, 1]."""

    mean: Color
    std: Color


@dataclass(frozen=True, eq=False, repr=False)
class DataSet:
    """Images for training (`train`), for checkpoint selection (`holdout`) and for reported numbers (`test`).

    Args:
        spec: Its text, such as `cifar10:DIR`.
        classes: Names of the classes; a label is an index into them.
        preprocess: How images are resized and cropped to the input size of the model.
        train: Training images without the hold-out; None if the source has only test images.
        holdout: A tenth of the training images, at most 1000; None if no class has two, or if it was turned off.
        test: Test images.
        published: The commonly used mean and standard deviation of a known data set.

    Example:
        >>> digits = vd.load_data("digits")
        >>> len(digits.train), len(digits.holdout), len(digits.test)
        (1293, 145, 359)
        >>> digits.classes[3]
        '3'
    """

    spec: str
    classes: tuple[str, ...]
    preprocess: Preprocess
    train: Split | None
    holdout: Split | None
    test: Split
    published: Statistics | None = None

    def __repr__(self) -> str:
        splits = "\n".join(f"  {split!r}" for split in self.splits.values())
        return f"DataSet({self.spec!r}: {self.num_classes} classes, {self.preprocess.name}\n{splits})"

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def splits(self) -> dict[str, Split]:
        """The splits that exist, by name."""
        named = {"train": self.train, "holdout": self.holdout, "test": self.test}
        return {name: split for name, split in named.items() if split is not None}

    @property
    def mean(self) -> Color:
        """The means of the channels: published ones for known data sets, else computed from the first 1000 images."""
        return self._statistics.mean

    @property
    def std(self) -> Color:
        """The channels' standard deviations, from the same source as the means."""
        return self._statistics.std

    def split(self, name: str) -> Split:
        """The split called `train`, `holdout` or `test`.

        Raises:
            UsageError: The name is unknown, or this data set has no such split.
        """
        if name not in ("train", "holdout", "test"):
            raise unknown_name_error("split", name, ("train", "holdout", "test"))
        if name not in self.splits:
            raise UsageError(f"{self.spec} has no {name} split. Choose from {', '.join(self.splits)}.")
        return self.splits[name]

    def describe(self) -> dict[str, object]:
        """The description that identifies this data set in a manifest."""
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
    """Mean and standard deviation of the first 1000 images; integer sums do not depend on their order."""
    total, squares, count = torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), 0
    for index in torch.arange(min(_MEASURED, len(split))).split(50):
        pixels = split.pixels.read(index).to(torch.int64)
        total += pixels.sum((0, 2, 3))
        squares += pixels.square().sum((0, 2, 3))
        count += pixels.numel() // 3
    mean = total.double() / count
    std = (squares.double() / count - mean.square()).clamp_min(0).sqrt()
    # at least one gray level, since normalization divides by it
    return Statistics(_rounded(mean / 255), _rounded(std.clamp_min(1) / 255))


def _rounded(values: torch.Tensor) -> Color:
    red, green, blue = (round(value, 4) for value in values.tolist())
    return red, green, blue


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """All images of a reader, before hold-out, fixed order and slicing; a label is an index into `classes`."""

    classes: tuple[str, ...]
    train: Split | None
    test: Split
    statistics: Statistics | None

    def choose(self, classes: Sequence[str], *, keep_labels: bool = False) -> "Source":
        """Only the images of these classes, labeled 0, 1, ... in the given order, or with their own labels."""
        check_chosen_classes(classes, self.classes)
        numbers = torch.tensor([self.classes.index(name) for name in classes])
        new_label = torch.full((len(self.classes),), -1, dtype=torch.int64)
        new_label[numbers] = numbers if keep_labels else torch.arange(len(classes))
        train = None if self.train is None else _relabeled(self.train, new_label)
        names = self.classes if keep_labels else tuple(classes)
        return Source(names, train, _relabeled(self.test, new_label), self.statistics)


def check_chosen_classes(chosen: Sequence[str], known: Sequence[str]) -> None:
    """Raise a UsageError if the choice is empty, or names a class twice or one that does not exist."""
    if not chosen:
        raise UsageError("no class is chosen. Name at least one, or leave the choice out for all of them.")
    for number, name in enumerate(chosen):
        if name in chosen[:number]:
            raise UsageError(f"class {name!r} is chosen twice. Name each class once: its position is its label.")
    for name in sorted(set(chosen) - set(known)):
        raise _unknown_class(name, known)


def _unknown_class(name: str, known: Sequence[str]) -> UsageError:
    if len(known) <= _LISTED:
        return unknown_name_error("class", name, known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UsageError(
        f"unknown class {name!r}.{hint} There are {len(known)}, from {min(known)!r} to {max(known)!r}. Choose one."
    )


def _relabeled(split: Split, new_label: torch.Tensor) -> Split:
    labels = new_label[split.labels]
    part = split.take((labels >= 0).nonzero().flatten())
    if not len(part):
        raise UsageError(f"the {split.name} split has no image of the chosen classes. Choose others.")
    return Split(part.name, part.ids, new_label[part.labels], part.pixels)
