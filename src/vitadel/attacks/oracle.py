"""The model as a search sees it: a function with a gradient.

Shape letters: B images, K classes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.goals import Goal
from vitadel.threats import per_image

Model = Callable[[Tensor], Tensor]

# the power of two at which slopes travel back through the model; half precision holds it well
_TRAVEL_AT = 6
_TINY = 1e-30
_PRECISIONS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def as_logits(answer: object) -> Tensor:
    """What a model answered, if it is a tensor; many return it inside something else."""
    if isinstance(answer, Tensor):
        return answer
    raise UsageError(
        f"the model should return logits, got a {type(answer).__name__}. "
        "Wrap it in a module that returns the tensor alone, such as `net(x).logits` or `net(x)[0]`."
    )


def in_own_precision(model: object, x: Tensor) -> Tensor:
    """The pixels in the precision that the model computes in: that of its first floating-point weight.

    Searches keep pixels in float32 or float64 whatever the model computes in: bfloat16 cannot tell apart the pixels of
    a ball of 8/255. The model sees them rounded, and gradients come back unrounded.
    """
    if not isinstance(model, nn.Module):
        return x
    weight = next((one for one in model.parameters() if one.dtype in _PRECISIONS), None)
    return x if weight is None else x.to(weight.dtype)


class Oracle:
    """Answers with logits in float32 and refuses answers that are not logits for the goal's classes.

    `calls` and `pullbacks` count batches sent forward and backward.
    """

    def __init__(self, model: Model, highest_class: int = -1) -> None:
        self.calls = 0
        self.pullbacks = 0
        self._model = model
        self._highest_class = highest_class

    def __call__(self, x: Tensor) -> Tensor:
        """Logits in float32, or in float64 if both the pixels and what the model computes in are."""
        self.calls += 1
        z_BK = as_logits(self._model(in_own_precision(self._model, x)))
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
        return z_BK if z_BK.dtype == x.dtype == torch.float64 else z_BK.float()

    @property
    def model(self) -> Model:
        """What answers."""
        return self._model

    @contextmanager
    def seen_through(self, view: Callable[[Model], Model]) -> Iterator[None]:
        """Inside, `view` of the model answers in its place; what it costs is counted with the rest."""
        model, self._model = self._model, view(self._model)
        try:
            yield
        finally:
            self._model = model

    def gradient(self, x: Tensor, goal: Goal) -> tuple[Tensor, Tensor, Tensor]:
        """Gain [B], its gradient with respect to the pixels, and the logits behind both."""
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            z_BK = self(x)
            leaf = z_BK.detach().requires_grad_()
            objective_B = goal.objective(leaf)
            (slope_BK,) = torch.autograd.grad(objective_B.sum(), leaf)
        return objective_B.detach(), self.pull_back(slope_BK, z_BK, x), z_BK.detach()

    def pull_back(self, slope_BK: Tensor, z_BK: Tensor, x: Tensor, *, again: bool = False) -> Tensor:
        """What `slope_BK` at the logits is at the pixels; zero if the model cuts the path between them.

        Slopes travel through the model at about the same size, so that those of a saturated softmax do not vanish on
        the way. The factors are powers of two: taking them out again changes no digit.
        """
        self.pullbacks += 1
        if not z_BK.requires_grad:
            return torch.zeros_like(x)
        steepest_B1 = slope_BK.abs().amax(1, keepdim=True)
        factor_B1 = torch.exp2(_TRAVEL_AT - steepest_B1.clamp_min(_TINY).log2().ceil())
        (grad,) = torch.autograd.grad(z_BK, x, factor_B1 * slope_BK, materialize_grads=True, retain_graph=again)
        return grad / per_image(factor_B1.to(grad.dtype), grad)
