"""The model as an attack sees it: a function with a gradient, whose every use is counted."""

from collections.abc import Callable

import torch
from torch import Tensor

from vitadel.attacks.result import Flag
from vitadel.errors import UsageError
from vitadel.goals import Goal

Model = Callable[[Tensor], Tensor]

# the share of exactly zero gradients from which on a gradient attack cannot be believed
_ZERO_SHARE = 0.01


class Counted:
    """Counts images sent forward and backward, and refuses answers that are not logits for the goal's classes."""

    def __init__(self, model: Model, highest_class: int) -> None:
        self.forwards = 0
        self.backwards = 0
        self._model = model
        self._highest_class = highest_class
        self._zeros: Tensor | int = 0
        self._blind: Tensor | int = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Logits in float32, or in float64 if that is what the model computes in."""
        self.forwards += len(x)
        z_BK = self._model(x)
        if z_BK.ndim != 2 or len(z_BK) != len(x):
            raise UsageError(
                f"the model should return logits of shape [{len(x)}, classes], got {list(z_BK.shape)}. "
                "Wrap it so that it returns one row of logits per image."
            )
        if z_BK.shape[1] <= self._highest_class:
            raise UsageError(
                f"label {self._highest_class} is out of range: the model returns {z_BK.shape[1]} classes. "
                f"Labels must lie in 0..{z_BK.shape[1] - 1}; is it the model for this data set?"
            )
        return z_BK if z_BK.dtype == torch.float64 else z_BK.float()

    def gradient(self, x: Tensor, goal: Goal) -> tuple[Tensor, Tensor, Tensor]:
        """Gain [B], its gradient with respect to the pixels, and the logits behind both."""
        x = x.detach().requires_grad_()
        z_BK = self(x)
        gain_B = goal.gain(z_BK)
        self.backwards += len(x)
        if gain_B.requires_grad:
            (grad,) = torch.autograd.grad(gain_B.sum(), x, materialize_grads=True)
        else:  # the model cuts the path from pixels to logits
            grad = torch.zeros_like(x)
        self._zeros = self._zeros + (grad.flatten(1) == 0).all(1).sum()
        # counted, not raised: asking here would make every step wait for the device
        self._blind = self._blind + (~grad.flatten(1).isfinite().all(1) & z_BK.isfinite().all(1)).sum()
        return gain_B.detach(), grad, z_BK.detach()

    def blind(self) -> int:
        """How many gradients of finite logits were not finite."""
        return int(self._blind)

    def zero_gradients(self) -> int:
        """How many gradients were exactly zero."""
        return int(self._zeros)


def zero_gradient_flags(zero: int, gradients: int) -> tuple[Flag, ...]:
    """A flag if so many of the input gradients were exactly zero that a gradient attack cannot be believed."""
    if zero < _ZERO_SHARE * max(1, gradients):
        return ()
    sentence = f"{zero} of {gradients} input gradients were exactly zero: gradient attacks understate what is possible"
    return (Flag("zero-gradients", sentence, {"zero": zero, "gradients": gradients}),)
