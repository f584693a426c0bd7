r"""Saliency maps from the activations of a network, and the methods that each family of networks supports.

* EigenCAM (`vitadel.analyze.eigencam`) of a feature map. For a network with a class token, the map is the normalized
  input of the last attention layer: what this layer adds to patches does not reach the classifier, and without the
  normalization a few patches with huge features (the corners, in some ViTs) dominate. For CaiT and XCiT it is the input
  of the class blocks, for all others the last feature map with more than one cell. A tensor with four dimensions is a
  map if two adjacent ones match the image's height and width; one with three contains tokens. If a network ends with
  tokens whose positions Vitadel does not know, a layer must be named.
* Attention: the probabilities that the class token gives the patches, mean over heads, in the last block that has it.
* Rollout (Abnar & Zuidema 2020, arXiv:2005.00928): the row of the class token in the product over all blocks of
  :math:`(A_l + I) / 2`, with :math:`A_l` the mean of the probabilities over heads.

Shape letters: B images, H heads, N tokens, P patches, C channels, h x w cells.
"""

import enum
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vitadel.analyze.eigencam import eigencam
from vitadel.attacks.isolation import isolated
from vitadel.core.device import device_of
from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.models import Model, family_of
from vitadel.models.wide_resnet import WideResNet


class Method(enum.Enum):
    """How a saliency map is computed."""

    EIGENCAM = "eigencam"
    ATTENTION = "attention"
    ROLLOUT = "rollout"


def offered(model: nn.Module) -> dict[Method, str]:
    """For every method, the reason why this model does not support it; empty if it does."""
    why = _no_class_token(model)
    channels = "its blocks relate channels, not patches" if _family(model) == "xcit" else ""
    return {Method.EIGENCAM: "", Method.ATTENTION: why, Method.ROLLOUT: why or channels}


@dataclass(frozen=True, slots=True)
class SaliencyMaps:
    """Computes the maps of a model by some methods; `layer` and `center` are for EigenCAM."""

    model: nn.Module
    methods: tuple[Method, ...]
    layer: str
    center: bool

    @classmethod
    def of(
        cls, model: nn.Module, methods: tuple[Method, ...], layer: str | None, center: bool, x: Tensor
    ) -> "SaliencyMaps":
        """The maps of a model; without a layer, that of EigenCAM is determined on the first of the images `x`."""
        if Method.EIGENCAM not in methods:
            return cls(model, methods, "", center)
        return cls(model, methods, layer or _last_map(model, x[:1]), center)

    def __call__(self, x: Tensor, seed: int) -> tuple[dict[Method, Tensor], Tensor]:
        """[B, h, w] maps by method, and the model's logits [B, K]; all on the CPU."""
        model, device = self.model, device_of(self.model)
        wanted = _attentions(model, self.methods)
        with isolated(model, seed, device), torch.no_grad(), _watched(model, self.layer, wanted) as seen:
            z_BK = model(x.to(device))
        maps = {method: self._map(method, seen, x) for method in self.methods}
        return {method: one.float().cpu() for method, one in maps.items()}, z_BK.float().cpu()

    def _map(self, method: Method, seen: "_Seen", x: Tensor) -> Tensor:
        if method is Method.EIGENCAM:
            assert seen.features is not None
            cells = _cells(self.model, seen.features, x)
            if cells is None or (seen.features.ndim == 4 and _inside_attention(_net(self.model), self.layer)):
                raise UsageError(
                    f"the layer {self.layer} gives {list(seen.features.shape)} for {len(x)} images, which is not a map "
                    "of each. Name another: layer=NAME."
                )
            return eigencam(cells.flatten(1, 2), center=self.center).unflatten(1, cells.shape[1:3])
        height, width = _grid(self.model, x)
        names = _attentions(self.model, self.methods)
        probs = [seen.attentions[name] for name in names]
        row_BN = probs[-1][:, 0] if method is Method.ATTENTION else rollout(probs)
        return row_BN[:, -height * width :].unflatten(1, (height, width))


def check_layer(model: nn.Module, layer: str) -> None:
    """Raise a UsageError if a layer is neither a tap nor a module, or is inside an attention layer."""
    modules = [name for name, _ in _net(model).named_modules() if name]
    taps = model.taps.names() if isinstance(model, Model) else []
    if layer not in modules and layer not in taps:
        raise unknown_name_error("layer", layer, [*taps, *modules][:400])
    attention = layer.rpartition(".")[0]
    inside = isinstance(model, Model) and layer in taps and attention in model.taps.attentions()
    if inside and layer != f"{attention}.out":
        raise UsageError(f"{layer} is inside an attention, and no map of the image. Name its output: {attention}.out.")


def rollout(attentions: Sequence[Tensor]) -> Tensor:
    """[B, N]: the row of token 0 in the product, from means over heads [B, N, N], in the order in which they run.

    Some blocks have smaller matrices: [B, P, P] has patches only, and [B, 1, N] has token 0 as its only query.
    """
    row_B1N: Tensor | None = None
    for a in reversed(attentions):  # from the last block on, which multiplies a row instead of full matrices
        if row_B1N is None:
            count = max(one.shape[2] for one in attentions)
            row_B1N = torch.zeros(len(a), 1, count, dtype=a.dtype, device=a.device)
            row_B1N[:, :, 0] = 1
        if a.shape[1] == 1:
            first_B11 = row_B1N[:, :, :1]
            kept = torch.cat([first_B11 / 2, row_B1N[:, :, 1:]], 2)
            row_B1N = kept + first_B11 * a / 2
        else:
            head, tail = row_B1N.split([row_B1N.shape[2] - a.shape[2], a.shape[2]], 2)
            row_B1N = torch.cat([head, (tail + tail @ a) / 2], 2)
    assert row_B1N is not None
    return row_B1N[:, 0]


def _net(model: nn.Module) -> nn.Module:
    return model.net if isinstance(model, Model) else model


def _family(model: nn.Module) -> str:
    return family_of(_net(model)).name if isinstance(model, Model) else "convolutional"


def _no_class_token(model: nn.Module) -> str:
    """The reason why the model has no attention of a class token; empty if it has."""
    net, family = _net(model), _family(model)
    if not isinstance(model, Model) or not model.taps.attentions():
        return f"{type(net).__name__} has no attention that Vitadel supports"
    if family in ("cait", "xcit"):
        return ""
    if family not in ("vit", "adapted vit"):
        return f"{type(net).__name__} has no class token"
    backbone = getattr(net, "backbone", net)
    if getattr(backbone, "cls_token", None) is None or getattr(backbone, "global_pool", "token") != "token":
        return f"this {type(net).__name__} reads no class token (global_pool={getattr(backbone, 'global_pool', '')!r})"
    return ""


def _attentions(model: nn.Module, methods: Sequence[Method]) -> list[str]:
    """The taps of attention probabilities that the methods need, in the order in which blocks run."""
    if not isinstance(model, Model) or not {Method.ATTENTION, Method.ROLLOUT} & set(methods):
        return []
    names = [f"{name}.probs" for name in model.taps.attentions()]
    return names if Method.ROLLOUT in methods else names[-1:]


@dataclass(slots=True)
class _Seen:
    """From the latest forward pass: the layer's output, and attention probabilities, averaged over heads, by name."""

    features: Tensor | None = None
    attentions: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def _watched(model: nn.Module, layer: str, attentions: Sequence[str]) -> Iterator[_Seen]:
    """Inside, forward passes record the layer's output and the attention probabilities."""
    seen = _Seen()

    def mean_of(name: str) -> Callable[[Tensor], Tensor]:
        def edit(probs: Tensor) -> Tensor:
            seen.attentions[name] = probs.mean(1)  # at once, as the heads of all blocks may not fit into memory
            return probs

        return edit

    def keep(value: Tensor) -> Tensor:
        seen.features = value
        return value

    with ExitStack() as stack:
        for name in attentions:
            assert isinstance(model, Model)
            stack.enter_context(model.taps.edit(name, mean_of(name)))
        if isinstance(model, Model) and layer in model.taps.names():
            stack.enter_context(model.taps.edit(layer, keep))
        elif layer:
            stack.callback(_net(model).get_submodule(layer).register_forward_hook(_keeping(model, layer, keep)).remove)
        yield seen


def _keeping(
    model: nn.Module, layer: str, keep: Callable[[Tensor], Tensor]
) -> Callable[[nn.Module, tuple[Tensor, ...], object], None]:
    net = _net(model)

    def hook(module: nn.Module, args: tuple[Tensor, ...], out: object) -> None:
        if not isinstance(out, Tensor):
            raise UsageError(f"the layer {layer} gives no single tensor. Choose another.")
        # the activation after its last normalization is not a module that a hook could see
        keep(net.active(out) if isinstance(net, WideResNet) and layer == "bn" else out)

    return hook


def _last_map(model: nn.Module, x: Tensor) -> str:
    """The name of the default layer for EigenCAM, determined on one image."""
    family, names = _family(model), model.taps.names() if isinstance(model, Model) else []
    if family in ("vit", "adapted vit") and not _no_class_token(model):
        net = _net(model)
        norm = family_of(net).blocks(net)[-1].module.get_submodule("norm1")
        return next(name for name, module in net.named_modules() if module is norm)
    outs = [name for name in names if name.startswith("blocks.") and name.count(".") == 2 and name.endswith(".out")]
    sizes = _seen_sizes(model, outs, x) if outs else _module_sizes(model, x)
    candidates = [name for name, cells in sizes.items() if cells > 1]
    if not candidates:
        raise UsageError(
            f"{type(_net(model)).__name__} has no feature map of more than one cell for images of {x.shape[-2]} x "
            f"{x.shape[-1]}. Use larger images, or name a layer: layer=NAME."
        )
    if 0 in list(sizes.values())[list(sizes).index(candidates[-1]) :]:
        raise UsageError(
            f"{type(_net(model)).__name__} goes on with tokens after its last feature map, and Vitadel does not know "
            f"where they lie. Name a layer: layer={candidates[-1]} is that map; of tokens those after "
            "net.num_prefix_tokens are taken row by row."
        )
    return candidates[-1]


def _seen_sizes(model: nn.Module, names: Sequence[str], x: Tensor) -> dict[str, int]:
    """The number of cells of the outputs of blocks, from the last block to the first that has more than one."""
    sizes = {}
    for name in reversed(names):
        with isolated(model, 0, device_of(model)), torch.no_grad(), _watched(model, name, ()) as seen:
            model(x.to(device_of(model)))
        cells = None if seen.features is None else _cells(model, seen.features, x)
        sizes[name] = 1 if cells is None else cells.shape[1] * cells.shape[2]
        if sizes[name] > 1:
            break
    return sizes


def _module_sizes(model: nn.Module, x: Tensor) -> dict[str, int]:
    """The number of cells of the feature maps of modules, in execution order; 0 for tokens."""
    sizes: dict[str, int] = {}

    def record_size(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], object], None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], out: object) -> None:
            sizes.pop(name, None)
            if not isinstance(out, Tensor) or out.ndim not in (3, 4) or len(out) != len(x):
                return
            if out.ndim == 3:
                sizes[name] = 0
            elif (cells := _cells(model, out, x)) is not None:
                sizes[name] = cells.shape[1] * cells.shape[2]

        return hook

    with ExitStack() as stack, isolated(model, 0, device_of(model)), torch.no_grad():
        for name, module in _outside_attention(_net(model)):
            stack.callback(module.register_forward_hook(record_size(name)).remove)
        model(x.to(device_of(model)))
    return sizes


def _inside_attention(net: nn.Module, layer: str) -> bool:
    return layer in dict(net.named_modules()) and layer not in dict(_outside_attention(net))


def _outside_attention(net: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Modules by name, without those inside attention layers, whose dimensions are heads, tokens and features."""
    for name, module in net.named_children():
        yield f"{prefix}{name}", module
        if "Attention" not in type(module).__name__:
            yield from _outside_attention(module, f"{prefix}{name}.")


def _cells(model: nn.Module, value: Tensor, x: Tensor) -> Tensor | None:
    """[B, h, w, C] from the output of a layer; None if that is not a map of each image."""
    if len(value) != len(x) or value.ndim not in (3, 4):  # the first dimension of Swin's windows is larger
        return None
    if value.ndim == 4:
        channels_first, channels_last = _fits(value.shape[2:], x), _fits(value.shape[1:3], x)
        if channels_last and (not channels_first or _family(model) == "swin"):
            return value
        return value.permute(0, 2, 3, 1) if channels_first else None
    height, width = _grid(model, x)
    if height * width == 0:  # an unknown family: timm's attribute gives the number of prefix tokens
        value = value[:, int(getattr(_net(model), "num_prefix_tokens", 0)) :]
    if not 0 < height * width <= value.shape[1]:  # or a later stage, with fewer tokens
        height = width = math.isqrt(value.shape[1])
        if height * width != value.shape[1]:
            return None
    return value[:, -height * width :].unflatten(1, (height, width))


def _fits(sides: Sequence[int], x: Tensor) -> bool:
    """Whether a map has the aspect ratio of the image, up to rounding."""
    (height, width), (rows, columns) = sides, x.shape[-2:]
    off = min(abs(height - width * rows / columns), abs(width - height * columns / rows))
    return off < 1 and height <= rows and width <= columns


def _grid(model: nn.Module, x: Tensor) -> tuple[int, int]:
    net = _net(model)
    with isolated(model, 0, device_of(model)):  # this runs the embedding, which may have running statistics
        return family_of(net).grid(net, x.shape[-1]) or (0, 0)
