"""Predictions of many variants of a model, which differ in changes of its layers, on the same images.

A variant lists the change of every layer. Variants run in lexicographic order, and each reuses the outputs of all
layers before its first difference from the previous one, so every shared prefix runs once. The network's own code still
connects the layers; a layer whose output is known returns it instead of running. Logits are bitwise equal to those of
full forward passes (tests/unit/analyze/test_analyze_prefix_cache.py).

Shape letters: B images, K classes, N tokens.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from vitadel.analyze.layers import layers_of
from vitadel.attacks.isolation import isolated
from vitadel.core.progress import silent
from vitadel.core.stats import Accuracy, accuracy
from vitadel.evaluate.context import Batch, Context
from vitadel.models import Layer, Model

_BATCH = 64  # the default batch size: the outputs of all layers are in memory


class LayerChange(enum.IntEnum):
    """The change of a layer; the numbers from `MASK` on are masks for its attention."""

    NONE = 0
    NO_LAYER = 1
    NO_ATTENTION = 2
    NO_MLP = 3
    MASK = 4


Variant = tuple[int, ...]


def variant(layers: Sequence[Layer], numbers: Iterable[int] = (), change: int = LayerChange.NONE) -> Variant:
    """The variant with one change in the layers of these numbers, by default the original model."""
    changed = set(numbers)
    return tuple(int(change) if number in changed else LayerChange.NONE for number in range(len(layers)))


@dataclass(frozen=True, slots=True)
class VariantCounts:
    """Correct predictions of every variant on n images, and the cost in layers run and in forward passes."""

    n: int
    correct: Mapping[Variant, int]
    layers_run: int
    forwards: float

    def accuracy(self, variant: Variant) -> Accuracy:
        return accuracy(self.correct[variant], self.n)


def map_variants(ctx: Context, table: str, variants: Iterable[Variant], masks: Sequence[Tensor] = ()) -> None:
    """Fill a table with whether each variant's prediction is correct, per image.

    Args:
        ctx: The context.
        table: The name of the table.
        variants: The variants; the original model is added.
        masks: Attention masks [N, N], numbered from `LayerChange.MASK` on.
    """
    model, layers = layers_of(ctx.model)
    ordered = _ordered(layers, variants)
    cache = PrefixCache(model, layers, [mask.to(ctx.device) for mask in masks])
    position = {index: number for number, index in enumerate(ctx.local_part())}

    def work(batch: Batch) -> dict[str, object]:
        cache.clear()  # it may hold outputs of a larger batch that did not fit into memory
        before, correct = cache.layers_run, []
        with isolated(model, ctx.seed, ctx.device), torch.no_grad():
            for number, one in enumerate(ordered, 1):
                z_BK = cache.logits(batch.x, one)
                if number == 1:
                    ctx.check_logits(z_BK, len(batch))
                    ctx.predicted(z_BK)  # raises for labels that are no classes of the model
                correct.append((z_BK.argmax(1) == batch.y).cpu())
                done = position[int(batch.index[0])] * len(ordered) + number * len(batch)
                ctx.progress(table, done, len(ordered) * len(position), {})
        cache.clear()
        return {"correct": torch.stack(correct, 1), "layers_run": [cache.layers_run - before] * len(batch)}

    replace(ctx, progress=silent).map(table, work, batch_size=ctx.engine.batch_size or _BATCH)


def count_correct(ctx: Context, table: str, variants: Iterable[Variant]) -> VariantCounts:
    """The results of `map_variants` for the same variants, summed over images."""
    _, layers = layers_of(ctx.model)
    rows = ctx.table(table)
    n, run = len(rows), sum(rows["layers_run"])
    correct = (sum(each) for each in zip(*rows["correct"], strict=True))
    return VariantCounts(
        n, dict(zip(_ordered(layers, variants), correct, strict=True)), run // n, run / n / len(layers)
    )


def _ordered(layers: Sequence[Layer], variants: Iterable[Variant]) -> list[Variant]:
    return sorted({variant(layers), *variants})


@dataclass(slots=True)
class PrefixCache:
    """A model, and the outputs of its layers under the latest variant.

    Args:
        model: The model.
        layers: Its layers, in order.
        masks: The masks that variants refer to.
        layers_run: The number of layers that ran so far.
    """

    model: Model
    layers: Sequence[Layer]
    masks: Sequence[Tensor] = ()
    layers_run: int = 0
    _variant: Variant = ()
    _outputs: dict[nn.Module, Tensor] = field(default_factory=dict)
    _zeros: dict[nn.Module, Tensor] = field(default_factory=dict)
    _stem: dict[nn.Module, list[Tensor]] = field(default_factory=dict)

    def clear(self) -> None:
        """Drop all outputs, before other images."""
        self._variant, self._outputs, self._zeros, self._stem = (), {}, {}, {}

    def logits(self, x: Tensor, variant: Variant) -> Tensor:
        """[B, K]: the logits of a variant, on the same images as the previous variant."""
        # a model's own attention scales are applied by taps, which need every attention layer to run
        run_all = self.model.attention_scales is not None
        num_cached_layers = 0 if run_all else _common_prefix(self._variant, variant)
        with ExitStack() as stack:
            if run_all:
                self._skip_by_taps(stack, variant)
            else:
                self._reuse_stem(stack)
                self._replace_layers(stack, variant, num_cached_layers)
            masks = {
                f"{layer.name}.attn": self.masks[change - LayerChange.MASK]
                for layer, change in zip(self.layers[num_cached_layers:], variant[num_cached_layers:], strict=True)
                if change >= LayerChange.MASK
            }
            if masks:
                stack.enter_context(self.model.taps.mask(masks))
            for layer in self.layers[num_cached_layers:]:
                _hook(stack, layer.module, self._keep_output)
            z_BK = self.model(x)
        self.layers_run += (
            len(variant) if run_all else sum(change != LayerChange.NO_LAYER for change in variant[num_cached_layers:])
        )
        self._variant = variant
        return z_BK

    def _replace_layers(self, stack: ExitStack, variant: Variant, num_cached_layers: int) -> None:
        """Replace the forward passes of cached layers, and of removed layers and branches."""
        for number, (layer, change) in enumerate(zip(self.layers, variant, strict=True)):
            branches = {LayerChange.NO_ATTENTION: layer.attention, LayerChange.NO_MLP: layer.mlp}
            if number < num_cached_layers:
                _replace_forward(stack, layer.module, _returning(self._outputs[layer.module]))
            elif change == LayerChange.NO_LAYER:
                _replace_forward(stack, layer.module, _passing(layer.residual_argument))
            elif change in branches:
                branch = branches[LayerChange(change)]
                assert branch is not None
                _replace_forward(stack, branch, _returning(self._zeros[branch]))
            elif not self._variant:  # the first variant is the original model, which gives the branches' shapes
                for one in filter(None, branches.values()):
                    _hook(stack, one, self._keep_zeros)

    def _reuse_stem(self, stack: ExitStack) -> None:
        """Reuse the outputs of modules that ran once before the first layer under the first variant."""
        if self._variant:
            for module, outputs in self._stem.items():
                if len(outputs) == 1:
                    _replace_forward(stack, module, _returning(outputs[0]))
            return
        inside = {layer.module for layer in self.layers}
        for module in self.model.net.children():
            if inside.isdisjoint(module.modules()):
                _hook(stack, module, self._keep_stem)

    def _skip_by_taps(self, stack: ExitStack, variant: Variant) -> None:
        endings = {LayerChange.NO_LAYER: "", LayerChange.NO_ATTENTION: ".attn", LayerChange.NO_MLP: ".mlp"}
        pairs = zip(self.layers, variant, strict=True)
        names = [f"{layer.name}{endings[LayerChange(change)]}" for layer, change in pairs if change in endings]
        if names:
            stack.enter_context(self.model.taps.skip(*names))

    def _keep_output(self, module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        self._outputs[module] = out

    def _keep_zeros(self, module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        self._zeros[module] = out.new_zeros(()).expand(out.shape)  # takes no additional memory

    def _keep_stem(self, module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        # a module that runs again later has two outputs, and is therefore not reused
        if module in self._stem or not self._outputs:
            self._stem.setdefault(module, []).append(out)


def _common_prefix(one: Variant, other: Variant) -> int:
    """The number of layers before the first difference of two variants."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))


def _returning(value: Tensor) -> Callable[..., Tensor]:
    return lambda *args, **settings: value


def _passing(argument: int) -> Callable[..., Tensor]:
    return lambda *args, **settings: args[argument]


def _hook(stack: ExitStack, module: nn.Module, hook: Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]) -> None:
    stack.callback(module.register_forward_hook(hook).remove)


def _replace_forward(stack: ExitStack, module: nn.Module, forward: Callable[..., Tensor]) -> None:
    """Replace a module's `forward` until the stack is closed."""
    own = module.__dict__.get("forward")
    module.forward = forward
    stack.callback(lambda: delattr(module, "forward") if own is None else setattr(module, "forward", own))
