"""Logits of changed models equal those of whole forward passes bit for bit, at the counted cost.

Shape letters: B images, K classes.
"""

import copy
import itertools
from contextlib import nullcontext
from typing import Any

import pytest
import study_models  # type: ignore[import-not-found]
import torch
from study_models import noisy_weights
from torch import Tensor, nn

from vitadel.analyze import tensor_context
from vitadel.analyze.layers import layers_of
from vitadel.analyze.prefix_cache import (
    LayerChange,
    PrefixCache,
    Variant,
    VariantCounts,
    count_correct,
    map_variants,
    variant,
)
from vitadel.core.errors import UsageError
from vitadel.models import Model, Option, load, set_attention_scales, tora

OPTIONS: dict[str, dict[str, Any]] = {
    "vit": {"depth": 4, "init_values": 0.5},
    "distilled": {"depth": 3},
    "cait": {"depth": 3},
    "xcit": {"depth": 3},
    "swin": {},
    "levit": {},
}
ENDINGS = {LayerChange.NO_LAYER: "", LayerChange.NO_ATTENTION: ".attn", LayerChange.NO_MLP: ".mlp"}


def tiny(family: str) -> Model:
    return noisy_weights(study_models.tiny(family, **OPTIONS[family]), 0.1)


@pytest.fixture
def x() -> Tensor:
    return torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(7))


def some_variants(model: Model, count: int = 12) -> list[Variant]:
    """Drawn with every kind of change where it is allowed."""
    _, layers = layers_of(model)
    rng = torch.Generator().manual_seed(11)
    variants = []
    for _ in range(count):
        changes = torch.randint(0, 6, (len(layers),), generator=rng).tolist()
        allowed = [
            change if change in (0, 3) or (change < 3 and not layer.changes_shape) else 0
            for change, layer in zip(changes, layers, strict=True)
        ]
        variants.append(tuple(allowed))
    return variants


def by_taps(model: Model, x: Tensor, one: Variant) -> Tensor:
    """A whole forward pass with parts skipped."""
    _, layers = layers_of(model)
    names = [f"{layer.name}{ENDINGS[LayerChange(change)]}" for layer, change in zip(layers, one, strict=True) if change]
    with torch.no_grad():
        if not names:
            return model(x)
        with model.taps.skip(*names):
            return model(x)


def logits(model: Model, x: Tensor, variants: list[Variant]) -> dict[Variant, Tensor]:
    result, layers = layers_of(model)
    cache = PrefixCache(result, layers, [])
    with torch.no_grad():
        return {one: cache.logits(x, one) for one in sorted({variant(layers), *variants})}


@pytest.mark.parametrize("family", OPTIONS)
def test_logits_equal_whole_forward_passes_bit_for_bit(family: str, x: Tensor) -> None:
    model = tiny(family)
    logits_by_variant = logits(model, x, some_variants(model))
    assert len(logits_by_variant) > 8
    for one, z_BK in logits_by_variant.items():
        assert torch.equal(z_BK, by_taps(model, x, one)), one
    spread = torch.stack(list(logits_by_variant.values())).std(0)
    assert float(spread.min()) > 0  # or a lesion that does nothing would pass


def test_adapters_after_blocks_and_factors_of_attention_are_kept(x: Tensor) -> None:
    base = load("timm:vit_tiny_patch16_224", num_classes=5, image_size=32, patch_size=8, options={"depth": 3})
    scaled = tiny("vit")
    set_attention_scales(scaled, [0.5, 2.0, 0.1, 1.0])
    for model in (noisy_weights(tora(base), 0.1), scaled):
        for one, z_BK in logits(model, x, some_variants(model)).items():
            assert torch.equal(z_BK, by_taps(model, x, one)), one


def test_skipped_convolution_units_match_a_network_without_them(x: Tensor) -> None:
    model = noisy_weights(load("timm:resnet18", num_classes=5), 0.1)
    _, layers = layers_of(model)
    free = [place for place, layer in enumerate(layers) if not layer.changes_shape]
    assert [layers[place].name for place in free] == ["layer1.0", "layer1.1", "layer2.1", "layer3.1", "layer4.1"]
    variants = []
    for some in itertools.chain(itertools.combinations(free, 1), itertools.combinations(free, 3)):
        variants.append(tuple(int(place in some) for place in range(len(layers))))
    for one, z_BK in logits(model, x, variants).items():
        without = copy.deepcopy(model)
        for layer, change in zip(layers, one, strict=True):
            if change:
                stage, _, unit = layer.name.partition(".")
                without.net.get_submodule(stage)[int(unit)] = nn.Identity()
        with torch.no_grad():
            assert torch.equal(z_BK, without(x)), one


def test_attention_masks_begin_at_the_planned_block(x: Tensor) -> None:
    model = tiny("vit")
    result, layers = layers_of(model)
    keep = torch.rand(17, 17, generator=torch.Generator().manual_seed(2)) < 0.4
    keep.fill_diagonal_(True)
    near = torch.eye(17, dtype=torch.bool)
    cache = PrefixCache(result, layers, [keep, near])
    variants = [(0, 0, 0, 0), (0, 0, 4, 5), (0, 0, 5, 0), (0, 1, 0, 4), (4, 4, 4, 4), (5, 0, 2, 0)]
    for one in sorted(variants):
        with torch.no_grad():
            z_BK = cache.logits(x, one)
            changes = dict(zip((f"blocks.{i}" for i in range(4)), one, strict=True))
            masks = {f"{name}.attn": (keep, near)[change - 4] for name, change in changes.items() if change >= 4}
            skips = [f"{name}{ENDINGS[LayerChange(change)]}" for name, change in changes.items() if 0 < change < 4]
            masked = model.taps.mask(masks) if masks else nullcontext()
            with masked, model.taps.skip(*skips) if skips else nullcontext():
                assert torch.equal(z_BK, model(x)), one


def counted(
    model: Model, x: Tensor, variants: list[Variant], batch_size: int | None = None, classes: int = 5
) -> VariantCounts:
    ctx = tensor_context(model, x, torch.arange(len(x)) % classes, batch_size=batch_size)
    map_variants(ctx, "changes", variants)
    return count_correct(ctx, "changes", variants)


@pytest.mark.parametrize("depth", [5, 8, 12])
def test_every_shared_prefix_runs_once(depth: int, x: Tensor) -> None:
    options: dict[str, Option] = {"depth": depth, "embed_dim": 24, "num_heads": 2}
    model = load("timm:vit_tiny_patch16_224", num_classes=5, image_size=32, patch_size=16, options=options)
    runs = [0] * depth
    for place, block in enumerate(model.net.blocks):  # type: ignore[arg-type]
        attention = block.attn
        attention.register_forward_hook(lambda *_, place=place: runs.__setitem__(place, runs[place] + 1))
    singles = [tuple(int(place == at) for place in range(depth)) for at in range(depth)]
    done = counted(model, x, singles)
    # once through, and for block i all that come after it
    assert done.layers_run == sum(runs) == depth + depth * (depth - 1) // 2
    assert done.forwards == done.layers_run / depth <= 0.6 * depth
    runs[:] = [0] * depth
    variants = some_variants(model, 40)
    beginnings = {one[: at + 1] for one in [variant(layers_of(model)[1]), *variants] for at in range(depth)}
    done = counted(model, x, variants, batch_size=2)
    assert done.layers_run == sum(beginning[-1] != LayerChange.NO_LAYER for beginning in beginnings)


def test_embeddings_run_once_and_reused_modules_are_not_skipped(x: Tensor) -> None:
    model = tiny("vit")
    ran: list[str] = []
    model.net.get_submodule("patch_embed.proj").register_forward_hook(lambda *_: ran.append("embed"))
    logits(model, x, some_variants(model))
    assert ran == ["embed"]

    class Again(nn.Module):
        """Uses one norm before the blocks and after them."""

        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net, self.norm = net, nn.LayerNorm(5)
            self.blocks = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)])

        def forward(self, x: Tensor) -> Tensor:
            z = self.norm(x.flatten(1)[:, :5])
            for block in self.blocks:
                z = block(z)
            return self.norm(z)

    from vitadel.models import Layer, wrap

    twice = wrap(Again(nn.Identity()), mean=(0.0,) * 3, std=(1.0,) * 3)
    layers = [Layer(f"blocks.{i}", block) for i, block in enumerate(twice.net.blocks)]  # type: ignore[arg-type]
    cache = PrefixCache(twice, layers, [])
    with torch.no_grad():
        cache.logits(x, (0, 0))
        pixels = x.flatten(1)[:, :5]
        norm, block = twice.net.norm, twice.net.blocks[0]  # type: ignore[index]
        assert torch.equal(cache.logits(x, (0, 1)), norm(block(norm(pixels))))  # type: ignore[operator]


def test_correctness_does_not_depend_on_the_batch(x: Tensor) -> None:
    model = tiny("vit").double()
    variants = some_variants(model)
    whole = counted(model, x, variants)
    for batch in (1, 4):
        other = counted(model, x, variants, batch_size=batch)
        assert other.correct == whole.correct
        assert other.layers_run == whole.layers_run
    assert len(set(whole.correct.values())) > 1


def test_a_batch_that_does_not_fit_is_halved_and_restarted(x: Tensor) -> None:
    model = tiny("vit").double()
    variants, calls = some_variants(model), []
    whole = counted(model, x, variants)

    def full(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        calls.append(len(args[0]))
        if len(args[0]) > 3 and len(calls) == 4:  # in the midst of the variants
            raise torch.OutOfMemoryError

    handle = model.register_forward_pre_hook(full)
    again = counted(model, x, variants)
    handle.remove()
    assert again.correct == whole.correct
    assert calls[:6] == [6, 6, 6, 6, 3, 3]


@pytest.mark.parametrize("family", ["vit", "cait", "swin"])
def test_the_model_is_left_unchanged_also_after_an_error(family: str, x: Tensor) -> None:
    model = tiny(family).train()
    before, twin = {key: value.clone() for key, value in model.state_dict().items()}, copy.deepcopy(model)
    counted(model, x, some_variants(model))
    with pytest.raises(UsageError, match="the data has labels from 0 to 5"):
        counted(model, x, [], classes=6)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())
    assert torch.equal(model.eval()(x), twin.eval()(x))


def test_a_module_with_an_instance_forward_gets_it_back(x: Tensor) -> None:
    model = tiny("vit")
    block = model.net.get_submodule("blocks.1")
    block.forward = own = block.forward
    counted(model, x, [(0, 1, 0, 0), (0, 1, 1, 0)])
    assert block.forward is own
