r"""Where a model looks: maps of an image from inside a network, and what each family of networks has to offer.

* EigenCAM (`vitadel.analyse.eigencam`) of a feature map. Of a network that reads a class token that is the input of its
  last attention, normalised: what that attention adds to patches no longer reaches the classifier, and without the
  normalisation a few patches with huge features, the corners of some ViTs, are all there is to see. Of CaiT and XCiT it
  is what enters the class blocks, of all others the last feature map with more than one cell.
* Attention: the probabilities that the class token gives the patches, mean over heads, in the last block that has it.
* Rollout (Abnar & Zuidema 2020, arXiv:2005.00928): the row of the class token in the product over all blocks of
  :math:`(A_l + I) / 2`, with :math:`A_l` the mean of the probabilities over heads.

Shape letters: B images, H heads, N tokens, P patches, C channels, h x w cells.
"""

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitadel.analyse.eigencam import eigencam
from vitadel.analyse.study import device_of
from vitadel.attacks import undisturbed
from vitadel.errors import UsageError, unknown
from vitadel.models import Model, family_of
from vitadel.models.wide_resnet import WideResNet


class Method(enum.Enum):
    """Ways to see where a model looks."""

    EIGENCAM = "eigencam"
    ATTENTION = "attention"
    ROLLOUT = "rollout"


def offered(model: nn.Module) -> dict[Method, str]:
    """Of every method, why this model does not have it; empty if it does."""
    why = _no_class_token(model)
    channels = "its blocks relate channels, not patches" if _family(model) == "xcit" else ""
    return {Method.EIGENCAM: "", Method.ATTENTION: why, Method.ROLLOUT: why or channels}


@dataclass(frozen=True, slots=True)
class Sight:
    """One way to look at a model: which maps, and for EigenCAM which layer, centred or not."""

    model: nn.Module
    methods: tuple[Method, ...]
    layer: str
    centre: bool

    def __call__(self, x: Tensor, seed: int) -> tuple[dict[Method, Tensor], Tensor]:
        """[B, h, w] maps by method, and the model's answers [B, K]; all on the CPU."""
        model, device = self.model, device_of(self.model)
        wanted = _attentions(model, self.methods)
        with undisturbed(model, seed, device), torch.no_grad(), _watched(model, self.layer, wanted) as seen:
            z_BK = model(x.to(device))
        maps = {method: self._map(method, seen, x) for method in self.methods}
        return {method: one.float().cpu() for method, one in maps.items()}, z_BK.float().cpu()

    def _map(self, method: Method, seen: Mapping[str, Tensor], x: Tensor) -> Tensor:
        if method is Method.EIGENCAM:
            cells = _cells(self.model, seen[self.layer], x)
            if cells is None:
                raise UsageError(
                    f"the layer {self.layer} gives {list(seen[self.layer].shape)}, which is no map of the image."
                )
            return eigencam(cells.flatten(1, 2), centre=self.centre).unflatten(1, cells.shape[1:3])
        height, width = _grid(self.model, x)
        names = _attentions(self.model, self.methods)
        row_BN = seen[names[-1]][:, 0] if method is Method.ATTENTION else rollout([seen[name] for name in names])
        return row_BN[:, -height * width :].unflatten(1, (height, width))


def look_at(model: nn.Module, methods: tuple[Method, ...], layer: str | None, centre: bool, x: Tensor) -> Sight:
    """A way to look, with the layer for EigenCAM found on one image if nobody named one."""
    wanted = Method.EIGENCAM in methods
    return Sight(model, methods, (layer or _last_map(model, x[:1])) if wanted else "", centre)


def check_layer(model: nn.Module, layer: str) -> None:
    """Refuse a layer that is neither a tap nor a module."""
    modules = [name for name, _ in _net(model).named_modules() if name]
    if layer not in modules and not (isinstance(model, Model) and layer in model.taps.names()):
        raise unknown("layer", layer, [*(model.taps.names() if isinstance(model, Model) else ()), *modules][:400])


def rollout(attentions: Sequence[Tensor]) -> Tensor:
    """[B, N]: the row of token 0 in the product, from means over heads [B, N, N], in the order in which they run.

    Two kinds of blocks know less: [B, P, P] relates the patches alone, and [B, 1, N] feeds token 0 alone.
    """
    row_B1N: Tensor | None = None
    for a in reversed(attentions):  # from the last block on, so that there is a row to follow and no product of squares
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
    """Why there is no class token to look with; empty if there is."""
    net, family = _net(model), _family(model)
    if not isinstance(model, Model) or not model.taps.attentions():
        return f"{type(net).__name__} has no attention that Vitadel knows"
    if family in ("cait", "xcit"):
        return ""
    if family not in ("vit", "adapted vit"):
        return f"{type(net).__name__} has no class token to look with"
    backbone = getattr(net, "backbone", net)
    if getattr(backbone, "cls_token", None) is None or getattr(backbone, "global_pool", "token") != "token":
        return f"this {type(net).__name__} reads no class token (global_pool={getattr(backbone, 'global_pool', '')!r})"
    return ""


def _attentions(model: nn.Module, methods: Sequence[Method]) -> list[str]:
    """The probabilities to watch, in the order in which blocks run."""
    if not isinstance(model, Model) or not {Method.ATTENTION, Method.ROLLOUT} & set(methods):
        return []
    names = [f"{name}.probs" for name in model.taps.attentions()]
    return names if Method.ROLLOUT in methods else names[-1:]


@contextmanager
def _watched(model: nn.Module, layer: str, attentions: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Inside, what the layer gives and the mean over heads of the probabilities, by name, from the latest pass."""
    seen: dict[str, Tensor] = {}

    def mean_of(name: str) -> Callable[[Tensor], Tensor]:
        def look(probs: Tensor) -> Tensor:
            seen[name] = probs.mean(1)  # at once, as the heads of all blocks may not fit into memory
            return probs

        return look

    def keep(value: Tensor) -> Tensor:
        seen[layer] = value
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
        # the activation after its last normalisation is no module that a hook could see
        keep(net.active(out) if isinstance(net, WideResNet) and layer == "bn" else out)

    return hook


def _last_map(model: nn.Module, x: Tensor) -> str:
    """The name of the layer whose EigenCAM is looked at, found on one image."""
    family, names = _family(model), model.taps.names() if isinstance(model, Model) else []
    if family in ("vit", "adapted vit") and not _no_class_token(model):
        net = _net(model)
        norm = family_of(net).blocks(net)[-1].module.get_submodule("norm1")
        return next(name for name, module in net.named_modules() if module is norm)
    outs = [name for name in names if name.startswith("blocks.") and name.count(".") == 2 and name.endswith(".out")]
    sizes = _seen_sizes(model, outs, x) if outs else _module_sizes(model, x)
    found = [name for name, cells in sizes.items() if cells > 1]
    if not found:
        raise UsageError(
            f"{type(_net(model)).__name__} has no feature map of more than one cell for images of {x.shape[-2]} x "
            f"{x.shape[-1]}. Use larger images, or name a layer."
        )
    return found[-1]


def _seen_sizes(model: nn.Module, names: Sequence[str], x: Tensor) -> dict[str, int]:
    """Cells of the outputs of blocks."""
    sizes = {}
    for name in reversed(names):
        with undisturbed(model, 0, device_of(model)), torch.no_grad(), _watched(model, name, ()) as seen:
            model(x.to(device_of(model)))
        cells = _cells(model, seen[name], x)
        sizes[name] = 0 if cells is None else cells.shape[1] * cells.shape[2]
        if sizes[name] > 1:
            break
    return sizes


def _module_sizes(model: nn.Module, x: Tensor) -> dict[str, int]:
    """Cells of the feature maps of modules, in the order in which they are finished."""
    sizes: dict[str, int] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], object], None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], out: object) -> None:
            if isinstance(out, Tensor) and out.ndim == 4:
                sizes.pop(name, None)
                sizes[name] = out.shape[2] * out.shape[3]

        return hook

    with ExitStack() as stack, undisturbed(model, 0, device_of(model)), torch.no_grad():
        for name, module in _net(model).named_modules():
            if name:
                stack.callback(module.register_forward_hook(note(name)).remove)
        model(x.to(device_of(model)))
    return sizes


def _cells(model: nn.Module, value: Tensor, x: Tensor) -> Tensor | None:
    """[B, h, w, C] from what a layer gives; None if that is no map."""
    if value.ndim == 4:
        # Swin keeps channels last, as its blocks do
        return value if _family(model) == "swin" else value.permute(0, 2, 3, 1)
    if value.ndim != 3:
        return None
    height, width = _grid(model, x)
    if not 0 < height * width <= value.shape[1]:  # a later stage, with fewer tokens
        height = width = math.isqrt(value.shape[1])
        if height * width != value.shape[1]:
            return None
    return value[:, -height * width :].unflatten(1, (height, width))


def _grid(model: nn.Module, x: Tensor) -> tuple[int, int]:
    net = _net(model)
    with undisturbed(model, 0, device_of(model)):  # the embedding is run, and some keep statistics of what they see
        return family_of(net).grid(net, x.shape[-1]) or (0, 0)
