"""`vd.load_model`: load a model that takes pixels in [0, 1]."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import torch
from torch import nn

from vitadel import models
from vitadel.api.arguments import check_arguments, check_types, device_of_text
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


# a separate object, to distinguish device="cpu" from no device given
_CPU = torch.device("cpu")


class ModelOptions(TypedDict, total=False):
    """The arguments of `load_model` for a model that is given as text to another function."""

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
            `nn.Module` that takes normalized images, which is wrapped. A module keeps its shape and weights, so only
            `mean`, `std` and `device` apply to it.
        num_classes: Number of classes; a head of another size is replaced by a new one.
        image_size: Input size in pixels; position embeddings are interpolated.
        patch_size: Patch size in pixels; the patch-embedding kernel is resampled.
        mean: Mean of pixels, one number or one per channel; by default that of the architecture.
        std: Standard deviation of pixels; given together with `mean`.
        options: Further arguments of timm's constructor, such as `{"drop_path_rate": 0.1}`.
        pretrained: Download timm's weights.
        keep_head: Refuse another number of classes instead of replacing a trained head.
        seed: Seeds the initialization of weights that no file provides.
        device: `cpu`, `cuda`, ...; None for the GPU if available; by default the CPU. A module stays on its device
            unless another is given.

    Returns:
        An `nn.Module` that includes the normalization, with `taps` for its activations.

    Raises:
        UsageError: If there is no such model, or its weights do not fit.

    Example:
        >>> model = load_model("timm:vit_tiny_patch16_224", num_classes=10, image_size=32, patch_size=4)
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    check_arguments(load_model, other, _ELSEWHERE)
    check_types(load_model, locals())
    if model is None or model == "":
        raise UsageError(f'load_model needs a model, got {model!r}. Write "timm:NAME", or name a folder or a file.')
    normalization = _normalization(mean, std)
    if isinstance(model, nn.Module):
        shape = {"num_classes": num_classes, "image_size": image_size, "patch_size": patch_size, "options": options}
        _check_module_arguments({**shape, "pretrained": pretrained or None, "seed": seed or None})
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


def _check_module_arguments(given: Mapping[str, object]) -> None:
    """Refuse options that do not apply to a module, which is already built."""
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
