"""Shared by the tests of suites: images of one gray, a model that reads it, a folder to write to, and two ranks."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitadel.core.distributed import Ranks
from vitadel.data import DataSet, InMemory, Split, Squash
from vitadel.runs import ResultFolder, Run


class Bins(nn.Module):
    """Ten classes: the tenth of [0, 1] of the mean of all pixels. Counts its images."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.classes, self.seen = classes, 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        middle = (torch.arange(self.classes, device=x.device) + 0.5) / self.classes
        return -(x.double().mean((1, 2, 3))[:, None] - middle).abs().float()


def gray_images(
    levels: Sequence[int], labels: Sequence[int] | None = None, *, size: int = 32, classes: int = 10
) -> DataSet:
    """One image per gray level, labeled as `Bins` would by default."""
    gray = torch.tensor(levels)
    pixels = gray.view(-1, 1, 1, 1).expand(-1, 3, size, size).to(torch.uint8).contiguous()
    right = (gray / 255 * classes).long().clamp_max(classes - 1)
    labeled = right if labels is None else torch.tensor(labels)
    ids = tuple(f"gray/{number:03d}-{level}" for number, level in enumerate(levels))
    split = Split("test", ids, labeled, InMemory(pixels))
    return DataSet("grays", tuple(map(str, range(classes))), Squash(size), None, None, split)


def claim(folder: Path) -> Run:
    return Run.claim(folder, "evaluate", {"seed": 0}, device="cpu")


def rows_of(folder: Path, name: str = "corruptions") -> dict[str, list[Any]]:
    """The finished rows of one suite in a run folder."""
    return ResultFolder(folder / "eval" / name).rows()


def values(summary: Mapping[str, Any]) -> dict[str, float]:
    """The value of each measure by its name."""
    return {measure["name"]: measure["value"] for measure in summary["measures"]}


def codes(summary: Mapping[str, Any]) -> list[str]:
    """The codes of the flags."""
    return [flag["code"] for flag in summary["flags"]]


def without_time(summary: Mapping[str, object]) -> dict[str, object]:
    """A summary without what differs from run to run."""
    return {key: value for key, value in summary.items() if key != "seconds"}


@dataclass(frozen=True)
class Threads(Ranks):
    """Ranks of one process."""

    together: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))

    def barrier(self) -> None:
        self.together.wait(60)


def on_two_ranks(work: Callable[[Ranks], None]) -> None:
    """Call `work` in two threads, each with its rank."""
    barrier, errors = threading.Barrier(2), list[BaseException]()

    def run(rank: int) -> None:
        try:
            work(Threads(rank, 2, together=barrier))
        except BaseException as error:  # noqa: BLE001
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors
