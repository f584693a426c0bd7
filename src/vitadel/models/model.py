"""A network with its normalization inside: pixels in [0, 1] to logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import UninitializedParameter
from torch.utils.flop_counter import FlopCounterMode

from vitadel.core.errors import UsageError
from vitadel.models import attention_scales
from vitadel.models.families import family_of
from vitadel.models.spec import ModelSpec, Normalization
from vitadel.models.taps import Taps
from vitadel.models.weights import weights_sha256


class Model(nn.Module):
    """A network with its normalization: a plain module that any attack library can use unchanged.

    `load` and `wrap` make one. A network with attention scales (`set_attention_scales`) always applies them; factors
    that taps add are multiplied with them.

    Args:
        net: The network, which takes normalized images.
        normalization: What is applied to pixels in [0, 1] before the network.
        spec: How to build the network again; None for one that Vitadel did not build.

    Attributes:
        taps: Named activations to read, edit, scale, mask and skip (`vitadel.models.taps`).
    """

    mean: Tensor
    std: Tensor
    # the text that named it for `load`, and whether its normalization was assumed
    source: str | None = None
    normalization_is_assumed: bool = False

    def __init__(self, net: nn.Module, normalization: Normalization, spec: ModelSpec | None = None) -> None:
        super().__init__()
        family_of(net).apply_workarounds(net)
        self.net = net
        self.normalization = normalization
        self.spec = spec
        # not persistent, because the spec has the values
        self.register_buffer("mean", torch.tensor(normalization.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(normalization.std).view(1, -1, 1, 1), persistent=False)
        self.taps = Taps(self, net)
        self.training = net.training  # nn.Module starts in training mode

    def __repr__(self) -> str:
        known = [one.numel() for one in self.net.parameters() if not isinstance(one, UninitializedParameter)]
        name = type(self.net).__name__ if self.spec is None else self.spec.name
        lines = [f"Model({name}", f"  {sum(known):,} parameters"]
        if self.spec is not None:
            patches = f" in patches of {self.spec.patch_size}" if self.spec.patch_size else ""
            size = self.spec.image_size
            lines.append(f"  {size} x {size} images{patches}, {self.spec.output_classes} classes")
        norm = self.normalization
        lines.append("  no normalization" if norm.is_identity else f"  normalization: mean {norm.mean}, std {norm.std}")
        return "\n".join(lines) + ")"

    @property
    def attention_scales(self) -> Tensor | None:
        """One factor per attention layer, if the network has them."""
        return attention_scales.buffer(self.net, attention_scales.ATTENTION)

    @property
    def fixed_size(self) -> int | None:
        """The only image size that the model takes; None if it takes any, or if that is unknown."""
        if self.spec is None:
            return None
        timms = getattr(self.net, "pretrained_cfg", None) or {}
        return self.spec.image_size if self.spec.patch_size is not None or timms.get("fixed_input_size") else None

    def normalized(self, x: Tensor) -> Tensor:
        """Normalized images, from pixels in [0, 1]."""
        return x if self.normalization.is_identity else (x - self.mean) / self.std

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, K] of images [B, 3, H, W] with pixels in [0, 1]."""
        if x.ndim != 4 or x.shape[1] != self.mean.shape[1]:
            raise UsageError(
                f"the model takes images of shape [B, {self.mean.shape[1]}, H, W], got {list(x.shape)}. "
                "Write x.unsqueeze(0) for one image."
            )
        size = self.spec.image_size if self.spec is not None and self.spec.patch_size is not None else None
        if size is not None and x.shape[2:] != (size, size):
            raise UsageError(
                f"the model takes {size} x {size} images, got {x.shape[-2]} x {x.shape[-1]}. "
                f"Load the data at {size}, or the model with image_size={x.shape[-1]}."
            )
        return attention_scales.scaled_logits(self.net, self.taps, self.normalized(x))


def describe_model(model: Model, name: str) -> dict[str, object]:
    """The record of a model in a manifest: its name, spec, number of parameters and a hash of its weights."""
    parameters = sum(weights.numel() for weights in model.net.parameters())
    sha256 = weights_sha256(model.net.state_dict())
    return {"name": name, "spec": model.spec, "parameters": parameters, "sha256": sha256}


def set_attention_scales(
    model: Model, factors: float | Tensor | Sequence[float], *, logits: float | Tensor | None = None
) -> None:
    """Make the model multiply its attention scores by factors from now on: one for all layers, or one for each.

    Args:
        model: The model.
        factors: The factors of its attention layers.
        logits: A factor of its logits; None leaves the logits as they are.
    """
    attention_scales.set_factors(model.net, attention_scales.ATTENTION, factors)
    if logits is not None:
        attention_scales.set_logits_factor(model.net, attention_scales.LOGITS[attention_scales.ATTENTION], logits)


def wrap(net: nn.Module, *, mean: float | Sequence[float], std: float | Sequence[float]) -> Model:
    """A model on pixels in [0, 1] from any network that takes normalized images.

    Args:
        net: The network; it is not copied.
        mean: The mean that its images are normalized with: one per channel, or one for all three.
        std: The standard deviation, likewise. A network that takes pixels in [0, 1] has mean=0.0 and std=1.0.

    Returns:
        A plain `nn.Module` with the normalization inside and `taps` for its internal values, on the network's device.

    Raises:
        UsageError: If mean and std do not have 1 or 3 channels.

    Example:
        >>> model = wrap(torchvision.models.resnet18(), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    """
    normalization = Normalization.of(mean, std)
    if len(normalization.mean) not in (1, 3):
        raise UsageError(
            f"images have 3 channels, or 1 if they are gray, got mean and std of {len(normalization.mean)}. "
            "Give one number, or one per channel."
        )
    return Model(net, normalization)


@dataclass(frozen=True, slots=True)
class Cost:
    """Parameters, and multiply-accumulates (MACs) of one image's forward pass in matrix products and convolutions.

    The products inside attention are counted, also when a fused kernel computes them; most published figures omit
    them. One MAC is two FLOPs; the literature often calls it one.
    """

    parameters: int
    macs: int

    @property
    def gflops(self) -> float:
        """Billions of FLOPs, two per multiply-accumulate."""
        return 2 * self.macs / 1e9


def cost(model: Model, image_size: int) -> Cost:
    """The cost of a model for one image of this size, measured by a forward pass."""
    first = next(model.parameters())
    image = torch.zeros(1, 3, image_size, image_size, device=first.device, dtype=first.dtype)
    training = [module for module in model.modules() if module.training]
    model.eval()  # or BatchNorm would update its statistics
    try:
        # not under no_grad, because the counter needs a graph and would miss CaiT's class token without one; attention
        # in plain products, because torch before 2.12 does not count the CPU's fused kernel
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(image)
    finally:
        for module in training:
            module.training = True
    return Cost(sum(p.numel() for p in model.parameters()), counter.get_total_flops() // 2)
