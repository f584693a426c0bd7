"""Every tap is the tensor of its name, compared with a plain implementation of attention."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitadel.models import Model, family_of

Tiny = Callable[..., Model]
FUSED = pytest.mark.parametrize("fused", [True, False])


class AttentionValues(NamedTuple):
    """The inside of one attention as its paper has it; `mixed` is what multiplies the values."""

    q: Tensor
    k: Tensor
    v: Tensor
    logits: Tensor
    mixed: Tensor


def split(attn: nn.Module, tokens_BND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each [B, heads, N, d]."""
    batch, count, _ = tokens_BND.shape
    qkv = attn.get_submodule("qkv")(tokens_BND).reshape(batch, count, 3, heads(attn), -1)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return q, k, v


def heads(attn: nn.Module) -> int:
    count = attn.num_heads
    assert isinstance(count, int)
    return count


def between_tokens(attn: nn.Module, tokens: Tensor) -> AttentionValues:
    q, k, v = split(attn, tokens)
    logits = q @ k.mT / q.shape[-1] ** 0.5
    return AttentionValues(q, k, v, logits, logits.softmax(-1))


def from_class_token(attn: nn.Module, tokens: Tensor) -> AttentionValues:
    batch, count, dim = tokens.shape
    q, k, v = (
        attn.get_submodule(name)(tokens).reshape(batch, count, heads(attn), -1).transpose(1, 2) for name in "qkv"
    )
    logits = q[:, :, :1] @ k.mT / (dim // heads(attn)) ** 0.5
    return AttentionValues(q[:, :, :1], k, v, logits, logits.softmax(-1))


def between_channels(attn: nn.Module, tokens: Tensor) -> AttentionValues:
    q, k, v = (part.mT for part in split(attn, tokens))
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    logits = q @ k.mT * attn.get_parameter("temperature")
    return AttentionValues(q, k, v, logits, logits.softmax(-1))


def talking_heads(attn: nn.Module, tokens: Tensor) -> AttentionValues:
    def mix_heads(a_BHNN: Tensor, name: str) -> Tensor:
        mix = attn.get_submodule(name)
        weight, bias = mix.get_parameter("weight"), mix.get_parameter("bias")
        return torch.einsum("gh,bhnm->bgnm", weight, a_BHNN) + bias[:, None, None]

    plain = between_tokens(attn, tokens)
    logits = mix_heads(plain.logits, "proj_l")
    return plain._replace(logits=logits, mixed=mix_heads(logits.softmax(-1), "proj_w"))


def in_windows(attn: nn.Module, tokens: Tensor, mask: Tensor | None = None) -> AttentionValues:
    plain = between_tokens(attn, tokens)
    side = round(tokens.shape[1] ** 0.5)
    table = attn.get_parameter("relative_position_bias_table").view(2 * side - 1, 2 * side - 1, -1)
    at = torch.arange(side)
    # bias from one place to another by the rows and columns between them
    between = table[(at[:, None] - at)[:, None, :, None] + side - 1, (at[:, None] - at)[None, :, None, :] + side - 1]
    logits = plain.logits + between.reshape(side**2, side**2, -1).permute(2, 0, 1)
    if mask is not None:
        logits = logits + mask.repeat(len(tokens) // len(mask), 1, 1)[:, None]
    return plain._replace(logits=logits, mixed=logits.softmax(-1))


def with_biases(attn: nn.Module, tokens: Tensor) -> AttentionValues:
    per_head = attn.get_submodule("qkv")(tokens).unflatten(-1, (heads(attn), -1)).transpose(1, 2)
    dim = 16
    return biased(attn, per_head[..., :dim], per_head[..., dim : 2 * dim], per_head[..., 2 * dim :], stride=1)


def shrinking(attn: nn.Module, tokens: Tensor) -> AttentionValues:
    side, dim = round(tokens.shape[1] ** 0.5), 16
    every_other = tokens.unflatten(1, (side, side))[:, ::2, ::2].flatten(1, 2)
    q = attn.get_submodule("q.ln")(every_other).unflatten(-1, (heads(attn), -1)).transpose(1, 2)
    per_head = attn.get_submodule("kv")(tokens).unflatten(-1, (heads(attn), -1)).transpose(1, 2)
    return biased(attn, q, per_head[..., :dim], per_head[..., dim:], stride=2)


def biased(attn: nn.Module, q: Tensor, k: Tensor, v: Tensor, *, stride: int) -> AttentionValues:
    """LeViT's bias is one number for so many rows and so many columns between query and key."""
    side = round(k.shape[2] ** 0.5)
    table = attn.get_parameter("attention_biases").unflatten(1, (side, side))
    apart = (torch.arange(0, side, stride)[:, None] - torch.arange(side)).abs()
    between = table[:, apart[:, None, :, None], apart[None, :, None, :]].flatten(3).flatten(1, 2)
    logits = q @ k.mT / q.shape[-1] ** 0.5 + between
    return AttentionValues(q, k, v, logits, logits.softmax(-1))


CASES: dict[str, tuple[str, str, str, Callable[..., AttentionValues]]] = {
    "vit": ("vit", "blocks.1.attn", "blocks.1.attn", between_tokens),
    "deit": ("deit", "blocks.0.attn", "blocks.0.attn", between_tokens),
    "distilled": ("distilled", "blocks.1.attn", "blocks.1.attn", between_tokens),
    "cait": ("cait", "blocks.1.attn", "blocks.1.attn", talking_heads),
    "cait class": ("cait", "class_blocks.1.attn", "blocks_token_only.1.attn", from_class_token),
    "xcit": ("xcit", "blocks.1.attn", "blocks.1.attn", between_channels),
    "xcit class": ("xcit", "class_blocks.0.attn", "cls_attn_blocks.0.attn", from_class_token),
    "swin": ("swin", "blocks.0.attn", "layers.0.blocks.0.attn", in_windows),
    "swin shifted": ("swin", "blocks.1.attn", "layers.0.blocks.1.attn", in_windows),
    "swin stage 2": ("swin", "blocks.4.attn", "layers.2.blocks.0.attn", in_windows),
    "levit": ("levit", "blocks.1.attn", "stages.0.blocks.1.attn", with_biases),
    "levit shrinking": ("levit", "blocks.2.attn", "stages.1.downsample.attn_downsample", shrinking),
    "levit stage 1": ("levit", "blocks.5.attn", "stages.1.blocks.2.attn", with_biases),
    "levit shrinking to one": ("levit", "blocks.6.attn", "stages.2.downsample.attn_downsample", shrinking),
}


@FUSED
@pytest.mark.parametrize("case", CASES)
def test_taps_inside_attention_match_its_formula(tiny: Tiny, x: Tensor, case: str, fused: bool) -> None:
    family, tap, path, by_hand = CASES[case]
    model = tiny(family, fused=fused)
    attn = model.net.get_submodule(path)
    entered: list[tuple[Tensor, Mapping[str, Tensor]]] = []
    watch = attn.register_forward_pre_hook(lambda m, args, kwargs: entered.append((args[0], kwargs)), with_kwargs=True)
    with model.taps.read(f"{tap}.*") as seen:
        model(x)
    watch.remove()
    tokens, kwargs = entered[0]
    mask = kwargs.get("mask")
    assert (mask is not None) == (case == "swin shifted")
    expected = by_hand(attn, tokens) if mask is None else by_hand(attn, tokens, mask)

    def close(name: str, value: Tensor) -> None:
        torch.testing.assert_close(seen[f"{tap}.{name}"], value, rtol=1e-10, atol=1e-12)

    assert set(seen) == {f"{tap}.{name}" for name in ("q", "k", "v", "logits", "probs", "out")}
    assert expected.logits.std() > 0.05
    close("k", expected.k)
    close("v", expected.v)
    close("logits", expected.logits)
    close("probs", expected.logits.softmax(-1))
    out = expected.mixed @ expected.v
    out = out.permute(0, 3, 1, 2) if by_hand is between_channels else out.transpose(1, 2)
    close("out", attn.get_submodule("proj")(out.flatten(2)))


@pytest.mark.parametrize(
    ("family", "tap", "fused", "expected"),
    [
        ("vit", "blocks.0.attn", True, lambda q, attn: q),
        ("vit", "blocks.0.attn", False, lambda q, attn: q * q.shape[-1] ** -0.5),
        ("xcit", "blocks.0.attn", True, lambda q, attn: q * attn.temperature),
        ("xcit", "blocks.0.attn", False, lambda q, attn: q),
    ],
)
def test_queries_are_those_given_to_the_kernel(
    tiny: Tiny, x: Tensor, family: str, tap: str, fused: bool, expected: Callable[[Tensor, nn.Module], Tensor]
) -> None:
    """timm scales them before an unfused product, and not before a fused one: docs/taps.md says so."""
    model = tiny(family, fused=fused)
    attn = model.net.get_submodule(tap)
    with model.taps.read("*") as seen:
        model(x)
    tokens = model.net.get_submodule("blocks.0.norm1")(seen["embed"])
    q = (between_channels if family == "xcit" else between_tokens)(attn, tokens).q
    torch.testing.assert_close(seen[f"{tap}.q"], expected(q, attn), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("family", ["vit", "deit", "distilled", "cait", "xcit", "swin"])
def test_fused_and_unfused_attention_give_the_same(tiny: Tiny, x: Tensor, family: str) -> None:
    seen = []
    for fused in (True, False):
        model = tiny(family, fused=fused)
        with model.taps.read("*") as these:
            model(x)
        seen.append({name: value for name, value in these.items() if not name.endswith(".q")})
    assert len(seen[0]) == len(model.taps.names()) - len(model.taps.attentions())
    torch.testing.assert_close(seen[0], seen[1], rtol=1e-10, atol=1e-12)


@FUSED
def test_residual_stream_adds_up(tiny: Tiny, x: Tensor, fused: bool) -> None:
    model = tiny("vit", fused=fused)
    with model.taps.read("*") as seen:
        model(x)
    stream = seen["embed"]
    for i in range(2):
        stream = stream + seen[f"blocks.{i}.attn.out"]
        mlp = model.net.get_submodule(f"blocks.{i}.mlp")(model.net.get_submodule(f"blocks.{i}.norm2")(stream))
        torch.testing.assert_close(seen[f"blocks.{i}.mlp.out"], mlp, rtol=1e-12, atol=1e-12)
        stream = stream + mlp
        torch.testing.assert_close(seen[f"blocks.{i}.out"], stream, rtol=1e-12, atol=1e-12)


def embedding_of_vit(net: nn.Module, pixels: Tensor) -> Tensor:
    patches = net.get_submodule("patch_embed")(pixels)
    tokens = [net.get_parameter(name) for name in ("cls_token", "dist_token") if hasattr(net, name)]
    return torch.cat([*(token.expand(len(pixels), -1, -1) for token in tokens), patches], 1) + net.get_parameter(
        "pos_embed"
    )


def embedding_of_xcit(net: nn.Module, pixels: Tensor) -> Tensor:
    patches, (rows, columns) = net.get_submodule("patch_embed")(pixels)
    positions = net.get_submodule("pos_embed")(len(pixels), rows, columns)
    return patches + positions.flatten(2).mT


EMBEDDINGS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "vit": embedding_of_vit,
    "distilled": embedding_of_vit,
    "cait": lambda net, pixels: net.get_submodule("patch_embed")(pixels) + net.get_parameter("pos_embed"),
    "xcit": embedding_of_xcit,
    "swin": lambda net, pixels: net.get_submodule("patch_embed")(pixels),
}
LAST = {"cait": "class_blocks.1.out", "xcit": "class_blocks.1.out", "swin": "blocks.11.out"}


@pytest.mark.parametrize("family", EMBEDDINGS)
def test_taps_outside_blocks_match_timm(tiny: Tiny, x: Tensor, family: str) -> None:
    model = tiny(family)
    net = model.net
    pixels = (x - model.mean) / model.std
    features = net.forward_features(pixels)  # type: ignore[operator]
    with model.taps.read("*") as seen:
        z = model(x)
    torch.testing.assert_close(seen["embed"], EMBEDDINGS[family](net, pixels), rtol=1e-12, atol=1e-12)
    last = net.get_submodule("norm")(seen[LAST.get(family, "blocks.1.out")])
    torch.testing.assert_close(last, features[:, :1] if family == "cait" else features, rtol=1e-12, atol=1e-12)
    if family == "distilled":  # two heads, each on its own token; the tap is at the first
        torch.testing.assert_close(seen["head.in"], features[:, 0], rtol=1e-12, atol=1e-12)
        second = net.get_submodule("head_dist")(features[:, 1])
        torch.testing.assert_close((net.get_submodule("head")(seen["head.in"]) + second) / 2, z)
    else:
        pooled = net.forward_head(features, pre_logits=True)  # type: ignore[operator]
        torch.testing.assert_close(seen["head.in"], pooled, rtol=1e-12, atol=1e-12)
        assert torch.equal(net.get_classifier()(seen["head.in"]), z)  # type: ignore[operator]


def test_names_are_in_the_order_of_the_forward_pass(tiny: Tiny, x: Tensor) -> None:
    model = tiny("xcit")
    inside = ("attn.q", "attn.k", "attn.v", "attn.logits", "attn.probs", "attn.out", "mlp.out", "out")
    blocks = ("blocks.0", "blocks.1", "class_blocks.0", "class_blocks.1")
    assert model.taps.names() == ["embed", *(f"{b}.{i}" for b in blocks for i in inside), "head.in"]
    assert model.taps.attentions() == [f"{b}.attn" for b in blocks]
    with model.taps.read("*out") as seen:
        model(x)
    assert list(seen) == [name for name in model.taps.names() if name.endswith("out")]


def test_blocks_are_numbered_across_the_stages_of_swin(tiny: Tiny) -> None:
    assert tiny("swin").taps.attentions() == [f"blocks.{i}.attn" for i in range(12)]


def test_prefix_tokens_of_xcit_are_those_of_its_class_attention(tiny: Tiny) -> None:
    """Blocks of channel attention see patches alone; the class token comes with the class-attention blocks."""
    net = tiny("xcit").net
    blocks = family_of(net).blocks(net)
    prefix = {layer.name.partition(".")[0]: layer.prefix for layer in blocks}
    assert prefix == {"blocks": 0, "class_blocks": 1}
