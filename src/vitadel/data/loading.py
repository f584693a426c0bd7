"""From the name of a data set to its splits."""

from collections.abc import Sequence

import torch

from vitadel.core.errors import UsageError
from vitadel.data.dataset import DataSet, Source
from vitadel.data.partition import fixed_order, hold_out
from vitadel.data.pixels import Arrays
from vitadel.data.preprocess import Preprocess
from vitadel.data.readers.cifar import CIFAR10, CIFAR100, read_cifar
from vitadel.data.readers.cue_conflict import read_stimuli
from vitadel.data.readers.digits import read_digits
from vitadel.data.readers.folder import read_folder, read_imagenet, read_imagenet_part
from vitadel.data.readers.image_list import choose_images, is_image_list
from vitadel.data.spec import Kind, Spec, parse_spec, read_list
from vitadel.data.split import Split

# pictures that were in memory anyway are kept preprocessed up to this size; above it they are resized when read
KEPT_IN_MEMORY = 256 * 2**20
# their labels count among the 1000 classes of ImageNet, no matter which classes are chosen
_PARTS = (Kind.IMAGENET_A, Kind.IMAGENET_R)


def load(
    spec: str,
    *,
    preprocess: Preprocess,
    classes: Sequence[str] | None = None,
    skip: bool = False,
    model_classes: int | None = None,
    holdout: bool = True,
) -> DataSet:
    """The data set that `spec` names, with its classes chosen, its hold-out split off and every order fixed.

    First the classes are chosen, then the hold-out leaves the training images, then each split is cut to its first
    n: so [:n] never moves an image from one split to another. A list of images keeps its own order.

    Args:
        spec: `digits`, `cifar10:DIR`, `cifar100:DIR`, `imagenet:DIR`, `folder:DIR` and others, with `@LIST` for
            classes or images named in a file and `[:n]` for the first n images of every split.
        preprocess: How pictures are brought to the size of the model's input, as `parse_preprocess` reads it.
        classes: Names of the classes to keep, labeled 0, 1, ... in this order; by default all of them.
        skip: Leave out and count in `Split.skipped`, instead of refusing, images of a list that do not exist and files
            that do not belong to a released data set.
        model_classes: How many classes the model to be evaluated has: if these are all classes of the source, images of
            chosen classes keep the labels they have among all.
        holdout: Whether a part of the training images is held out; otherwise `train` has all of them.

    Returns:
        The data set, with the splits `train`, `holdout` and `test`.

    Raises:
        UsageError: The text cannot be read, or the files are missing, damaged or of another layout.

    Example:
        >>> digits = load("digits[:100]", preprocess=parse_preprocess("squash:8"))
        >>> x, y = digits.test.tensors(32)
        >>> x.shape
        torch.Size([32, 3, 8, 8])
    """
    parsed = parse_spec(spec)
    lines = None if parsed.listed is None else read_list(parsed.listed)
    if lines is not None and is_image_list(lines):
        return _listed(spec, parsed, preprocess, classes, lines, skip)
    chosen = _chosen(parsed, lines, classes)
    source = _read(parsed, preprocess, chosen, skip)
    if chosen is not None and parsed.kind not in _PARTS:
        source = source.choose(chosen, keep_labels=model_classes == len(source.classes) > len(chosen))
    train, held_out = hold_out(source.train) if holdout and source.train is not None else (source.train, None)
    return DataSet(
        spec=spec,
        classes=source.classes,
        preprocess=preprocess,
        train=None if train is None else _finished(train, parsed.first),
        holdout=None if held_out is None else _finished(held_out, parsed.first),
        test=_finished(source.test, parsed.first),
        published=source.statistics,
    )


def _listed(
    spec: str,
    parsed: Spec,
    preprocess: Preprocess,
    classes: Sequence[str] | None,
    lines: tuple[str, ...],
    skip: bool,
) -> DataSet:
    """The test images of a list, in its order."""
    assert parsed.listed is not None
    if classes is not None:
        raise UsageError(f"{parsed.listed} lists the images and classes= selects some as well. Leave one of them out.")
    source = choose_images(_read(parsed, preprocess, None, skip), lines, parsed.listed, skip=skip)
    test = _cut(source.test, parsed.first)
    return DataSet(spec, source.classes, preprocess, None, None, test, source.statistics)


def _chosen(spec: Spec, lines: tuple[str, ...] | None, classes: Sequence[str] | None) -> Sequence[str] | None:
    if lines is None:
        return classes
    if classes is not None:
        raise UsageError(
            f"classes are selected twice: by the file {spec.listed} and by classes=. Leave one of them out."
        )
    return lines


def _read(spec: Spec, preprocess: Preprocess, chosen: Sequence[str] | None, skip: bool) -> Source:
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
        case Kind.IMAGENET_A | Kind.IMAGENET_R:
            return read_imagenet_part(spec.folder, spec.kind.value, preprocess, chosen, skip=skip)
        case Kind.CUE_CONFLICT:
            return read_stimuli(spec.folder, preprocess, skip=skip)


def _finished(split: Split, first: int | None) -> Split:
    return _cut(fixed_order(split), first)


def _cut(split: Split, first: int | None) -> Split:
    if first is not None:
        split = split.take(torch.arange(min(first, len(split))))
    in_memory = isinstance(split.pixels, Arrays)
    return (
        split.load_into_memory() if in_memory and len(split) * split.pixels.bytes_per_image <= KEPT_IN_MEMORY else split
    )
