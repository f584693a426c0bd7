"""Shared by tests of training: a tiny model, runs, interruptions, and comparisons of weights."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from vitadel import models
from vitadel.core.progress import ProgressCallback
from vitadel.models import Model
from vitadel.runs import Run


class Interrupted(BaseException):
    """Simulates an interruption: nothing may catch it."""


def tiny_vit(**options: float) -> Model:
    small = {"depth": 2, "embed_dim": 32, "num_heads": 2, **options}
    return models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=small)


def claim(folder: Path) -> Run:
    return Run.claim(folder, "train", {"seed": 0}, device="cpu")


def weights(run: Run, name: str = "final") -> dict[str, Tensor]:
    return models.read_tensors(run.checkpoints / f"{name}.safetensors")[0]


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def interrupt_at(step: int) -> ProgressCallback:
    def notify(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if done == step:
            raise Interrupted

    return notify
