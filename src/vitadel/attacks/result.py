"""What an attack leaves behind."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Flag:
    """A reason to trust a number less: a code for programs, a sentence for people, the evidence for both."""

    code: str
    sentence: str
    evidence: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class AttackResult:
    """The images found and what finding them cost; `forwards` and `backwards` count images, not batches.

    `zero_gradients` of the `backwards` gave exactly nothing. The flags judge this batch alone; whoever adds up batches
    judges the sums.
    """

    x_adv: Tensor
    success: Tensor
    prediction: Tensor
    distance: Tensor
    forwards: int
    backwards: int
    seconds: float
    zero_gradients: int
    flags: tuple[Flag, ...] = ()
