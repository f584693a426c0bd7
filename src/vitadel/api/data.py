"""`vd.load_data`: load a data set with fixed splits. `check_data` reads all of its images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitadel import data
from vitadel.api.arguments import check_arguments, check_types
from vitadel.api.results import ShortTable
from vitadel.core.errors import UsageError
from vitadel.data import DataSet, Preprocess, Unreadable
from vitadel.shifts import CORRUPTIONS

_ELSEWHERE = {
    "img_size": "image_size={value}",
    "input_size": "image_size={value}",
    "root": 'load_data("cifar10:{value}")',
    "data_dir": 'load_data("cifar10:{value}")',
    "train": "load_data(...).train",
    "split": "load_data(...).test, .holdout or .train",
    "transform": "preprocess=... or image_size=...; models normalize by themselves",
    "batch_size": "torch.utils.data.DataLoader(load_data(...).test, batch_size={value})",
    "n_examples": 'load_data("cifar10:DIR[:{value}]")',
}
# native sizes; images of other data sets vary in size, and most models for them take 224 pixels
_NATIVE_SIZES = {"digits": 8, "cifar10": 32, "cifar100": 32}
_USUAL_SIZE = 224
# data sets that are cropped from their center, as ImageNet is evaluated
_CROPPED = ("imagenet", "imagenet-a", "imagenet-r")
# how many problems of one kind are listed in text
_LISTED = 20


def load_data(
    spec: str | Path,
    *,
    image_size: int | None = None,
    preprocess: str | Preprocess | None = None,
    classes: Sequence[str] | None = None,
    skip_unreadable: bool = False,
    holdout: bool = True,
    **other: object,
) -> DataSet:
    """Load a data set: `digits`, `cifar10:DIR`, `imagenet:DIR`, `folder:DIR`, ..., with `[:n]` for its first n images.

    Args:
        spec: The data set and its folder.
        image_size: Side of the images in pixels; by default 8 for digits, 32 for CIFAR, 224 for all others.
        preprocess: `crop:SIZE[:RESIZE][:bicubic]` or `squash:SIZE[:bicubic]` in place of the default of the data set.
        classes: Names of the classes to keep.
        skip_unreadable: Leave out unreadable images, and count them, instead of refusing the data set.
        holdout: Hold out a part of the training images as `.holdout`; otherwise `.train` has all of them.

    Returns:
        The data set; `.train`, `.holdout` and `.test` are splits, and `.test.tensors(256)` gives pixels and labels.

    Raises:
        UsageError: If there is no such data set, or it is damaged.

    Example:
        >>> x, y = load_data("digits").test.tensors(16)
        >>> x.shape
        torch.Size([16, 3, 8, 8])
    """
    check_arguments(load_data, other, _ELSEWHERE)
    check_types(load_data, locals())
    spec = str(spec)
    if preprocess is not None and image_size is not None:
        raise UsageError(f"got both image_size={image_size} and preprocess={preprocess!r}. Give one of them.")
    chosen = default_preprocess(spec, image_size) if preprocess is None else preprocess
    return data.load(spec, preprocess=as_preprocess(chosen), classes=classes, skip=skip_unreadable, holdout=holdout)


def default_preprocess(spec: str, image_size: int | None = None) -> str:
    """The default preprocessing of a data set: a center crop for ImageNet, else resizing."""
    kind = data.parse_spec(spec).kind.value
    size = image_size or _NATIVE_SIZES.get(kind, _USUAL_SIZE)
    return f"crop:{size}" if kind in _CROPPED else f"squash:{size}"


def as_preprocess(preprocess: str | Preprocess) -> Preprocess:
    """A preprocessing, given as an object or as text."""
    return data.parse_preprocess(preprocess) if isinstance(preprocess, str) else preprocess


@dataclass(frozen=True, slots=True)
class DataCheck:
    """What is wrong with a data set on disk.

    Args:
        spec: The data set.
        counts: The number of images of each class in each split; empty for corrupted images, which are not decoded.
        unreadable: Images that cannot be decoded.
        missing: What the released data set has and the folder does not.
    """

    spec: str
    counts: Mapping[str, Mapping[str, int]]
    unreadable: Sequence[Unreadable]
    missing: Sequence[str]

    @property
    def problem(self) -> str:
        """What is wrong, and what to do; empty if nothing is."""
        if self.unreadable:
            first = self.unreadable[0]
            return (
                f"{len(self.unreadable)} images cannot be read, the first is {first.id} ({first.reason}). "
                "Replace them, or leave them out with --skip-unreadable."
            )
        if self.missing:
            count = len(self.missing)
            return (
                f"{self.spec} is not complete: {count} entries are missing, the first is {self.missing[0]}. Add them."
            )
        return ""

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        bad = [{"split": one.split, "id": one.id, "reason": one.reason} for one in self.unreadable]
        return {"counts": dict(self.counts), "unreadable": bad, "missing": list(self.missing)}

    def tables(self) -> list[ShortTable]:
        """The counts, and the first problems of each kind."""
        rows = [
            [name, str(sum(counts.values())), str(min(counts.values())), str(max(counts.values()))]
            for name, counts in self.counts.items()
        ]
        notes = [*_listed("cannot be read", [one.id for one in self.unreadable]), *_listed("missing", self.missing)]
        if not notes and not rows:
            notes = [f"{self.spec}: nothing is missing"]
        if not rows:
            return [ShortTable(note, (), ()) for note in notes]
        return [ShortTable(self.spec, ["split", "images", "fewest per class", "most per class"], rows, notes)]


def check_data(spec: str | Path, *, preprocess: str | Preprocess = "squash:32", **other: object) -> DataCheck:
    """Read every image of a data set, and look for missing ones.

    Args:
        spec: A data set as for `load_data`, or `imagenet-c:DIR`, `cifar10-c:DIR` or `cifar100-c:DIR`, whose files are
            counted and not decoded.
        preprocess: As for `load_data`.

    Returns:
        The counts and the problems; `problem` is empty if there are none.

    Raises:
        UsageError: If there is no such data set.

    Example:
        >>> check_data("digits").problem
        ''
    """
    check_arguments(check_data, other, _ELSEWHERE)
    check_types(check_data, locals())
    spec = str(spec)
    kind, _, folder = spec.partition(":")
    if kind in data.CORRUPTED:
        missing = data.missing_corrupted(kind, Path(folder).expanduser(), list(CORRUPTIONS))
        return DataCheck(spec, {}, (), tuple(missing))
    dataset = data.load(spec, preprocess=as_preprocess(preprocess))
    report = data.check(dataset)
    return DataCheck(spec, report.counts, report.unreadable, tuple(data.missing(dataset)))


def _listed(what: str, entries: Sequence[str]) -> list[str]:
    lines = [f"{what}: {entry}" for entry in entries[:_LISTED]]
    if len(entries) > _LISTED:
        lines.append(f"{what}: {len(entries) - _LISTED} more; use --json to list all")
    return lines
