"""What Vitadel must know of a family of architectures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Block:
    """A residual block: its name among the taps, and the modules whose outputs are tapped.

    `stream` says which of the block's arguments carries what the block adds to. A block that shrinks has nothing to add
    the output of its attention to: neither can be skipped. `prefix` counts the tokens that stand before those of the
    patches in what it gives, None if that has not one token for every patch; with a class token, that is the first.
    Where `pairs`, the attention relates all tokens with all. `mixing` is the module, if any, that mixes what the heads
    make of a pair after the softmax: it is given and gives [B, N, N, H].
    """

    name: str
    module: nn.Module
    attention: nn.Module
    mlp: nn.Module
    stream: int = 0
    shrinks: bool = False
    prefix: int | None = None
    class_token: bool = False
    pairs: bool = False
    mixing: nn.Module | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """A module whose output represents the image: a block with attention, or a unit or stage of convolutions.

    One that is `fixed` changes the shape of what it is given, and cannot be left out; the rest is as of blocks.
    """

    name: str
    module: nn.Module
    attention: nn.Module | None = None
    mlp: nn.Module | None = None
    stream: int = 0
    fixed: bool = False
    prefix: int | None = None
    class_token: bool = False
    pairs: bool = False


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the shapes of weights say of the images they were trained on, None where they say nothing.

    `kernel` is the side of the patch kernel, `grid` the tokens on a side, `window` those on a side of a window.
    """

    kernel: int | None = None
    grid: int | None = None
    window: int | None = None


def numbered(
    name: str,
    modules: Iterable[nn.Module],
    *,
    stream: int = 0,
    prefix: int | None = None,
    class_token: bool = False,
    pairs: bool = False,
) -> list[Block]:
    """Blocks whose attention and MLP go by timm's usual names."""
    return [
        Block(
            f"{name}.{i}",
            module,
            module.get_submodule("attn"),
            module.get_submodule("mlp"),
            stream,
            prefix=prefix,
            class_token=class_token,
            pairs=pairs,
        )
        for i, module in enumerate(modules)
    ]


class Family:
    """The knowledge about one family; this base is the family of networks without blocks, the convolutional ones."""

    name = "convolutional"
    architectures: tuple[type[nn.Module], ...] = ()
    # timm builds a network before it can be asked what it is; the file it comes from tells before
    timm_files: tuple[str, ...] = ()

    def blocks(self, net: nn.Module) -> Sequence[Block]:
        """The residual blocks with attention, in the order in which they run."""
        return ()

    def layers(self, net: nn.Module) -> Sequence[Layer]:
        """What represents the image step by step: the blocks, or without any the stages that timm knows of."""
        stages, known = getattr(net, "feature_info", None) or (), dict(net.named_modules())
        names = dict.fromkeys(str(stage.get("module")) for stage in stages if isinstance(stage, dict))
        return [
            Layer(b.name, b.module, b.attention, b.mlp, b.stream, b.shrinks, b.prefix, b.class_token, b.pairs)
            for b in self.blocks(net)
        ] or [Layer(name, known[name], fixed=True) for name in names if name in known]

    def use_fused_kernels(self, net: nn.Module) -> None:
        """Put in kernels made for this network's size, where there are any; no answer changes but by rounding."""

    def compile_units(self, net: nn.Module) -> Sequence[nn.Module]:
        """What is worth compiling by itself: the blocks, which are alike, and whatever else has many layers."""
        return [block.module for block in self.blocks(net)]

    def size_options(self, image_size: int | None, patch_size: int | None) -> dict[str, int]:
        """What the constructor wants to hear about the geometry."""
        if patch_size is not None:
            raise UsageError(f"a {self.name} network has no patches, got patch_size={patch_size}. Leave it out.")
        return {}

    def set_patch(self, net: nn.Module, patch_size: int) -> None:
        """Change the patch size of a built network, where the constructor could not be told."""

    def patch_size(self, net: nn.Module) -> int | None:
        """The side of a patch in pixels; None without patches."""
        return None

    def grid(self, net: nn.Module, image_size: int) -> tuple[int, int] | None:
        """Rows and columns of tokens for an image of this size, found by running the embedding."""
        return None

    def prepare(self, net: nn.Module) -> None:
        """Take out of a network what would go wrong here; its answers stay the same."""
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d) and _whole_slopes not in module._forward_hooks.values():
                module.register_forward_hook(_whole_slopes)

    def prune_unused_tokens(self, net: nn.Module) -> None:
        """Let a network leave out what its head never reads: answers and slopes stay, taps of the last block do not."""

    def geometry(self, state: Mapping[str, Tensor], net: nn.Module) -> Geometry:
        """The geometry of weights for a network like `net`, which may have been built with another one."""
        return Geometry()

    def fit(self, state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
        """Weights of another geometry, resampled to this network's."""
        return dict(state)


def _whole_slopes(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
    """The slope of a single image reaches BatchNorm in the layout of its answer.

    On a CPU, torch 2.15 takes that of one image which was transposed on its way, as after the stems of XCiT and LeViT,
    for one laid out with its channels last, and mixes up its values: gradients are wrong, and attacks find nothing.
    """
    if len(out) == 1 and out.is_cpu and out.requires_grad:
        out.register_hook(Tensor.contiguous)


class Patched(Family):
    """The knowledge shared by families that cut the image into patches with one embedding module."""

    def size_options(self, image_size: int | None, patch_size: int | None) -> dict[str, int]:
        options = {"img_size": image_size, "patch_size": patch_size}
        return {key: value for key, value in options.items() if value is not None}

    def patch_size(self, net: nn.Module) -> int | None:
        embed = net.get_submodule("patch_embed")
        if hasattr(embed, "backbone"):  # a hybrid cuts up what convolutions made of the image, and not the image
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


def check_grid(family: Family, net: nn.Module, image_size: int) -> None:
    """Refuse a network whose tokens do not tile the image: token grid x patch must be the image."""
    patch = family.patch_size(net)
    if patch is None:
        return
    # some embeddings refuse to run on an image they cannot cut up
    grid = (image_size // patch, image_size // patch) if image_size % patch else family.grid(net, image_size)
    if grid is None:
        return
    if (grid[0] * patch, grid[1] * patch) != (image_size, image_size):
        raise UsageError(
            f"a grid of {grid[0]} x {grid[1]} tokens with patches of {patch} does not tile {image_size} x {image_size} "
            f"pixels. Choose an image_size that is a multiple of the patch size."
        )
