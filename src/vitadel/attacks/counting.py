"""An oracle whose every use is counted."""

import torch
from torch import Tensor

from vitadel.attacks.oracle import Model, Oracle
from vitadel.core.flags import Flag

# the share of exactly zero gradients from which on a gradient attack cannot be believed
_ZERO_SHARE = 0.01


class CountingOracle(Oracle):
    """Counts images sent forward and backward, and gradients that lead nowhere."""

    def __init__(self, model: Model, highest_class: int) -> None:
        super().__init__(model, highest_class)
        self.forwards = 0
        self.backwards = 0
        self._zeros: Tensor | int = 0
        self._blind: Tensor | int = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        return super().__call__(x)

    def pull_back(self, slope_BK: Tensor, z_BK: Tensor, x: Tensor, *, again: bool = False) -> Tensor:
        self.backwards += len(x)
        grad = super().pull_back(slope_BK, z_BK, x, again=again)
        self._zeros = self._zeros + is_zero(grad).sum()
        # counted, not raised: asking here would make every step wait for the device
        self._blind = self._blind + (~is_finite(grad) & is_finite(z_BK.detach())).sum()
        return grad

    def blind(self) -> int:
        """How many gradients of finite logits were not finite."""
        return int(self._blind)

    def zero_gradients(self) -> int:
        """How many gradients were exactly zero."""
        return int(self._zeros)


def is_zero(grad: Tensor) -> Tensor:
    """[B] truth values: is nothing in this gradient but zeros?"""
    return (grad.flatten(1) == 0).all(1)


def is_finite(values: Tensor) -> Tensor:
    """[B] truth values: is every number of this row a number?"""
    return torch.isfinite(values.flatten(1)).all(1)


def zero_gradient_flags(zero: int, gradients: int) -> tuple[Flag, ...]:
    """A flag if so many of the input gradients were exactly zero that a gradient attack cannot be believed."""
    if zero < _ZERO_SHARE * max(1, gradients):
        return ()
    sentence = f"{zero} of {gradients} input gradients were exactly zero: gradient attacks understate what is possible"
    return (Flag("zero-gradients", sentence, {"zero": zero, "gradients": gradients}),)
