"""Images in folders: DIR/train/CLASS/* and DIR/test/CLASS/* or DIR/val/CLASS/*."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import torch

from vitadel.core.errors import UsageError
from vitadel.data.dataset import Source, Statistics, check_chosen_classes
from vitadel.data.pixels import Files
from vitadel.data.preprocess import Preprocess
from vitadel.data.split import Split

EXTENSIONS = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")
_LAYOUT = "The layout is DIR/test/CLASS/* (or DIR/val/CLASS/*) and, to train, DIR/train/CLASS/*."
_IMAGENET = Statistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def read_folder(root: Path, preprocess: Preprocess, chosen: Sequence[str] | None) -> Source:
    """The classes are the folders' names, sorted; train and test must have the same."""
    train, test = _find(root, ("test", "val"))
    classes = tuple(sorted(set(_subfolders(test)) | set(_subfolders(train) if train else ())))
    if train:
        _require_same_classes(train, test)
    return _source(root, train, test, classes, preprocess, chosen)


def read_imagenet(root: Path, preprocess: Preprocess, chosen: Sequence[str] | None) -> Source:
    """The classes are the 1000 of ILSVRC 2012, in their order, also those without a folder."""
    # the official test images have no labels, so where both folders exist the validation images are meant
    train, test = _find(root, ("val", "test"))
    classes = wnids()
    for folder in (train, test) if train else (test,):
        for name in _subfolders(folder):
            if name not in classes:
                raise UsageError(
                    f"{folder / name} is not named after one of the 1000 classes of ImageNet. "
                    "Rename it to its wnid, such as n01440764, or read the data as folder:DIR."
                )
    source = _source(root, train, test, classes, preprocess, chosen)
    return Source(source.classes, source.train, source.test, _IMAGENET)


def read_imagenet_part(
    root: Path, name: str, preprocess: Preprocess, chosen: Sequence[str] | None, *, skip: bool
) -> Source:
    """ImageNet-A or -R as released: a folder per wnid in `root`, or in the folder of that name within it.

    A label is the index of the wnid among all 1000, never that of a folder in a listing.
    """
    folder = root / name if _is_folder(root / name) else root
    members, known = subset_wnids(name), wnids()
    folders = _subfolders(folder)
    unexpected = [one for one in folders if one not in members]
    if unexpected and (not skip or len(unexpected) == len(folders)):
        raise UsageError(
            f"{folder / unexpected[0]} is not named after one of the 200 classes of {name}. Move it elsewhere, or give "
            f"the folder that the archive {name}.tar unpacks to."
        )
    if chosen is not None:
        check_chosen_classes(chosen, members)
    wanted = frozenset(one for one in folders if one in (members if chosen is None else chosen))
    test = _split("test", root, folder, known, wanted, preprocess)
    left_out = tuple(f"{one}: not a class of {name}" for one in unexpected)
    return Source(known, None, replace(test, skipped=left_out), _IMAGENET)


def wnids() -> tuple[str, ...]:
    """The names of the 1000 classes of ILSVRC 2012 in the order of their labels."""
    return _names("imagenet_wnids.txt")


def subset_wnids(name: str) -> tuple[str, ...]:
    """The 200 classes of `imagenet-a` or `imagenet-r`, in the order of their labels."""
    return _names(f"{name.replace('-', '_')}_wnids.txt")


def _names(file: str) -> tuple[str, ...]:
    return tuple(Path(__file__).with_name(file).read_text(encoding="ascii").split())


def _find(root: Path, names: tuple[str, str]) -> tuple[Path | None, Path]:
    train = root / "train"
    for name in names:
        if _is_folder(root / name):
            return train if _is_folder(train) else None, root / name
    raise UsageError(f"{root} has neither a test nor a val folder. {_LAYOUT}")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:  # the folder it would lie in may be listed and not entered
        _refuse(error)


def _subfolders(split: Path) -> list[str]:
    try:
        with os.scandir(split) as entries:
            names = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    except OSError as error:
        _refuse(error)
    if not names:
        raise UsageError(f"{split} has no class folders. {_LAYOUT}")
    return sorted(names)


def _refuse(error: OSError) -> NoReturn:
    raise UsageError(f"cannot list {error.filename}: {error.strerror}. Make it readable or remove it.") from error


def _require_same_classes(train: Path, test: Path) -> None:
    both = {train: set(_subfolders(train)), test: set(_subfolders(test))}
    for here, there in ((train, test), (test, train)):
        for name in sorted(both[here] - both[there]):
            raise UsageError(
                f"class {name!r} has a folder in {here} but none in {there}. Make the same class folders in both."
            )


def _source(
    root: Path,
    train: Path | None,
    test: Path,
    classes: tuple[str, ...],
    preprocess: Preprocess,
    chosen: Sequence[str] | None,
) -> Source:
    if chosen is not None:
        check_chosen_classes(chosen, classes)  # before listing the files, which may take minutes
    wanted = frozenset(classes if chosen is None else chosen)
    splits = [
        None if folder is None else _split(name, root, folder, classes, wanted, preprocess)
        for name, folder in (("train", train), ("test", test))
    ]
    assert splits[1] is not None
    return Source(classes, splits[0], splits[1], None)


def _split(
    name: str, root: Path, folder: Path, classes: tuple[str, ...], wanted: Collection[str], preprocess: Preprocess
) -> Split:
    label_of = {known: label for label, known in enumerate(classes)}
    ids: list[str] = []
    labels: list[int] = []
    for class_name in _subfolders(folder):
        if class_name in wanted:
            images = _files(root, folder / class_name)
            ids += images
            labels += [label_of[class_name]] * len(images)
    paths = tuple(ids)
    return Split(name, paths, torch.tensor(labels, dtype=torch.int64), Files(root, paths, preprocess))


def _files(root: Path, folder: Path) -> list[str]:
    """The images at any depth below `folder`, as posix paths relative to `root`."""
    images = []
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = Path(parent).relative_to(root).as_posix()
        images += [f"{inside}/{n}" for n in names if n.lower().endswith(EXTENSIONS) and not n.startswith(".")]
    if not images:
        raise UsageError(
            f"class folder {folder} has no images. Put some in, ending in {', '.join(EXTENSIONS)}, or remove it."
        )
    return images
