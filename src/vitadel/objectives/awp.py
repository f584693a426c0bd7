"""AWP: the loss at adversarially perturbed weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import nn

from vitadel.core.buffers import restored_buffers
from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range, check_ranges
from vitadel.objectives.attention_scaling import AttentionScaling
from vitadel.objectives.base import Examples, LossOutput, Objective, TrainingTime, WrappedObjective, unwrapped

_TINY = 1e-20


@dataclass(frozen=True, slots=True)
class AWP(WrappedObjective):
    r"""Adversarial weight perturbation around any objective (Wu et al. 2020, arXiv:2004.05884).

    .. math:: v = \gamma \lVert w \rVert \, g / \lVert g \rVert

    The loss is evaluated at :math:`w + v`, per weight matrix, with :math:`g` its gradient on the same examples; the
    update is applied to :math:`w`. Only tensors named ``weight`` with two dimensions or more are perturbed: norms,
    biases, class token and position embeddings are not. The attack runs once, and running statistics are updated once.

    The authors' code restores :math:`w` after the optimizer's update, this one before it: the two differ by the weight
    decay of :math:`v`, a part in a million.

    Args:
        inner: The objective whose loss is evaluated.
        gamma: The size of the perturbation relative to the weights.
        start: The first epoch in which weights are perturbed.
    """

    inner: Objective
    gamma: Annotated[float, Range(gt=0, hint="Train without AWP for none.")] = 0.005
    start: Annotated[int, Range(ge=0, hint="It is an epoch.")] = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if isinstance(self.inner, AttentionScaling):
            raise UsageError("AWP cannot hold AttentionScaling. Write AttentionScaling(AWP(...)).")

    def at(self, time: TrainingTime) -> Objective:
        inner = self.inner.at(time)
        return inner if time.epoch_index < self.start else replace(self, inner=inner)

    @property
    def passes(self) -> float:
        return self.inner.passes + self.inner.loss_passes

    @property
    def loss_passes(self) -> float:
        return 2 * self.inner.loss_passes

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        restore = _perturb_weights(unwrapped(model), lambda local: self.inner.loss(local, examples), self.gamma)
        try:
            output = self.inner.loss(model, examples)
        except BaseException:
            restore()
            raise

        def undo() -> None:
            output.undo()
            restore()

        return replace(output, undo=undo)


def _perturb_weights(model: nn.Module, loss: Callable[[nn.Module], LossOutput], gamma: float) -> Callable[[], None]:
    """Move the weights along the gradient of the loss; returns a function that restores them."""
    # running statistics count the batch once, at the perturbed weights
    with restored_buffers(model):
        output = loss(model)
        # computed after the loss, which may freeze some of the weights
        weights = [
            parameter
            for name, parameter in model.named_parameters()
            if name.endswith("weight") and parameter.ndim > 1 and parameter.requires_grad
        ]
        try:
            grads = torch.autograd.grad(output.loss, weights, allow_unused=True)
        finally:
            output.undo()
    # the same on all processes, as one process with the whole batch would have it
    ranks = Ranks.current()
    shared = [None if grad is None else ranks.mean(grad) for grad in grads]
    before = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for weight, grad in zip(weights, shared, strict=True):
            if grad is not None:
                weight.add_(grad * (gamma * weight.norm() / (grad.norm() + _TINY)))
    # autocast has cached rounded copies of the weights before the perturbation
    torch.clear_autocast_cache()

    @torch.no_grad()
    def restore() -> None:
        for weight, old in zip(weights, before, strict=True):
            weight.copy_(old)

    return restore
