"""The interface of attacks to a model: logits and input gradients, counted.

Shape letters: B images, K classes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.goals import Goal
from vitadel.threats import per_image

Model = Callable[[Tensor], Tensor]

# the binary exponent to which gradients at the logits are scaled; half precision holds it well
_EXPONENT = 6
_TINY = 1e-30
_PRECISIONS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# the share of exactly zero gradients above which a gradient attack is flagged
_ZERO_SHARE = 0.01


def as_logits(output: object) -> Tensor:
    """The output of a model if it is a tensor.

    Raises:
        UsageError: If it is something else, such as an output object that holds the logits.
    """
    if isinstance(output, Tensor):
        return output
    raise UsageError(
        f"the model should return logits, got a {type(output).__name__}. "
        "Wrap it in a module that returns the tensor alone, such as `net(x).logits` or `net(x)[0]`."
    )


def in_own_precision(model: object, x: Tensor) -> Tensor:
    """The pixels in the precision that the model computes in: that of its first floating-point weight.

    Searches keep pixels in float32 or float64 whatever the model computes in: bfloat16 is too coarse for a ball of
    8/255. The model gets rounded pixels, and gradients are not rounded.
    """
    if not isinstance(model, nn.Module):
        return x
    weight = next((one for one in model.parameters() if one.dtype in _PRECISIONS), None)
    return x if weight is None else x.to(weight.dtype)


class Oracle:
    """A model with checked outputs: logits in float32, and gradients of a goal's objective.

    Args:
        model: The model.
        highest_class: The highest class among the labels, to refuse a model with fewer outputs.

    Attributes:
        forward_calls: Number of forward passes, in batches.
        backward_calls: Number of backward passes, in batches.
    """

    def __init__(self, model: Model, highest_class: int = -1) -> None:
        self.forward_calls = 0
        self.backward_calls = 0
        self._model = model
        self._highest_class = highest_class

    def __call__(self, x: Tensor) -> Tensor:
        """Logits in float32, or in float64 if both the pixels and what the model computes in are.

        Raises:
            UsageError: If the output is not a tensor [B, K], or has no class for one of the labels.
        """
        self.forward_calls += 1
        z_BK = as_logits(self._model(in_own_precision(self._model, x)))
        if z_BK.ndim != 2 or len(z_BK) != len(x):
            raise UsageError(
                f"the model should return logits of shape [{len(x)}, classes], got {list(z_BK.shape)}. "
                "Wrap it so that it returns one row of logits per image."
            )
        if z_BK.shape[1] <= self._highest_class:
            raise UsageError(
                f"label {self._highest_class} is out of range: the model returns {z_BK.shape[1]} classes. "
                f"Give labels from 0 to {z_BK.shape[1] - 1}, or the model for these labels."
            )
        return z_BK if z_BK.dtype == x.dtype == torch.float64 else z_BK.float()

    @property
    def model(self) -> Model:
        """The model itself; direct calls of it are not counted."""
        return self._model

    @contextmanager
    def with_model(self, transform: Callable[[Model], Model]) -> Iterator[None]:
        """Context manager: evaluate `transform(model)` instead of the model, with the same counters."""
        model, self._model = self._model, transform(self._model)
        try:
            yield
        finally:
            self._model = model

    def gradient(self, x: Tensor, goal: Goal) -> tuple[Tensor, Tensor, Tensor]:
        """The goal's objective, its gradient with respect to the pixels, and the logits.

        Args:
            x: [B, C, H, W] pixels.
            goal: The adversary's goal, for these images.

        Returns:
            Objective [B], gradient [B, C, H, W] in the precision of `x`, and logits [B, K] as a call returns them;
            none of them has a graph.
        """
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            z_BK = self(x)
            leaf = z_BK.detach().requires_grad_()
            objective_B = goal.objective(leaf)
            (grad_BK,) = torch.autograd.grad(objective_B.sum(), leaf)
        return objective_B.detach(), self.input_gradient(grad_BK, z_BK, x), z_BK.detach()

    def input_gradient(self, grad_BK: Tensor, z_BK: Tensor, x: Tensor, *, retain_graph: bool = False) -> Tensor:
        """The gradient at the pixels for a gradient at the logits; zero if the graph between them is cut.

        Gradients at the logits are scaled to about the same magnitude, so that those of a saturated softmax do not
        underflow. The factors are powers of two, so that dividing by them afterwards is exact.
        """
        self.backward_calls += 1
        if not z_BK.requires_grad:
            return torch.zeros_like(x)
        largest_B1 = grad_BK.abs().amax(1, keepdim=True)
        factor_B1 = torch.exp2(_EXPONENT - largest_B1.clamp_min(_TINY).log2().ceil())
        (grad,) = torch.autograd.grad(z_BK, x, factor_B1 * grad_BK, materialize_grads=True, retain_graph=retain_graph)
        return grad / per_image(factor_B1.to(grad.dtype), grad)


class CountingOracle(Oracle):
    """An oracle that counts forward and backward passes in images, and gradients that are zero or not finite."""

    def __init__(self, model: Model, highest_class: int) -> None:
        super().__init__(model, highest_class)
        self.forwards = 0
        self.backwards = 0
        self._zeros: Tensor | int = 0
        self._nonfinite: Tensor | int = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        return super().__call__(x)

    def input_gradient(self, grad_BK: Tensor, z_BK: Tensor, x: Tensor, *, retain_graph: bool = False) -> Tensor:
        self.backwards += len(x)
        grad = super().input_gradient(grad_BK, z_BK, x, retain_graph=retain_graph)
        self._zeros = self._zeros + is_zero(grad).sum()
        # counted, not raised: a test would synchronize with the device in every step
        self._nonfinite = self._nonfinite + (~is_finite(grad) & is_finite(z_BK.detach())).sum()
        return grad

    def nonfinite_gradients(self) -> int:
        """How many gradients of finite logits were not finite."""
        return int(self._nonfinite)

    def zero_gradients(self) -> int:
        """How many gradients were exactly zero."""
        return int(self._zeros)


def is_zero(grad: Tensor) -> Tensor:
    """[B] whether all values of each image's gradient are zero."""
    return (grad.flatten(1) == 0).all(1)


def is_finite(values: Tensor) -> Tensor:
    """[B] whether all values of each row are finite."""
    return torch.isfinite(values.flatten(1)).all(1)


def zero_gradient_flags(zero: int, gradients: int) -> tuple[Flag, ...]:
    """A flag if 1% or more of the input gradients were exactly zero, so that gradient attacks cannot be trusted."""
    if zero < _ZERO_SHARE * max(1, gradients):
        return ()
    sentence = f"{zero} of {gradients} input gradients were exactly zero: gradient attacks understate what is possible"
    return (Flag("zero-gradients", sentence, {"zero": zero, "gradients": gradients}),)
