"""Pixels in [0, 1] to logits, with the normalization inside."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.models import attention_scales
from vitadel.models.families import family_of
from vitadel.models.spec import ModelSpec, Normalization
from vitadel.models.taps import Taps
from vitadel.models.weights import fingerprint


class Model(nn.Module):
    """A network and its normalization: a plain module that any attack library can use unchanged.

    A network that keeps factors for its attention (`set_attention_scales`) answers with them; what taps scale comes on
    top.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, normalization: Normalization, spec: ModelSpec | None = None) -> None:
        super().__init__()
        family_of(net).prepare(net)
        self.net = net
        self.normalization = normalization
        self.spec = spec
        # the values live in the spec; as buffers they would be a second copy inside every state dict
        self.register_buffer("mean", torch.tensor(normalization.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(normalization.std).view(1, -1, 1, 1), persistent=False)
        self.taps = Taps(self, net)
        self.training = net.training  # a new module would call itself in training, whatever it holds

    @property
    def attention_scales(self) -> Tensor | None:
        """One factor per attention, if the network keeps any."""
        return attention_scales.held(self.net, attention_scales.ATTENTION)

    @property
    def fixed_size(self) -> int | None:
        """The side of the only images it takes; None if it takes images of any size, or is nobody's we know."""
        if self.spec is None:
            return None
        timms = getattr(self.net, "pretrained_cfg", None) or {}
        return self.spec.image_size if self.spec.patch_size is not None or timms.get("fixed_input_size") else None

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != self.mean.shape[1]:
            raise UsageError(f"the model takes images of shape [B, {self.mean.shape[1]}, H, W], got {list(x.shape)}.")
        size = self.spec.image_size if self.spec is not None and self.spec.patch_size is not None else None
        if size is not None and x.shape[2:] != (size, size):
            raise UsageError(
                f"the model takes {size} x {size} images, got {x.shape[-2]} x {x.shape[-1]}. "
                f"Load the data at {size}, or the model with image_size={x.shape[-1]}."
            )
        return attention_scales.answer(
            self.net, self.taps, x if self.normalization.identity else (x - self.mean) / self.std
        )


def identity(model: Model, name: str) -> dict[str, object]:
    """What a manifest says of a model."""
    parameters = sum(weights.numel() for weights in model.net.parameters())
    sha256 = fingerprint(model.net.state_dict())
    return {"name": name, "spec": model.spec, "parameters": parameters, "sha256": sha256}


def set_attention_scales(model: Model, factors: float | Tensor | Sequence[float]) -> None:
    """From now on the model answers with these factors on its attention's scores: one for all, or one for each."""
    attention_scales.hold_factors(model.net, attention_scales.ATTENTION, factors)


def wrap(net: nn.Module, *, mean: tuple[float, ...], std: tuple[float, ...]) -> Model:
    """Any network that takes normalized images, as one that takes pixels in [0, 1]."""
    return Model(net, Normalization(mean, std))
