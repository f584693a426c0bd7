"""What an attack returns."""

from dataclasses import dataclass

from torch import Tensor

from vitadel.core.flags import Flag


@dataclass(frozen=True, slots=True, repr=False)
class AttackResult:
    """Adversarial images of one batch, whether they are successful, and the cost of the search.

    Args:
        x_adv: [B, C, H, W] adversarial images, projected; where none was found, the best attempt.
        success: [B] whether each image reaches the goal, judged by the unmodified model in the precision of its
            weights; logits are compared in float32.
        prediction: [B] the class of each `x_adv`.
        distance: [B] the distance of each `x_adv` from its original in the threat's norm.
        forwards: Forward passes, counted in images.
        backwards: Backward passes, counted in images.
        seconds: Duration of the call.
        zero_gradients: Backward passes whose input gradient was exactly zero.
        flags: Reasons why the result of this batch may be unreliable.

    Example:
        >>> result = PGD(steps=10)(model, x, y, "linf:8/255")
        >>> robust_accuracy = 1 - result.success.float().mean()
        >>> bool((result.distance <= 8 / 255 + 1e-6).all())
        True
        >>> result.columns().keys()
        dict_keys(['success', 'prediction', 'distance'])
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

    def __repr__(self) -> str:
        flags = f", flags={[flag.code for flag in self.flags]}" if self.flags else ""
        return (
            f"AttackResult({int(self.success.sum())} of {len(self.success)} images succeed, distance up to "
            f"{self.distance.max().item():.4g}, {self.forwards} forwards, {self.backwards} backwards, "
            f"{self.seconds:.2g} s{flags})"
        )

    def columns(self) -> dict[str, Tensor]:
        """The columns `success`, `prediction` and `distance` of a table of results, each [B]."""
        return {"success": self.success, "prediction": self.prediction, "distance": self.distance}

    def to_dict(self) -> dict[str, object]:
        """Everything except the images, as plain JSON values; `success`, `prediction` and `distance` are lists."""
        return {
            **{name: column.tolist() for name, column in self.columns().items()},
            "forwards": self.forwards,
            "backwards": self.backwards,
            "seconds": self.seconds,
            "zero_gradients": self.zero_gradients,
            "flags": [
                {"code": flag.code, "sentence": flag.sentence, "evidence": dict(flag.evidence)} for flag in self.flags
            ],
        }
