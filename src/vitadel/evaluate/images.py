"""Images with labels in a fixed order, and checks that they match a model."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from vitadel.attacks.base import check_images
from vitadel.core.device import check_not_meta
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.data import SHAPES, DataSet

# number of skipped images that a flag names
_NAMED = 5
# the longest side of a thumbnail in pixels
_SIDE = 112


class Images(Protocol):
    """Images in a fixed order, read when they are needed; a `vitadel.data.Split` is one."""

    @property
    def labels(self) -> Tensor:
        """[n] class numbers, on the CPU."""

    @property
    def ids(self) -> Sequence[str]:
        """A name for each image."""

    def __len__(self) -> int:
        """Number of images."""

    def images(self, index: Tensor, /) -> Tensor:
        """float32 [B, 3, H, W] in [0, 1], on the CPU or on the device of the caller's tensors."""


class TensorImages:
    """Images and labels as tensors.

    Args:
        x: Floats [n, channels, height, width] in [0, 1].
        y: [n] class numbers.

    Raises:
        UsageError: If they are not images and labels of that form.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        check_images(x)
        if x.ndim != 4:
            raise UsageError(
                f"images must be [n, channels, rows, columns], got {list(x.shape)}. "
                "Write x.unsqueeze(0) for one image, x.unsqueeze(1) for images without channels."
            )
        if not isinstance(y, Tensor):
            raise UsageError(f"labels must be a tensor, got {type(y).__name__}. Write torch.as_tensor(labels).")
        check_not_meta("labels", y)
        if y.ndim != 1 or len(y) != len(x):
            raise UsageError(f"got {len(x)} images and labels of shape {list(y.shape)}. Give one label per image.")
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise UsageError(f"labels must be class numbers, got {y.dtype}. Write y.long() if they are whole.")
        # tensors created in inference mode cannot be used for gradients
        self.pixels = x.detach().clone() if x.is_inference() else x.detach()
        self.labels = y.detach().cpu().long().clone()

    @property
    def ids(self) -> Sequence[str]:
        return [str(index) for index in range(len(self))]

    def __len__(self) -> int:
        return len(self.pixels)

    def images(self, index: Tensor, /) -> Tensor:
        return self.pixels[index.to(self.pixels.device)].float()


def thumbnail(image: Tensor) -> Tensor:
    """An image [C, H, W] scaled down to at most 112 pixels a side, for reports."""
    side = max(image.shape[-2:])
    if side <= _SIDE:
        return image
    height, width = (max(1, round(length * _SIDE / side)) for length in image.shape[-2:])
    return nn.functional.adaptive_avg_pool2d(image, (height, width))


def skipped_flags(images: object) -> list[Flag]:
    """A flag if images were skipped on request."""
    left_out = tuple(getattr(images, "skipped", ()))
    if not left_out:
        return []
    named = "; ".join(left_out[:_NAMED]) + ("; ..." if len(left_out) > _NAMED else "")
    sentence = f"{len(left_out)} images were skipped on request: {named}"
    return [Flag("images-skipped", sentence, {"images": len(left_out)})]


def check_class_count(model: nn.Module, data: DataSet) -> None:
    """Raise a UsageError if the model is known to have a different number of classes than the data.

    The shapes of cue-conflict images are not classes of the model: the suite `shape-bias` maps them.
    """
    known = getattr(getattr(model, "spec", None), "output_classes", None)
    if known is None or known == data.num_classes or data.classes == SHAPES:
        return
    raise UsageError(
        f"the model has {known} output classes and {data.spec} has {data.num_classes}, so labels do not match its "
        f"outputs. Choose a model with {data.num_classes} classes, or data with all {known}: imagenet:DIR has all of "
        "ImageNet's classes, also if some have no images."
    )


def check_writable_names(data: DataSet, split: str) -> None:
    """Raise a UsageError if the name of an image or of a class is not UTF-8, as the files of an evaluation are."""
    for what, names in (("class", data.classes), ("image", data.split(split).ids)):
        if (name := _not_utf8(names)) is not None:
            raise UsageError(
                f"the {what} {name!a} of {data.spec} has a name that is not UTF-8, and no row can hold it. "
                "Rename its file or folder."
            )


def _not_utf8(names: Iterable[str]) -> str | None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            return name
    return None
