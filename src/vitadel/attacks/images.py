"""Checks of the images that are attacked, for attacks and for evaluations."""

from torch import Tensor

from vitadel.core.errors import UsageError


def check_images(x: Tensor) -> None:
    """Raise if these are not images that can be attacked: a batch of floats in [0, 1], with values.

    Args:
        x: [B, ...] the images.

    Raises:
        UsageError: If they are something else; it says how to make images of it.
    """
    if not isinstance(x, Tensor):
        raise UsageError(f"attacks take images as a tensor, got {type(x).__name__}. Write torch.as_tensor(images).")
    if not x.is_floating_point():
        raise UsageError(
            f"attacks take a batch of float images, got {x.dtype} of shape {list(x.shape)}. "
            "Write x.float() / 255 for bytes."
        )
    if x.ndim < 2:
        raise UsageError(
            f"attacks take a batch of float images, got {x.dtype} of shape {list(x.shape)}. "
            "Write x.unsqueeze(0) for one image."
        )
    refuse_meta("images", x)
    if len(x) == 0:
        raise UsageError("attacks take at least one image, got an empty batch. Check what the images were chosen by.")
    low, high = x.min().item(), x.max().item()
    if not (low >= 0 and high <= 1):
        raise UsageError(
            f"attacks take pixels in [0, 1], got [{low:.3g}, {high:.3g}]. Normalization belongs inside the model: "
            "write vitadel.models.wrap(net, mean=..., std=...). Divide bytes by 255."
        )


def refuse_meta(what: str, values: Tensor) -> None:
    """Raise if a tensor is on the meta device."""
    if values.is_meta:
        raise UsageError(f"the {what} are on the meta device and have no values. Make them outside of it.")
