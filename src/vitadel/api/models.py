"""`vd.load_model`: a model on pixels in [0, 1] from anywhere."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import torch
from torch import nn

from vitadel import models
from vitadel.api.arguments import device_of_text, refuse_arguments
from vitadel.core.errors import UsageError
from vitadel.models import Model, Normalization, Option

_ELSEWHERE = {
    "img_size": "image_size={value}",
    "input_size": "image_size={value}",
    "classes": "num_classes={value}",
    "n_classes": "num_classes={value}",
    "checkpoint_path": 'load_model("timm:NAME@FILE")',
    "in_chans": "nothing: images have 3 channels, gray ones are repeated",
    "drop_path_rate": 'options={{"drop_path_rate": {value}}}',
    "drop_rate": 'options={{"drop_rate": {value}}}',
    "model_name": 'load_model("timm:{value}")',
    "model_dir": 'load_model("timm:NAME@FILE")',
    "dataset": 'load_model("timm:NAME@FILE")',
    "threat_model": 'threat="linf:8/255" where a model is attacked',
}


# an object of its own, so that `device="cpu"` can be told from no device at all
_CPU = torch.device("cpu")


class ModelOptions(TypedDict, total=False):
    """How a model that is given as text is loaded; the arguments of `load_model` of the same names."""

    num_classes: int | None
    image_size: int | None
    patch_size: int | None
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    device: str | torch.device | None


def load_model(
    model: str | Path | nn.Module | None = None,
    *,
    num_classes: int | None = None,
    image_size: int | None = None,
    patch_size: int | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    options: Mapping[str, Option] | None = None,
    pretrained: bool = False,
    keep_head: bool = False,
    seed: int = 0,
    device: str | torch.device | None = _CPU,
    **other: object,
) -> Model:
    """Load a model that takes pixels in [0, 1] and returns logits, in evaluation mode.

    Args:
        model: `timm:NAME`, `timm:NAME@FILE`, `vitadel:NAME`, `zoo:NAME`, a run folder, a checkpoint file, or any
            `nn.Module` that takes normalized images, which is wrapped. A module keeps its shape and its weights, so
            only `mean`, `std` and `device` go with it.
        num_classes: Another number of classes replaces the head by a fresh one.
        image_size: Side of the images in pixels; positions are resampled.
        patch_size: Side of a patch in pixels; the patch kernel is resampled.
        mean: What is subtracted from pixels, one number or one per channel; by default the architecture's own.
        std: What pixels are divided by; given together with `mean`.
        options: Further arguments of timm's constructor, such as `{"drop_path_rate": 0.1}`.
        pretrained: Download timm's weights.
        keep_head: Refuse another number of classes instead of replacing a trained head.
        seed: Seeds the weights that no file provides.
        device: `cpu`, `cuda`, ...; None for the GPU if there is one; by default the CPU. A module stays where it is
            unless a device is named.

    Returns:
        A plain `nn.Module` with the normalization inside and `taps` for its internal values.

    Raises:
        UsageError: If there is no such model, or its weights do not fit.

    Example:
        >>> model = load_model("timm:vit_tiny_patch16_224", num_classes=10, image_size=32, patch_size=4)
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    refuse_arguments(load_model, other, _ELSEWHERE)
    if model is None or model == "":
        raise UsageError(f'load_model needs a model, got {model!r}. Write "timm:NAME", or name a folder or a file.')
    normalization = _normalization(mean, std)
    if isinstance(model, nn.Module):
        shape = {"num_classes": num_classes, "image_size": image_size, "patch_size": patch_size, "options": options}
        _refuse_for_modules({**shape, "pretrained": pretrained or None, "seed": seed or None})
        wrapped = _wrapped(model, normalization)
        return wrapped if device is None or device is _CPU else wrapped.to(device_of_text(device))
    loaded = models.load(
        model,
        num_classes=num_classes,
        image_size=image_size,
        patch_size=patch_size,
        normalization=normalization,
        options=options,
        pretrained=pretrained,
        keep_head=keep_head,
        seed=seed,
    )
    loaded.source, loaded.normalization_is_assumed = (
        str(model),
        normalization is None and models.normalization_is_unknown(model),
    )
    return loaded.to(device_of_text(device))


def _refuse_for_modules(given: Mapping[str, object]) -> None:
    """Refuse options that a module cannot follow, because it is built and has its weights."""
    if names := [name for name, value in given.items() if value is not None]:
        raise UsageError(
            f"a network that is built already keeps its shape and weights, got {', '.join(names)}. "
            "Leave them out: they are for a model that is given as text."
        )


def _wrapped(model: nn.Module, normalization: Normalization | None) -> Model:
    if normalization is not None:
        return models.wrap(model, mean=normalization.mean, std=normalization.std)
    if isinstance(model, Model):
        return model
    raise UsageError(
        f"load_model wraps a module that takes normalized images, got a {type(model).__name__} without mean and std. "
        "Write load_model(net, mean=0.0, std=1.0) if it takes pixels in [0, 1]."
    )


def _normalization(mean: float | Sequence[float] | None, std: float | Sequence[float] | None) -> Normalization | None:
    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise UsageError(f"a normalization needs mean and std, got mean={mean} and std={std}. Give both.")
    return Normalization.of(mean, std)
