"""scale, mask, skip, edit and read: what each does to the computation."""

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitadel.models import Model

Tiny = Callable[..., Model]
FAMILIES = ("vit", "deit", "distilled", "cait", "xcit", "swin", "levit")
LOGITS = "*.attn.logits"


class Calls(TorchFunctionMode):
    """How often the fused kernel and the softmax are called."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = 0
        self.softmax = 0

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        self.fused += func is F.scaled_dot_product_attention
        self.softmax += func in (torch.softmax, Tensor.softmax, F.softmax)
        return func(*args, **(kwargs or {}))


class Replacement(nn.Module):
    """In place of a block or branch."""

    def __init__(self, instead: Callable[..., Tensor]) -> None:
        super().__init__()
        self.instead = instead

    def forward(self, *args: Tensor, **kwargs: object) -> Tensor:
        return self.instead(*args)


def probs_of(model: Model, x: Tensor) -> dict[str, Tensor]:
    with model.taps.read("*.attn.probs") as seen:
        model(x)
    return seen


# scale


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_factors_match_finite_differences(tiny: Tiny, x: Tensor, family: str, fused: bool) -> None:
    model = tiny(family, fused=fused)
    count = len(model.taps.attentions())
    at = torch.linspace(0.5, 1.5, count, dtype=x.dtype)

    def value(factors: Tensor) -> Tensor:
        with model.taps.scale(factors):
            return model(x)[0, 0]

    factors = at.clone().requires_grad_()
    (grad,) = torch.autograd.grad(value(factors), factors)
    for i in range(min(count, 4)):
        step = 1e-5 * torch.eye(count, dtype=x.dtype)[i]
        with torch.no_grad():
            difference = (value(at + step) - value(at - step)) / 2e-5
        torch.testing.assert_close(grad[i], difference, rtol=1e-5, atol=1e-9)
    assert (grad[:4] != 0).all()  # in the last stage of Swin and LeViT a token is alone


def test_one_factor_applies_to_all_blocks(tiny: Tiny, x: Tensor) -> None:
    model = tiny("cait")
    with model.taps.scale(0.3):
        one = model(x)
    for same in ([0.3] * 4, torch.tensor(0.3, dtype=x.dtype), torch.full((4,), 0.3, dtype=x.dtype)):
        with model.taps.scale(same):
            torch.testing.assert_close(model(x), one, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fused", [True, False])
def test_scale_multiplies_the_logits_of_each_block(tiny: Tiny, x: Tensor, fused: bool) -> None:
    model = tiny("vit", fused=fused)
    taps, plain = model.taps, model(x)
    with taps.scale([0.25, 3.0]):
        scaled = model(x)
    with taps.edit("blocks.0.attn.logits", lambda a: a * 0.25), taps.edit("blocks.1.attn.logits", lambda a: a * 3.0):
        edited = model(x)
    torch.testing.assert_close(scaled, edited, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(scaled, plain, rtol=1e-3)


def test_factors_of_nested_blocks_multiply(tiny: Tiny, x: Tensor) -> None:
    model = tiny("xcit")
    with model.taps.scale(1.5):
        expected = model(x)
    with model.taps.scale(3.0), model.taps.scale(0.5):
        torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)


def test_factor_zero_makes_attention_uniform(tiny: Tiny, x: Tensor) -> None:
    model = tiny("vit")
    with model.taps.scale(0.0):
        for probs in probs_of(model, x).values():
            torch.testing.assert_close(probs, torch.full_like(probs, 1 / probs.shape[-1]))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fused_kernel_is_used_unless_logits_are_requested(tiny: Tiny, x: Tensor, family: str) -> None:
    model = tiny(family, fused=True)
    attentions = len(model.taps.attentions())
    fused = attentions - {"cait": 2, "levit": attentions}.get(family, 0)  # timm has no fused kernel for these
    everything = torch.ones(1, 1, 1, 1, dtype=torch.bool)

    with Calls() as calls, model.taps.scale(0.5), model.taps.mask(everything), model.taps.read("*.v") as seen:
        model(x)
    assert (calls.fused, calls.softmax) == (fused, attentions - fused)
    assert len(seen) == attentions

    with Calls() as calls, model.taps.read("blocks.1.attn.logits"):
        model(x)
    assert calls.fused == fused - (0 if family in ("cait", "levit") else 1)


@pytest.mark.parametrize("fused", [True, False])
def test_small_factors_keep_the_windows_of_swin(tiny: Tiny, x: Tensor, fused: bool) -> None:
    model = tiny("swin", fused=fused)
    forbidden = model.net.get_submodule("layers.0.blocks.1").get_buffer("attn_mask") < 0
    assert forbidden.any()
    for factor in (0.01, 1.0):
        with model.taps.scale(factor):
            probs = probs_of(model, x)["blocks.1.attn.probs"]
        there = probs.unflatten(0, (2, -1)).masked_select(forbidden[:, None])
        assert there.max() < 1e-30


def test_position_bias_of_swin_keeps_its_weight(tiny: Tiny, x: Tensor) -> None:
    model = tiny("swin")
    with model.taps.scale(0.0), model.taps.read("blocks.0.attn.logits") as seen:
        model(x)
    logits = seen["blocks.0.attn.logits"]
    assert logits[0].std() > 0.05
    torch.testing.assert_close(logits, logits[:1].expand_as(logits))


# mask


@pytest.fixture
def keep() -> Tensor:
    """Two thirds of all pairs of 17 tokens, the diagonal among them."""
    some = torch.rand(17, 17, generator=torch.Generator().manual_seed(5)) < 2 / 3
    return some | torch.eye(17, dtype=torch.bool)


@pytest.mark.parametrize("fused", [True, False])
def test_a_bool_mask_zeroes_exactly_those_probabilities(tiny: Tiny, x: Tensor, keep: Tensor, fused: bool) -> None:
    model = tiny("vit", fused=fused)
    free = probs_of(model, x)["blocks.0.attn.probs"]
    with model.taps.mask(keep):
        cut = probs_of(model, x)
        output = model(x)
    for probs in cut.values():
        assert torch.equal(probs != 0, keep.expand_as(probs))
    expected = (free * keep) / (free * keep).sum(-1, keepdim=True)
    torch.testing.assert_close(cut["blocks.0.attn.probs"], expected, rtol=1e-10, atol=1e-12)
    with model.taps.edit("*.probs", lambda p: p * keep / (p * keep).sum(-1, keepdim=True)):
        torch.testing.assert_close(output, model(x), rtol=1e-10, atol=1e-12)


def test_a_masked_pair_has_zero_weight_after_heads_are_mixed(tiny: Tiny, x: Tensor) -> None:
    model = tiny("cait")
    attention = model.net.get_submodule("blocks.0.attn")
    bias = attention.get_submodule("proj_w").get_parameter("bias")
    nn.init.constant_(bias, 0.5)  # the weight that mixing gives a probability of zero
    free = model(x)
    width = attention.get_submodule("proj").get_parameter("bias").numel()
    tokens = torch.randn(2, 16, width, dtype=x.dtype, generator=torch.Generator().manual_seed(2))
    moved = tokens.clone()
    moved[:, -1] += 1
    alone = torch.eye(16, dtype=torch.bool)
    with model.taps.mask({"blocks.0.attn": alone}):
        first, second = attention(tokens), attention(moved)
        model(x)
    assert torch.equal(first[:, :-1], second[:, :-1])
    assert not torch.equal(first[:, -1], second[:, -1])
    with model.taps.mask({"blocks.0.attn": torch.ones(16, 16, dtype=torch.bool)}):
        assert torch.equal(model(x), free)
    assert torch.equal(model(x), free)


@pytest.mark.parametrize("fused", [True, False])
def test_masks_by_pattern_apply_to_those_blocks_only(tiny: Tiny, x: Tensor, keep: Tensor, fused: bool) -> None:
    model = tiny("vit", fused=fused)
    free = probs_of(model, x)
    with model.taps.mask({"blocks.1.*": keep}):
        one = probs_of(model, x)
    assert torch.equal(one["blocks.0.attn.probs"], free["blocks.0.attn.probs"])
    assert torch.equal(one["blocks.1.attn.probs"] != 0, keep.expand_as(one["blocks.1.attn.probs"]))
    with model.taps.mask({"blocks.0.attn": keep, "blocks.1.attn": keep}):
        both = model(x)
    with model.taps.mask(keep):
        assert torch.equal(model(x), both)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_additive_mask_is_added_to_the_logits(tiny: Tiny, x: Tensor, family: str, fused: bool) -> None:
    model = tiny(family, fused=fused)
    rng = torch.Generator().manual_seed(1)
    with model.taps.read(LOGITS) as seen:
        model(x)
    add = {
        name.removesuffix(".logits"): torch.randn(a.shape[1:], generator=rng, dtype=x.dtype) for name, a in seen.items()
    }
    with model.taps.mask(add):
        masked = model(x)
    names = iter(add)
    with model.taps.edit(LOGITS, lambda a: a + add[next(names)]):
        torch.testing.assert_close(masked, model(x), rtol=1e-10, atol=1e-11)
    assert next(names, None) is None


@pytest.mark.parametrize("fused", [True, False])
def test_nested_masks_combine(tiny: Tiny, x: Tensor, keep: Tensor, fused: bool) -> None:
    model = tiny("vit", fused=fused)
    other = keep.flip(0, 1)
    with model.taps.mask(keep & other):
        expected = model(x)
    with model.taps.mask(keep), model.taps.mask(other):
        torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)


def test_masks_apply_to_class_blocks(tiny: Tiny, x: Tensor) -> None:
    model = tiny("xcit")
    only_itself = torch.arange(17) == 0
    with model.taps.mask({"class_blocks.*": only_itself}):
        probs = probs_of(model, x)["class_blocks.1.attn.probs"]
    assert torch.equal(probs, only_itself.to(probs).expand_as(probs))


# skip

# the block, where it is in timm's network, which argument it hands through
SKIPS = [
    ("vit", "blocks.1", "blocks.1", 0),
    ("distilled", "blocks.0", "blocks.0", 0),
    ("cait", "blocks.0", "blocks.0", 0),
    ("cait", "class_blocks.0", "blocks_token_only.0", 1),
    ("xcit", "blocks.1", "blocks.1", 0),
    ("xcit", "class_blocks.1", "cls_attn_blocks.1", 0),
    ("swin", "blocks.3", "layers.1.blocks.1", 0),
    ("levit", "blocks.1", "stages.0.blocks.1", 0),
    ("levit", "blocks.4", "stages.1.blocks.1", 0),
]


@pytest.mark.parametrize(("family", "name", "path", "stream"), SKIPS)
def test_a_skipped_block_is_an_identity(tiny: Tiny, x: Tensor, family: str, name: str, path: str, stream: int) -> None:
    model, without = tiny(family), tiny(family)
    without.net.set_submodule(path, Replacement(lambda *args: args[stream]))
    with model.taps.skip(name):
        assert torch.equal(model(x), without(x))
    assert not torch.allclose(model(x), without(x))


@pytest.mark.parametrize("part", ["attn", "mlp"])
@pytest.mark.parametrize(("family", "name", "path", "stream"), SKIPS)
def test_skipped_branch_adds_nothing(
    tiny: Tiny, x: Tensor, family: str, name: str, path: str, stream: int, part: str
) -> None:
    model, without = tiny(family), tiny(family)
    branch = without.net.get_submodule(f"{path}.{part}")
    without.net.set_submodule(f"{path}.{part}", Replacement(lambda *args: 0 * branch(args[0])))
    with model.taps.skip(f"{name}.{part}"):
        torch.testing.assert_close(model(x), without(x), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(model(x), without(x))


def test_a_star_skips_blocks_only(tiny: Tiny, x: Tensor) -> None:
    model, without = tiny("xcit"), tiny("xcit")
    for i in range(2):
        without.net.set_submodule(f"blocks.{i}", Replacement(lambda *args: args[0]))
    with model.taps.skip("blocks.*"):
        z = model(x)
    assert torch.equal(z, without(x))
    for i in range(2):
        without.net.set_submodule(f"cls_attn_blocks.{i}", Replacement(lambda *args: args[0]))
    assert not torch.equal(z, without(x))
    with model.taps.skip("blocks.*", "class_blocks.*"):
        assert torch.equal(model(x), without(x))


def test_all_mlps_can_be_skipped_at_once(tiny: Tiny, x: Tensor) -> None:
    model = tiny("vit")
    with model.taps.skip("blocks.*.mlp"), model.taps.read("*") as seen:
        model(x)
    attention = seen["blocks.0.attn.out"] + seen["blocks.1.attn.out"]
    torch.testing.assert_close(seen["blocks.1.out"], seen["embed"] + attention, rtol=1e-12, atol=1e-12)


# edit and read


@pytest.mark.parametrize("name", ["embed", "blocks.0.attn.v", "blocks.0.attn.logits", "blocks.0.mlp.out", "head.in"])
def test_read_returns_edited_values_in_any_nesting(tiny: Tiny, x: Tensor, name: str) -> None:
    model = tiny("vit")
    with model.taps.read(name) as plain:
        model(x)
    with model.taps.read(name) as outer, model.taps.edit(name, lambda a: 2 * a + 1), model.taps.read(name) as inner:
        model(x)
    torch.testing.assert_close(outer[name], 2 * plain[name] + 1)
    assert inner[name] is outer[name]


@pytest.mark.parametrize("name", ["blocks.1.attn.logits", "blocks.1.out"])
def test_edits_compose_in_order_of_nesting(tiny: Tiny, x: Tensor, name: str) -> None:
    model = tiny("vit")
    with model.taps.edit(name, lambda a: (a + 1).square()):
        expected = model(x)
    with model.taps.edit(name, lambda a: a + 1), model.taps.edit(name, torch.square):
        assert torch.equal(model(x), expected)
    with model.taps.edit(name, torch.square), model.taps.edit(name, lambda a: a + 1):
        assert not torch.allclose(model(x), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_edited_head_input_determines_the_output(tiny: Tiny, x: Tensor, family: str) -> None:
    model = tiny(family)
    with model.taps.edit("head.in", lambda a: a * 0):
        z = model(x)
    if family in ("distilled", "levit"):  # its second head is not affected
        assert not torch.equal(z[0], z[1])
    else:
        assert torch.equal(z, model.net.get_classifier().bias.expand_as(z))  # type: ignore[operator]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_penalty_on_logits_has_the_exact_gradient(tiny: Tiny, x: Tensor, family: str, fused: bool) -> None:
    model = tiny(family, fused=fused)

    def penalty(images: Tensor) -> Tensor:
        with model.taps.read(LOGITS) as seen:
            model(images)
        return torch.stack([a.square().mean() for a in seen.values()]).mean()

    images = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(penalty(images), images)
    way = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype)
    with torch.no_grad():
        difference = (penalty(x + 1e-6 * way) - penalty(x - 1e-6 * way)) / 2e-6
    torch.testing.assert_close((grad * way).sum(), difference, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("fused", [True, False])
def test_read_tensors_are_part_of_the_graph(tiny: Tiny, x: Tensor, fused: bool) -> None:
    model = tiny("cait", fused=fused)
    with model.taps.read("*") as seen:
        z = model(x)
    grads = torch.autograd.grad(z.square().sum(), list(seen.values()), allow_unused=True)
    unused = [name for name, grad in zip(seen, grads, strict=True) if grad is None or not grad.any()]
    assert unused == []


def test_read_returns_the_latest_forward_pass(tiny: Tiny, x: Tensor) -> None:
    model = tiny("vit")
    with model.taps.read("head.in") as seen:
        model(x)
        first = seen["head.in"]
        model(x.flip(0))
    torch.testing.assert_close(seen["head.in"], first.flip(0))


def test_a_star_matches_one_part_of_a_name_first(tiny: Tiny, x: Tensor) -> None:
    model = tiny("vit")
    for pattern, expected in (
        ("blocks.*.out", {"blocks.0.out", "blocks.1.out"}),
        ("*.mlp.out", {"blocks.0.mlp.out", "blocks.1.mlp.out"}),
        ("*.probs", {"blocks.0.attn.probs", "blocks.1.attn.probs"}),
        ("*", set(model.taps.names())),
    ):
        with model.taps.read(pattern) as seen:
            model(x)
        assert set(seen) == expected
