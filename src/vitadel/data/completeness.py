"""What a released data set should hold, and what of it is not there."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vitadel.core.errors import UsageError, reason
from vitadel.data.dataset import DataSet
from vitadel.data.readers.corrupted_release import cell_folder
from vitadel.data.readers.cue_conflict import SHAPES, STIMULI
from vitadel.data.readers.folder import part_wnids, wnids
from vitadel.data.spec import Kind, parse_spec

# validation images per class of ImageNet, and images in all of its offshoots
_PER_CLASS = 50
_IN_ALL = {Kind.IMAGENET_A: 7500, Kind.IMAGENET_R: 30000}
_SEVERITIES = 5
_CIFAR_TEST = 10000
# the data sets of corrupted images, which are no data sets of their own: `corruptions:files=DIR` reads them
CORRUPTED = ("imagenet-c", "cifar10-c", "cifar100-c")


def missing(dataset: DataSet) -> tuple[str, ...]:
    """What the data set has less of than was released, a sentence each; nothing of those that have no fixed content."""
    spec = parse_spec(dataset.spec)
    if spec.first is not None or spec.listed is not None:
        return ()  # a part was asked for
    counts = Counter(dataset.test.labels.tolist())
    match spec.kind:
        case Kind.IMAGENET:
            return tuple(_short(counts, dataset.classes, _PER_CLASS))
        case Kind.IMAGENET_A | Kind.IMAGENET_R:
            members = part_wnids(spec.kind.value)
            absent = [f"class {one}: no images" for one in members if not counts[wnids().index(one)]]
            return (*absent, *_in_all(len(dataset.test), _IN_ALL[spec.kind]))
        case Kind.CUE_CONFLICT:
            return tuple(_short(counts, SHAPES, STIMULI // len(SHAPES)))
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
            place = cell_folder(root, name, severity)
            if place is None:
                yield f"{name}/{severity}: no folder"
                continue
            counts = _files(place)
            if absent := [one for one in wnids() if one not in counts]:
                yield f"{name}/{severity}: {len(absent)} classes, the first is {absent[0]}"
            if few := [one for one in wnids() if 0 < counts.get(one, 0) < _PER_CLASS]:
                yield f"{name}/{severity}: images of {len(few)} classes, the first is {few[0]} with {counts[few[0]]}"


def _files(place: Path) -> dict[str, int]:
    """How many files each class folder has; an empty one counts as none."""
    found = {}
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.is_dir() and (count := sum(not name.startswith(".") for name in os.listdir(entry.path))):
                found[entry.name] = count
    return found


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
            yield f"{path.name}: cannot be read ({reason(error)})"
            continue
        if not isinstance(array, np.ndarray):
            yield f"{path.name}: an archive of several arrays"
        elif array.shape != shape or (name != "labels" and array.dtype != np.uint8):
            yield f"{path.name}: {array.dtype} of {list(array.shape)} instead of {list(shape)}"
