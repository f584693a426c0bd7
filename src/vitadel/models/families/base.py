"""The interface to a family of architectures."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitadel.core.errors import UsageError

KERNEL, POSITIONS = "patch_embed.proj.weight", "pos_embed"
# resampling takes memory by the fourth power of the side
_MOST_KERNEL = 128


@dataclass(frozen=True, slots=True)
class Layer:
    """A module whose output represents the image: a residual block with attention, or a unit or stage of convolutions.

    Args:
        name: Its name among the taps, such as `blocks.3`.
        module: The layer itself.
        attention: Its attention, if it has one; None for convolutions.
        mlp: Its MLP, if it has one.
        residual_argument: Which of the layer's arguments carries the residual stream.
        changes_shape: It changes the shape of its input, so neither it nor its attention can be skipped.
        prefix: Tokens in front of those of the patches in its output; None if the output does not have one token for
            every patch.
        class_token: Whether the first token is a class token.
        all_to_all: Whether every token attends to all tokens.
        head_mixing: The module, if any, that mixes the heads' probabilities after the softmax; it takes and returns
            [B, N, N, H].
    """

    name: str
    module: nn.Module
    attention: nn.Module | None = None
    mlp: nn.Module | None = None
    residual_argument: int = 0
    changes_shape: bool = False
    prefix: int | None = None
    class_token: bool = False
    all_to_all: bool = False
    head_mixing: nn.Module | None = None


@dataclass(frozen=True, slots=True)
class Geometry:
    """The geometry of training images as far as the shapes of weights imply it; None where they do not.

    Args:
        kernel: Side of the patch kernel.
        grid: Tokens per side of the image.
        window: Tokens per side of an attention window.
    """

    kernel: int | None = None
    grid: int | None = None
    window: int | None = None


def attention_blocks(name: str, modules: Iterable[nn.Module], **fields: Any) -> list[Layer]:
    """Residual blocks whose attention and MLP have timm's usual names, `attn` and `mlp`; `fields` are of `Layer`."""
    return [
        Layer(f"{name}.{i}", module, module.get_submodule("attn"), module.get_submodule("mlp"), **fields)
        for i, module in enumerate(modules)
    ]


class Family:
    """One family of architectures; this base class is the family of networks without attention blocks.

    A new family is one file with a subclass: its timm classes, its `blocks`, and how its weights are resampled.
    """

    name = "convolutional"
    architectures: tuple[type[nn.Module], ...] = ()
    # the timm source files that define these architectures: known before a network is built
    timm_files: tuple[str, ...] = ()

    def blocks(self, net: nn.Module) -> Sequence[Layer]:
        """The residual blocks with attention and MLP, in the order in which they run."""
        return ()

    def layers(self, net: nn.Module) -> Sequence[Layer]:
        """The layers in order: the blocks, or for networks without any, the stages that timm lists."""
        if blocks := self.blocks(net):
            return blocks
        stages, known = getattr(net, "feature_info", None) or (), dict(net.named_modules())
        names = dict.fromkeys(str(stage.get("module")) for stage in stages if isinstance(stage, dict))
        return [Layer(name, known[name], changes_shape=True) for name in names if name in known]

    def use_fused_kernels(self, net: nn.Module) -> None:
        """Use Vitadel's attention kernels if they support this size; logits change only by rounding."""

    def compile_units(self, net: nn.Module) -> Sequence[nn.Module]:
        """The modules to compile separately: the blocks, all of one structure, and other parts with many layers."""
        return [block.module for block in self.blocks(net)]

    def size_options(self, image_size: int | None, patch_size: int | None) -> dict[str, int]:
        """The constructor's arguments for image and patch size."""
        if patch_size is not None:
            raise UsageError(f"a {self.name} network has no patches, got patch_size={patch_size}. Leave it out.")
        return {}

    def set_patch(self, net: nn.Module, patch_size: int) -> None:
        """Change the patch size of a built network, where the constructor has no argument for it."""

    def patch_size(self, net: nn.Module) -> int | None:
        """The side of a patch in pixels; None without patches."""
        return None

    def grid(self, net: nn.Module, image_size: int) -> tuple[int, int] | None:
        """Rows and columns of tokens for an image of this size, measured by running the embedding."""
        return None

    def apply_workarounds(self, net: nn.Module) -> None:
        """Work around bugs of torch and timm that give wrong gradients; logits do not change."""
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d) and _contiguous_gradient not in module._forward_hooks.values():
                module.register_forward_hook(_contiguous_gradient)

    def prune_unused_tokens(self, net: nn.Module) -> None:
        """Do not compute tokens that the head never reads; logits and gradients stay, taps of the last block do not."""

    def geometry(self, state: Mapping[str, Tensor], net: nn.Module) -> Geometry:
        """The geometry of weights for a network like `net`, which may have been built with another one."""
        return Geometry()

    def convert_weights(self, state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
        """Weights of another geometry, resampled to this network's."""
        return dict(state)


def _contiguous_gradient(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
    """Make the gradient of a single image contiguous before it reaches BatchNorm.

    On a CPU, torch 2.15 treats the transposed gradient of a single image, as after the stems of XCiT and LeViT, as one
    in channels-last layout and permutes its values: gradients are wrong, and attacks fail.
    """
    if len(out) == 1 and out.is_cpu and out.requires_grad:
        out.register_hook(Tensor.contiguous)


class PatchFamily(Family):
    """Base class of families that divide the image into patches with one embedding module, `patch_embed`."""

    def size_options(self, image_size: int | None, patch_size: int | None) -> dict[str, int]:
        options = {"img_size": image_size, "patch_size": patch_size}
        return {key: value for key, value in options.items() if value is not None}

    def patch_size(self, net: nn.Module) -> int | None:
        embed = net.get_submodule("patch_embed")
        if hasattr(embed, "backbone"):  # a hybrid embeds patches of a feature map, not of the image
            return None
        size = embed.patch_size
        return int(size[0] if isinstance(size, tuple) else size)  # type: ignore[arg-type]

    def grid(self, net: nn.Module, image_size: int) -> tuple[int, int] | None:
        embed = net.get_submodule("patch_embed")
        first = next(embed.parameters())
        with torch.no_grad():
            out = embed(torch.zeros(1, 3, image_size, image_size, device=first.device, dtype=first.dtype))
        if isinstance(out, tuple):
            return (int(out[1][0]), int(out[1][1]))
        if out.ndim == 4:
            return (int(out.shape[1]), int(out.shape[2]))
        side = round(out.shape[1] ** 0.5)
        return (side, int(out.shape[1]) // side)

    def prefix_tokens(self, net: nn.Module) -> int:
        """How many tokens with a position embedding precede those of the patches."""
        return 0

    def geometry(self, state: Mapping[str, Tensor], net: nn.Module) -> Geometry:
        """The sides of the patch kernel and of the token grid, where these are square."""
        prefix = self.prefix_tokens(net)
        tokens = state[POSITIONS].shape[1] - prefix if POSITIONS in state and state[POSITIONS].ndim == 3 else 0
        side = math.isqrt(max(tokens, 0))
        return Geometry(kernel_side(state), side if side and side**2 == tokens else None)

    def convert_weights(self, state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
        """Patch kernel and position embedding resampled to the shapes `net` has; all else untouched.

        Positions are interpolated on the token grid, without prefix tokens. Weights without square patches or a square
        grid, or of another width, stay as they are; `check_keys` refuses them later.
        """
        fitted, wanted, given = dict(state), net.state_dict(), PatchFamily.geometry(self, state, net)
        if given.kernel is not None and differs_in(fitted, wanted, KERNEL, (2, 3)):
            fitted[KERNEL] = fit_kernel(fitted[KERNEL], wanted[KERNEL].shape[2:])
        if given.grid is not None and differs_in(fitted, wanted, POSITIONS, (1,)):
            from timm.layers import resample_abs_pos_embed

            prefix = self.prefix_tokens(net)
            side = round((wanted[POSITIONS].shape[1] - prefix) ** 0.5)
            fitted[POSITIONS] = resample_abs_pos_embed(
                fitted[POSITIONS].float(), [side, side], num_prefix_tokens=prefix
            )
        return fitted


def differs_in(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], key: str, axes: tuple[int, ...]) -> bool:
    """Whether a weight has another shape than wanted, and only along axes that resampling changes."""
    if key not in state or key not in wanted or state[key].ndim != wanted[key].ndim:
        return False
    pairs = zip(state[key].shape, wanted[key].shape, strict=True)
    different = {axis for axis, (side, other) in enumerate(pairs) if side != other}
    return bool(different) and different <= set(axes)


def kernel_side(state: Mapping[str, Tensor]) -> int | None:
    """The side of a square patch kernel that can be resampled; None without one."""
    shape = state[KERNEL].shape if KERNEL in state else torch.Size()
    square = len(shape) == 4 and shape[2] == shape[3] and 1 <= shape[2] <= _MOST_KERNEL and state[KERNEL].numel() > 0
    return int(shape[2]) if square else None


def fit_kernel(kernel: Tensor, size: torch.Size) -> Tensor:
    r"""A patch kernel of another size with the output of `kernel` on the resized patch.

    Let :math:`U` enlarge the smaller patch to the larger (bicubic). Growing is the pseudo-inverse of Beyer et al. 2023
    (arXiv:2212.08013), with :math:`\langle Ux, w'\rangle = \langle x, w\rangle` for every patch. Shrinking is
    :math:`w' = U^\top w`, with :math:`\langle x, w'\rangle = \langle Ux, w\rangle` for every patch; the pseudo-inverse
    would not even preserve the output on a constant patch. Shrinking undoes growing
    (tests/unit/models/test_models_resampling.py).
    """
    old, new = kernel.shape[2:], size
    if old == new:
        return kernel
    if min(new) >= max(old):
        from timm.layers import resample_patch_embed

        return resample_patch_embed(kernel.float(), list(new))
    units = torch.eye(new.numel(), device=kernel.device).view(-1, 1, *new)
    enlarged = F.interpolate(units, size=old, mode="bicubic", antialias=True)[:, 0]
    return torch.einsum("oihw,nhw->oin", kernel.float(), enlarged).unflatten(-1, new)


def classifiers(net: nn.Module) -> tuple[str, ...]:
    """The names of the last linear layers, as timm records them."""
    config = getattr(net, "pretrained_cfg", None)
    names = config.get("classifier") if isinstance(config, dict) else None
    return (names,) if isinstance(names, str) else tuple(names or ())


def check_grid(family: Family, net: nn.Module, image_size: int) -> None:
    """Refuse a network whose tokens do not tile the image: token grid x patch must be the image."""
    patch = family.patch_size(net)
    if patch is None:
        return
    # some embeddings refuse images that their patches do not tile
    grid = (image_size // patch, image_size // patch) if image_size % patch else family.grid(net, image_size)
    if grid is None:
        return
    if (grid[0] * patch, grid[1] * patch) != (image_size, image_size):
        raise UsageError(
            f"a grid of {grid[0]} x {grid[1]} tokens with patches of {patch} does not tile {image_size} x {image_size} "
            f"pixels. Choose an image_size that is a multiple of the patch size."
        )
