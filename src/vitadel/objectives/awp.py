"""Training at the worst weights nearby."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor, distributed, nn

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range, check_ranges
from vitadel.objectives.attention_scaling import AttentionScaling
from vitadel.objectives.base import Examples, Objective, Step, undistributed
from vitadel.objectives.schedule import TrainingTime

_TINY = 1e-20


@dataclass(frozen=True, slots=True)
class AWP(Objective):
    r"""Adversarial weight perturbation around any objective (Wu et al. 2020, arXiv:2004.05884).

    .. math:: v = \gamma \lVert w \rVert \, g / \lVert g \rVert

    The loss is taken at :math:`w + v`, per weight matrix, with :math:`g` its gradient on the same examples; what is
    updated is :math:`w`. Only tensors named ``weight`` with two dimensions or more move: norms, biases, class token and
    positions stay. Begins at epoch ``start``. The attack is not run again for the second look, and running statistics
    count the batch once.

    The authors' code takes :math:`v` back after the optimizer's update, this one before it: the two differ by the
    weight decay of :math:`v`, a part in a million.
    """

    inner: Objective
    gamma: Annotated[float, Range(gt=0, hint="Train without AWP for none.")] = 0.005
    start: Annotated[int, Range(ge=0, hint="It is an epoch.")] = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if isinstance(self.inner, AttentionScaling):
            raise UsageError("AWP cannot hold AttentionScaling. Write AttentionScaling(AWP(...)).")

    def begin(self, model: nn.Module) -> None:
        self.inner.begin(model)

    @property
    def selective(self) -> bool:
        return self.inner.selective

    def at(self, moment: TrainingTime) -> Objective:
        inner = self.inner.at(moment)
        return inner if moment.whole_epoch < self.start else replace(self, inner=inner)

    @property
    def passes(self) -> float:
        return self.inner.passes + self.inner.loss_passes

    @property
    def loss_passes(self) -> float:
        return 2 * self.inner.loss_passes

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        return self.inner.prepare(model, x, y, seed=seed, index_B=index_B)

    def loss(self, model: nn.Module, examples: Examples) -> Step:
        back = _move_weights(model, lambda local: self.inner.loss(local, examples), self.gamma)
        step = self.inner.loss(model, examples)

        def undo() -> None:
            step.undo()
            back()

        return replace(step, undo=undo)


def _move_weights(model: nn.Module, look: Callable[[nn.Module], Step], gamma: float) -> Callable[[], None]:
    """Move the weights to where the loss is worse; returns what takes them back."""
    local = undistributed(model)
    with _same_buffers(local):
        seen = look(local)
        # after the look, which may leave weights out
        weights = [
            parameter
            for name, parameter in local.named_parameters()
            if name.endswith("weight") and parameter.ndim > 1 and parameter.requires_grad
        ]
        grads = torch.autograd.grad(seen.loss, weights, allow_unused=True)
        seen.undo()
    before = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for weight, grad in zip(weights, grads, strict=True):
            if grad is not None:
                shared = _mean_over_ranks(grad)
                weight.add_(shared * (gamma * weight.norm() / (shared.norm() + _TINY)))
    # autocast remembers the weights it has rounded, and would show the loss those from before the move
    torch.clear_autocast_cache()

    @torch.no_grad()
    def undo() -> None:
        for weight, old in zip(weights, before, strict=True):
            weight.copy_(old)

    return undo


def _mean_over_ranks(grad: Tensor) -> Tensor:
    """All ranks move their weights alike, as one rank with the whole batch would."""
    if not distributed.is_initialized():
        return grad
    grad = grad.contiguous()
    distributed.all_reduce(grad)
    return grad / distributed.get_world_size()


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    """Running statistics as they were: the batch is counted once, at the moved weights."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    yield
    with torch.no_grad():
        for buffer, old in before:
            buffer.copy_(old)
