"""What an attack leaves behind."""

from dataclasses import dataclass

from torch import Tensor

from vitadel.core.flags import Flag


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

    def columns(self) -> dict[str, Tensor]:
        """What a table of results keeps of every image: `success`, `prediction` and `distance`, each [B]."""
        return {"success": self.success, "prediction": self.prediction, "distance": self.distance}
