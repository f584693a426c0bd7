"""A model whose attention scores are multiplied by factors, through its taps, and its logits by another."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vitadel.core.device import is_compiled
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag


class AttentionTaps(Protocol):
    """The taps of a model that attention scaling needs."""

    def attentions(self) -> list[str]:
        """The names of the attention layers, in the order of the factors of `scale`."""

    def scale(self, factors: float | Tensor | Sequence[float]) -> AbstractContextManager[None]:
        """Inside, the products of queries and keys are multiplied by factors."""

    def read(self, pattern: str) -> AbstractContextManager[dict[str, Tensor]]:
        """Inside, the tensors that match, by name, from the latest forward pass."""


@runtime_checkable
class HasTaps(Protocol):
    """A model with taps."""

    @property
    def taps(self) -> AttentionTaps:
        """Its taps."""

    def __call__(self, x: Tensor) -> Tensor:
        """Logits."""


class RescaledModel(nn.Module):
    """`softmax(s q k' / sqrt(d))` in every attention layer, with one factor s for each, and the logits times `logits`.

    An attack may use its gradients, but an adversarial example counts only on the original model.

    Args:
        model: A model with taps.
        factors: One factor per attention layer; none for a network without attention.
        logits: The factor of the logits.
    """

    def __init__(self, model: HasTaps, factors: Sequence[float] | Tensor, logits: float | Tensor = 1.0) -> None:
        super().__init__()
        self.model = model
        self.factors = factors
        self.logits = logits

    def forward(self, x: Tensor) -> Tensor:
        if len(self.factors) == 0:
            return self.model(x) * self.logits
        with self.model.taps.scale(self.factors):
            return self.model(x) * self.logits


def logit_scaling_flags(model: HasTaps) -> tuple[Flag, ...]:
    """A flag for a network without attention, whose logits are scaled instead (Jain & Dutta 2024, Figure 1b)."""
    if model.taps.attentions():
        return ()
    sentence = "this network has no attention Vitadel supports, so its logits were scaled instead: not AAS"
    return (Flag("logit-scaling", sentence, {}),)


def require_taps(model: object) -> HasTaps:
    """The model, if it has taps and computes in float32 or more.

    Raises:
        UsageError: Otherwise.
    """
    if not isinstance(model, nn.Module) or not isinstance(model, HasTaps):
        raise UsageError(
            f"attention is scaled through a model's taps, and this {type(model).__name__} has none. "
            "Load it with vitadel.models.load, or give its network to vitadel.models.wrap."
        )
    if any(is_compiled(module) for module in model.modules()) and model.taps.attentions():
        raise UsageError(
            "attention is scaled through taps, and compiled code does not see them. Give the model itself."
        )
    half = {torch.float16, torch.bfloat16}
    if dtype := next((weight.dtype for weight in model.parameters() if weight.dtype in half), None):
        raise UsageError(
            f"attention scaling needs the resolution of float32, and this model has {dtype} weights. "
            "Call model.float() first."
        )
    return model
