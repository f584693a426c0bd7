"""The images an engine works on, and what it finds out about them."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal


@dataclass(frozen=True, slots=True)
class WorkQueue:
    """The images to attack, fetched when there is room for them.

    `rng` holds a stream per image. `fetch` gets positions in the pool and returns, on the model's device, the pixels,
    the goal and the ranked rivals of the label.
    """

    rng: RandomStreams
    classes: int
    fetch: Callable[[Tensor], tuple[Tensor, Goal, Tensor]]

    def __len__(self) -> int:
        return len(self.rng.key_B)


class NonFiniteError(UsageError):
    """A search met NaN or infinite numbers."""


@dataclass(frozen=True, slots=True)
class ImageResult:
    """What became of one image of a queue: `x_adv` is what fooled the model, or the best attempt.

    `prediction` is the judge's answer to what fooled it, and -1 for a robust image. `rejected` counts successes of the
    search that the judge did not share. Attacks that count by the batch share their counts out evenly.
    """

    index: int
    success: bool
    x_adv: Tensor
    prediction: int
    distance: float
    forwards: float
    backwards: float
    zero_gradients: float
    rejected: int
    seconds: float
