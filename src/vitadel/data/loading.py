"""From the name of a data set to its splits."""

from collections.abc import Sequence

import torch

from vitadel.data.cifar import CIFAR10, CIFAR100, read_cifar
from vitadel.data.dataset import DataSet
from vitadel.data.digits import read_digits
from vitadel.data.folder import read_folder, read_imagenet
from vitadel.data.order import hold_out, pinned
from vitadel.data.pixels import Arrays
from vitadel.data.preprocess import Preprocess
from vitadel.data.source import Source
from vitadel.data.spec import Kind, Spec, parse_spec, read_class_file
from vitadel.data.split import Split
from vitadel.errors import UsageError

# resized pictures that were in memory anyway are kept resized up to this size, and beyond it resized when read
_KEPT = 256 * 2**20


def load(spec: str, *, preprocess: Preprocess, classes: Sequence[str] | None = None) -> DataSet:
    """The data set that `spec` names, with its classes chosen, its hold-out split off and every order pinned.

    First the classes are chosen, then the hold-out leaves the training images, then each split is cut to its first
    n: so [:n] never moves an image from one split to another.
    """
    parsed = parse_spec(spec)
    chosen = _chosen(parsed, classes)
    source = _read(parsed, preprocess, chosen)
    if chosen is not None:
        source = source.choose(chosen)
    train, holdout = (None, None) if source.train is None else hold_out(source.train)
    return DataSet(
        spec=spec,
        classes=source.classes,
        preprocess=preprocess,
        train=None if train is None else _finished(train, parsed.first),
        holdout=None if holdout is None else _finished(holdout, parsed.first),
        test=_finished(source.test, parsed.first),
        published=source.statistics,
    )


def _chosen(spec: Spec, classes: Sequence[str] | None) -> Sequence[str] | None:
    if spec.class_file is None:
        return classes
    if classes is not None:
        raise UsageError(f"classes are chosen twice: by the file {spec.class_file} and by classes=. Keep one of them.")
    return read_class_file(spec.class_file)


def _read(spec: Spec, preprocess: Preprocess, chosen: Sequence[str] | None) -> Source:
    match spec.kind:
        case Kind.DIGITS:
            return read_digits(preprocess)
        case Kind.CIFAR10:
            return read_cifar(spec.folder, CIFAR10, preprocess)
        case Kind.CIFAR100:
            return read_cifar(spec.folder, CIFAR100, preprocess)
        case Kind.FOLDER:
            return read_folder(spec.folder, preprocess, chosen)
        case Kind.IMAGENET:
            return read_imagenet(spec.folder, preprocess, chosen)


def _finished(split: Split, first: int | None) -> Split:
    split = pinned(split)
    if first is not None:
        split = split.take(torch.arange(min(first, len(split))))
    in_memory = isinstance(split.pixels, Arrays)
    return split.resident() if in_memory and len(split) * split.pixels.bytes_per_image <= _KEPT else split
