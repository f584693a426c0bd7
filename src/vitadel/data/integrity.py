"""Integrity of a data set on disk: unreadable images, and missing parts of a released data set."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vitadel.core.errors import UsageError, short_reason
from vitadel.data.dataset import DataSet
from vitadel.data.pixels import threads
from vitadel.data.readers.corrupted_release import cell_folder
from vitadel.data.readers.cue_conflict import NUM_STIMULI, SHAPES
from vitadel.data.readers.folder import subset_wnids, wnids
from vitadel.data.spec import Kind, parse_spec
from vitadel.data.split import Split

# images decoded between two reports of progress
_AT_ONCE = 1024
# validation images per class of ImageNet, and images in all of its offshoots
_PER_CLASS = 50
_IN_ALL = {Kind.IMAGENET_A: 7500, Kind.IMAGENET_R: 30000}
_SEVERITIES = 5
_CIFAR_TEST = 10000
# the data sets of corrupted images, which are not separate data sets: `corruptions:files=DIR` reads them
CORRUPTED = ("imagenet-c", "cifar10-c", "cifar100-c")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An image that cannot be decoded, and why."""

    split: str
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The number of images of each class in each split, and the unreadable images."""

    counts: Mapping[str, Mapping[str, int]]
    unreadable: tuple[Unreadable, ...]


def check(dataset: DataSet, *, progress: Callable[[int], None] | None = None) -> CheckReport:
    """Decode every image of every split once; `progress` is called with the number of further images done."""
    counts: dict[str, dict[str, int]] = {}
    faults: list[Unreadable] = []
    for name, split in dataset.splits.items():
        numbers = torch.bincount(split.labels, minlength=dataset.num_classes).tolist()
        counts[name] = dict(zip(dataset.classes, numbers, strict=True))
        faults += unreadable(split, progress)
    return CheckReport(counts, tuple(faults))


def without(dataset: DataSet, name: str, ids: Sequence[str]) -> DataSet:
    """The data set with these images of one split left out and counted as unreadable."""
    split, left_out = dataset.split(name), set(ids)
    index = [i for i, one in enumerate(split.ids) if one not in left_out]
    if not index:
        raise UsageError(
            f"not one of the {len(split)} images of split {name!r} of {dataset.spec} can be read. Restore the files."
        )
    skipped = tuple(f"{one}: cannot be read" for one in split.ids if one in left_out)
    rest = replace(split.take(torch.tensor(index)), skipped=(*split.skipped, *skipped))
    return replace(dataset, **{name: rest}) if skipped else dataset  # type: ignore[arg-type]


def unreadable(split: Split, progress: Callable[[int], None] | None = None) -> list[Unreadable]:
    """The images of a split that cannot be decoded."""
    faults: list[Unreadable] = []
    with ThreadPoolExecutor(threads(), "vitadel-check") as pool:
        for start in range(0, len(split), _AT_ONCE):
            index = range(start, min(start + _AT_ONCE, len(split)))
            faults += [fault for fault in pool.map(lambda i: _fault(split, i), index) if fault is not None]
            if progress is not None:
                progress(len(index))
    return faults


def _fault(split: Split, i: int) -> Unreadable | None:
    try:
        split.images(torch.tensor([i]))
    except UsageError as error:
        return Unreadable(split.name, split.ids[i], str(error))
    return None


def missing(dataset: DataSet) -> tuple[str, ...]:
    """What is missing compared to the released data set, one sentence each; empty for data sets without a release."""
    spec = parse_spec(dataset.spec)
    if spec.first is not None or spec.listed is not None:
        return ()  # only a part was requested
    counts = Counter(dataset.test.labels.tolist())
    match spec.kind:
        case Kind.IMAGENET:
            return tuple(_short(counts, dataset.classes, _PER_CLASS))
        case Kind.IMAGENET_A | Kind.IMAGENET_R:
            members = subset_wnids(spec.kind.value)
            absent = [f"class {one}: no images" for one in members if not counts[wnids().index(one)]]
            return (*absent, *_in_all(len(dataset.test), _IN_ALL[spec.kind]))
        case Kind.CUE_CONFLICT:
            return tuple(_short(counts, SHAPES, NUM_STIMULI // len(SHAPES)))
    return ()


def missing_corrupted(kind: str, root: Path, names: Sequence[str]) -> tuple[str, ...]:
    """What is missing of ImageNet-C, CIFAR-10-C or CIFAR-100-C in `root`; files are counted, not decoded."""
    if not root.is_dir():
        raise UsageError(f"there is no folder {str(root)!r}. Write {kind}:DIR.")
    return tuple(_of_folders(root, names) if kind == "imagenet-c" else _of_arrays(root, names))


def _short(counts: Counter[int], classes: Sequence[str], each: int) -> Iterator[str]:
    for label, name in enumerate(classes):
        if not counts[label]:
            yield f"class {name}: no images"
        elif counts[label] < each:
            yield f"class {name}: {counts[label]} of {each} images"


def _in_all(count: int, wanted: int) -> Iterator[str]:
    if count < wanted:
        yield f"{count} of {wanted} images"


def _of_folders(root: Path, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        for severity in range(1, _SEVERITIES + 1):
            folder = cell_folder(root, name, severity)
            if folder is None:
                yield f"{name}/{severity}: no folder"
                continue
            counts = _files(folder)
            if absent := [one for one in wnids() if one not in counts]:
                yield f"{name}/{severity}: {len(absent)} classes, the first is {absent[0]}"
            if few := [one for one in wnids() if 0 < counts.get(one, 0) < _PER_CLASS]:
                yield f"{name}/{severity}: images of {len(few)} classes, the first is {few[0]} with {counts[few[0]]}"


def _files(folder: Path) -> dict[str, int]:
    """How many files each class folder has; an empty one counts as none."""
    counts = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and (count := sum(not name.startswith(".") for name in os.listdir(entry.path))):
                counts[entry.name] = count
    return counts


def _of_arrays(root: Path, names: Sequence[str]) -> Iterator[str]:
    wanted: dict[str, tuple[int, ...]] = {"labels": (_SEVERITIES * _CIFAR_TEST,)}
    wanted |= dict.fromkeys(names, (_SEVERITIES * _CIFAR_TEST, 32, 32, 3))
    for name, shape in wanted.items():
        path = root / f"{name}.npy"
        if not path.is_file():
            yield f"{path.name}: no file"
            continue
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            yield f"{path.name}: cannot be read ({short_reason(error)})"
            continue
        if not isinstance(array, np.ndarray):
            yield f"{path.name}: an archive of several arrays"
        elif array.shape != shape or (name != "labels" and array.dtype != np.uint8):
            yield f"{path.name}: {array.dtype} of {list(array.shape)} instead of {list(shape)}"
