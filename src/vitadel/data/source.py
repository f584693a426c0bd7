"""What every source of images hands over, before hold-out, pinned order and prefix."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vitadel.core.errors import UsageError, unknown
from vitadel.data.split import Split

Color = tuple[float, float, float]

_LISTED = 100


@dataclass(frozen=True, slots=True)
class Statistics:
    """Mean and standard deviation of the three channels, for pixels in [0, 1]."""

    mean: Color
    std: Color


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """All images of a data set; a label is a place in `classes`."""

    classes: tuple[str, ...]
    train: Split | None
    test: Split
    statistics: Statistics | None

    def choose(self, classes: Sequence[str], *, keep_labels: bool = False) -> "Source":
        """The images of these classes alone, labeled 0, 1, ... in the order given, or as they were."""
        check_classes(classes, self.classes)
        numbers = torch.tensor([self.classes.index(name) for name in classes])
        place = torch.full((len(self.classes),), -1, dtype=torch.int64)
        place[numbers] = numbers if keep_labels else torch.arange(len(classes))
        train = None if self.train is None else _relabeled(self.train, place)
        names = self.classes if keep_labels else tuple(classes)
        return Source(names, train, _relabeled(self.test, place), self.statistics)


def check_classes(chosen: Sequence[str], known: Sequence[str]) -> None:
    """Refuse a choice that is empty, repeats itself or names a class that does not exist."""
    if not chosen:
        raise UsageError("no class is chosen. Name at least one, or leave the choice out for all of them.")
    for number, name in enumerate(chosen):
        if name in chosen[:number]:
            raise UsageError(f"class {name!r} is chosen twice. Name each class once: its place is its label.")
    for name in sorted(set(chosen) - set(known)):
        raise _unknown_class(name, known)


def _unknown_class(name: str, known: Sequence[str]) -> UsageError:
    if len(known) <= _LISTED:
        return unknown("class", name, known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UsageError(f"unknown class {name!r}.{hint} There are {len(known)}, from {min(known)!r} to {max(known)!r}.")


def _relabeled(split: Split, place: torch.Tensor) -> Split:
    labels = place[split.labels]
    part = split.take((labels >= 0).nonzero().flatten())
    if not len(part):
        raise UsageError(f"the {split.name} split has no image of the chosen classes. Choose others.")
    return Split(part.name, part.ids, place[part.labels], part.pixels)
