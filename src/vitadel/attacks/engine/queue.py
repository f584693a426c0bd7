"""The images an engine attacks, and the result for each."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal


@dataclass(frozen=True, slots=True)
class WorkQueue:
    """The images to attack, loaded when a batch has space for them.

    Args:
        rng: A random stream per image.
        num_classes: The number of classes of the model.
        fetch: Takes indices into the queue and returns, on the model's device, the images [B, C, H, W], their goal, and
            the classes other than the label [B, T] by descending clean logit.
    """

    rng: RandomStreams
    num_classes: int
    fetch: Callable[[Tensor], tuple[Tensor, Goal, Tensor]]

    def __len__(self) -> int:
        return len(self.rng.key_B)


class NonFiniteError(UsageError):
    """The model returned NaN or infinite logits or gradients in a search."""


@dataclass(frozen=True, slots=True)
class ImageResult:
    """The result of an attack on one image.

    Args:
        index: The image's index in the queue.
        success: Whether an adversarial example was found.
        x_adv: The adversarial example, or the best attempt.
        prediction: The judge's class for an adversarial example, -1 for a robust image.
        distance: The distance of `x_adv` in the threat's norm.
        forwards: Forward passes; an attack that counts by the batch shares its counts out evenly.
        backwards: Backward passes.
        zero_gradients: Gradients that were exactly zero.
        rejected: Successes in the search's precision that the judge did not confirm.
        seconds: The image's share of the duration.
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
