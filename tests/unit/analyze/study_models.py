"""Models and interrupted runs for the tests of studies, and the hooks of a model."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vitadel.analyze import Study, run_study, tensor_context
from vitadel.runs import ResultFolder

Net = TypeVar("Net", bound=nn.Module)


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
