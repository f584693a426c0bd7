"""What the tests of surveys share: images of one gray, a model that reads it, and a folder to write to."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from vitadel.data import DataSet, InMemory, Split, Squash
from vitadel.runs import Run


class Bins(nn.Module):
    """Ten classes: the tenth of [0, 1] in which the mean of all pixels lies. Counts the images it was shown."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.classes, self.seen = classes, 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        middle = (torch.arange(self.classes, device=x.device) + 0.5) / self.classes
        return -(x.double().mean((1, 2, 3))[:, None] - middle).abs().float()


def grays(levels: Sequence[int], labels: Sequence[int] | None = None, *, size: int = 32, classes: int = 10) -> DataSet:
    """One image per gray level, labeled as `Bins` would unless said otherwise."""
    gray = torch.tensor(levels)
    pixels = gray.view(-1, 1, 1, 1).expand(-1, 3, size, size).to(torch.uint8).contiguous()
    right = (gray / 255 * classes).long().clamp_max(classes - 1)
    labeled = right if labels is None else torch.tensor(labels)
    ids = tuple(f"gray/{number:03d}-{level}" for number, level in enumerate(levels))
    split = Split("test", ids, labeled, InMemory(pixels))
    return DataSet("grays", tuple(map(str, range(classes))), Squash(size), None, None, split)


def claim(folder: Path) -> Run:
    return Run.claim(folder, "evaluate", {"seed": 0}, device="cpu")
