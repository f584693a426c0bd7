"""Findings on their way to the journal."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from vitadel.attacks import ImageResult
from vitadel.evaluate.journal import Page

# how many findings, or seconds of them, a kill may cost
_LINES, _SECONDS = 256, 20.0
# what an attack says of itself for every image it was tried on
COSTS = ("forwards", "backwards", "seconds", "zero_gradients", "rejected")


@dataclass(slots=True)
class Book:
    """Findings on their way to a page: written down in portions, since every portion is a file."""

    page: Page
    score: Callable[[list[int], list[Tensor]], Mapping[str, list[float]]]
    settle: Callable[[], None]
    lines: list[tuple[int, ImageResult]] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)

    def add(self, row: int, finding: ImageResult) -> None:
        self.lines.append((row, finding))
        if len(self.lines) >= _LINES or time.monotonic() - self.since > _SECONDS:
            self.close()

    def close(self) -> None:
        if self.lines:
            self.settle()
            columns: dict[str, list[object]] = {"row": [row for row, _ in self.lines]}
            for name in ("success", "prediction", "distance", *COSTS):
                columns[name] = [getattr(finding, name) for _, finding in self.lines]
            self.page.add(
                {**columns, **self.score([row for row, _ in self.lines], [found.x_adv for _, found in self.lines])}
            )
        self.lines, self.since = [], time.monotonic()
