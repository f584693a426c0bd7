"""`vd.load_data`: load a data set with fixed splits."""

from collections.abc import Sequence
from pathlib import Path

from vitadel import data
from vitadel.api.arguments import check_arguments, check_types
from vitadel.core.errors import UsageError
from vitadel.data import DataSet, Preprocess

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
