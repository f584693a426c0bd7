"""Images with labels, in a fixed order: a split of a data set, or tensors that a caller has."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from vitadel.core.errors import UsageError


class Images(Protocol):
    """Images in a fixed order, read when they are needed; a `vitadel.data.Split` is one."""

    @property
    def labels(self) -> Tensor:
        """[n] class numbers, on the CPU."""

    @property
    def ids(self) -> Sequence[str]:
        """A name for each."""

    def __len__(self) -> int:
        """How many there are."""

    def images(self, index: Tensor, /) -> Tensor:
        """float32 [B, 3, H, W] in [0, 1], on the CPU or where the caller has them."""


class TensorImages:
    """Images and labels that a caller has as tensors.

    Args:
        x: Floats [n, channels, height, width] in [0, 1].
        y: [n] class numbers.

    Raises:
        UsageError: If they are no images and labels of that form.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        for name, value in (("images", x), ("labels", y)):
            if not isinstance(value, Tensor):
                raise UsageError(f"{name} must be a tensor, got {type(value).__name__}. Write torch.as_tensor({name}).")
        if x.ndim != 4 or not x.is_floating_point() or len(x) == 0:
            raise UsageError(f"images must be floats [n, channels, rows, columns], got {x.dtype} of {list(x.shape)}.")
        if x.is_meta or y.is_meta:
            raise UsageError("images and labels on the meta device have no values. Make them outside of it.")
        if y.ndim != 1 or len(y) != len(x):
            raise UsageError(f"got {len(x)} images and labels of shape {list(y.shape)}. Give one label per image.")
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise UsageError(f"labels must be class numbers, got {y.dtype}. Write y.long() if they are whole.")
        low, high = float(x.min()), float(x.max())
        if not (low >= 0 and high <= 1):
            raise UsageError(
                f"attacks take pixels in [0, 1], got [{low:.3g}, {high:.3g}]. "
                "Normalization belongs inside the model: vitadel.models.wrap(net, mean=..., std=...)."
            )
        # tensors made in inference mode are of no use in a gradient
        self.pixels = x.detach().clone() if x.is_inference() else x.detach()
        self.labels = y.detach().cpu().long().clone()

    @property
    def ids(self) -> Sequence[str]:
        return [str(index) for index in range(len(self))]

    def __len__(self) -> int:
        return len(self.pixels)

    def images(self, index: Tensor, /) -> Tensor:
        return self.pixels[index.to(self.pixels.device)].float()
