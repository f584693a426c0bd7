"""Models and interrupted runs for the tests of studies, and the hooks of a model."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vitadel.analyze import Study, run_study, tensor_context
from vitadel.models import Model, Option, load
from vitadel.runs import ResultFolder

Net = TypeVar("Net", bound=nn.Module)

# architecture, patch size at 32 px, options
_TINY: dict[str, tuple[str, int | None, dict[str, Option]]] = {
    "vit": ("timm:vit_tiny_patch16_224", 8, {"depth": 3, "embed_dim": 48}),
    "registers": ("timm:vit_tiny_patch16_224", 8, {"depth": 3, "embed_dim": 48, "reg_tokens": 2}),
    "pooled": (
        *("timm:vit_tiny_patch16_224", 8),
        {"depth": 3, "embed_dim": 48, "class_token": False, "global_pool": "avg"},
    ),
    "distilled": ("timm:deit_tiny_distilled_patch16_224", 8, {"depth": 2, "embed_dim": 48}),
    "cait": ("timm:cait_xxs24_224", 8, {"depth": 2, "embed_dim": 48}),
    "xcit": ("timm:xcit_nano_12_p16_224", 8, {"depth": 2, "embed_dim": 48}),
    "swin": ("timm:swin_tiny_patch4_window7_224", 4, {"embed_dim": 24, "window_size": 4}),
    "levit": ("timm:levit_128s", 8, {"stem_type": "s8", "num_heads": 2}),
    "resnet": ("timm:resnet18", None, {}),
    "convnext": ("timm:convnext_atto", None, {}),
    "wrn": ("vitadel:wrn28_10", None, {}),
}


def tiny(family: str, *, num_classes: int = 5, seed: int = 0, **options: Option) -> Model:
    """A small model for images of 32 px, with further options of its architecture."""
    name, patch, usual = _TINY[family]
    return load(name, num_classes=num_classes, image_size=32, patch_size=patch, options={**usual, **options}, seed=seed)


def noisy_weights(model: Net, amount: float) -> Net:
    """The model with noise on every weight, so that all of them matter, layer scales too."""
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(amount * torch.randn(weight.shape, generator=rng))
    return model.eval()


def hooks(model: nn.Module) -> list[int]:
    """How many hooks each module has; those that fix BatchNorm are there before any study."""
    return [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]


def studied_in(
    folder: Path,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: Study,
    *,
    stop_after: float = 1,
    stop_in: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The result of a study whose tables and parts are kept in a folder.

    Args:
        folder: Where they are kept.
        model: The model.
        x: The images.
        y: Their labels.
        settings: The study.
        stop_after: The share of the work after which it is interrupted as by Ctrl-C.
        stop_in: As which work progress reports the part that is interrupted; whichever comes first if not given.
        more: Arguments of `tensor_context`.
    """

    def progress(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if done > stop_after * total and stop_in in (None, what):
            raise KeyboardInterrupt

    ctx = tensor_context(model, x, y, progress=progress, **more)
    return run_study(settings, replace(ctx, store=ResultFolder(folder))).to_json()
