"""Specific to LeViT: blocks between stages, position biases and timm's cache of them, patches made by a stem."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from timm.models.levit import Levit
from torch import Tensor, nn

from vitadel.attacks import PGD
from vitadel.core.errors import UsageError
from vitadel.goals import Untargeted
from vitadel.models import Model, load, save, wrap
from vitadel.threats import Linf

Tiny = Callable[..., Model]
PATHS = [
    "stages.0.blocks.0.attn",
    "stages.1.downsample.attn_downsample",
    "stages.1.blocks.0.attn",
    "stages.2.downsample.attn_downsample",
    "stages.2.blocks.0.attn",
    "stages.2.blocks.1.attn",
]


@pytest.fixture
def model(noisy_weights: Callable[[Model, int], Model]) -> Model:
    """Built by hand for 64 pixels, where the last stage has four tokens."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Levit(
            img_size=64,
            num_classes=5,
            embed_dim=(32, 48, 64),
            key_dim=8,
            depth=(1, 1, 2),
            num_heads=(2, 3, 4),
            stem_type="s8",
        )
    return noisy_weights(wrap(net.double().eval(), mean=(0.5,) * 3, std=(0.2,) * 3), 64)


@pytest.fixture
def x() -> Tensor:
    return torch.rand(2, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


@contextmanager
def queries_times(factor: float, attn: nn.Module) -> Iterator[None]:
    """The queries multiplied where timm makes them."""
    heads, dim = attn.num_heads, attn.key_dim
    assert isinstance(heads, int)
    assert isinstance(dim, int)

    def among_all(module: nn.Module, args: object, out: Tensor) -> Tensor:
        per_head = out.unflatten(-1, (heads, -1))
        return torch.cat([per_head[..., :dim] * factor, per_head[..., dim:]], -1).flatten(2)

    def alone(module: nn.Module, args: object, out: Tensor) -> Tensor:
        return out * factor

    hook = (
        attn.get_submodule("q").register_forward_hook(alone)
        if hasattr(attn, "q")
        else attn.get_submodule("qkv").register_forward_hook(among_all)
    )
    try:
        yield
    finally:
        hook.remove()


# blocks


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("factor", [0.3, 2.5, 0.0])
def test_a_factor_multiplies_the_queries_of_its_attention(model: Model, x: Tensor, number: int, factor: float) -> None:
    factors = [1.0] * 6
    factors[number] = factor
    plain = model(x)
    with queries_times(factor, model.net.get_submodule(PATHS[number])):
        expected = model(x)
    with model.taps.scale(factors):
        torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)
    assert (expected - plain).abs().max() > 1e-3
    assert torch.equal(model(x), plain)


def test_position_bias_keeps_its_weight(model: Model, x: Tensor) -> None:
    with model.taps.scale(0.0), model.taps.read("*.logits") as seen:
        model(x)
    for path, logits in zip(PATHS, seen.values(), strict=True):
        attn = model.net.get_submodule(path)
        bias = attn.get_parameter("attention_biases")[:, attn.get_buffer("attention_bias_idxs")]
        assert bias.std() > 0.05
        assert torch.equal(logits, bias.expand_as(logits))


def test_blocks_between_stages_are_numbered_too(model: Model, x: Tensor, tiny: Tiny) -> None:
    assert tiny("levit").taps.attentions() == [f"blocks.{i}.attn" for i in range(11)]
    assert model.taps.attentions() == [f"blocks.{i}.attn" for i in range(6)]
    with model.taps.read("*") as seen:
        model(x)
    pairs = [tuple(seen[f"blocks.{i}.attn.probs"].shape[2:]) for i in range(6)]
    assert pairs == [(64, 64), (16, 64), (16, 16), (4, 16), (4, 4), (4, 4)]
    order = [name for name in model.taps.names() if name.endswith("out")]
    assert [name for name in seen if name.endswith("out")] == order
    stream = seen["embed"]
    for i in range(6):
        attention = seen[f"blocks.{i}.attn.out"]
        stream = (attention if i in (1, 3) else stream + attention) + seen[f"blocks.{i}.mlp.out"]
        torch.testing.assert_close(stream, seen[f"blocks.{i}.out"], rtol=1e-12, atol=1e-12)


def test_taps_outside_blocks_match_timm(tiny: Tiny, x: Tensor) -> None:
    model, images = tiny("levit"), x[..., :32, :32]
    net, pixels = model.net, (images - model.mean) / model.std
    features = net.forward_features(pixels)  # type: ignore[operator]
    with model.taps.read("*") as seen:
        z = model(images)
    torch.testing.assert_close(seen["embed"], net.get_submodule("stem")(pixels).flatten(2).mT, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(seen["blocks.10.out"], features, rtol=1e-12, atol=1e-12)
    # two heads, each with a norm of its own; the tap is inside the first
    pooled = features.mean(1)
    torch.testing.assert_close(seen["head.in"], net.get_submodule("head.bn")(pooled), rtol=1e-12, atol=1e-12)
    both = net.get_submodule("head.linear")(seen["head.in"]) + net.get_submodule("head_dist")(pooled)
    torch.testing.assert_close(both / 2, z, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("patterns", "named"),
    [
        (["blocks.1"], "blocks.1"),
        (["blocks.3.attn"], "blocks.3.attn"),
        (["blocks.0", "blocks.3"], "blocks.3"),
        (["blocks.*"], "blocks.1, blocks.3"),
        (["blocks.*.attn"], "blocks.1.attn, blocks.3.attn"),
    ],
)
def test_downsampling_blocks_cannot_be_skipped(model: Model, x: Tensor, patterns: list[str], named: str) -> None:
    before = model(x)
    with pytest.raises(UsageError) as error, model.taps.skip(*patterns):
        pass
    instead = named.split(",")[0].removesuffix(".attn")
    assert str(error.value) == (
        f"{named} cannot be skipped: later blocks rely on the smaller number of tokens. "
        f"Name the other blocks one by one, or skip its MLP: {instead}.mlp."
    )
    assert torch.equal(model(x), before)


def test_every_other_part_can_be_skipped(model: Model, x: Tensor) -> None:
    others = [f"blocks.{i}" for i in (0, 2, 4, 5)]
    with model.taps.skip(*others, "blocks.*.mlp"), model.taps.read("*.out") as seen:
        model(x)
    assert torch.equal(seen["blocks.5.out"], seen["blocks.3.attn.out"])
    assert torch.equal(seen["blocks.2.out"], seen["blocks.1.attn.out"])
    with model.taps.skip(*(f"{name}.attn" for name in others)), model.taps.read("*.attn.out") as seen:
        model(x)
    assert [bool(out.any()) for out in seen.values()] == [False, True, False, True, False, False]


def test_mask_cuts_where_queries_are_fewer_than_keys(model: Model, x: Tensor) -> None:
    keep = torch.rand(16, 64, generator=torch.Generator().manual_seed(1)) < 0.5
    with model.taps.mask({"blocks.1.attn": keep}), model.taps.read("blocks.1.attn.probs") as seen:
        model(x)
    probs = seen["blocks.1.attn.probs"]
    assert torch.equal(probs != 0, keep.expand_as(probs))


def test_convolutional_variants_have_no_known_blocks() -> None:
    model = load("timm:levit_conv_128s", num_classes=5, image_size=32)
    assert model.taps.names() == ["head.in"]
    with pytest.raises(UsageError, match=r"LevitDistilled has no attention Vitadel supports\. .*not levit_conv_"):
        model.taps.scale(0.5).__enter__()
    with model.taps.read("head.in") as seen:
        assert model(torch.rand(2, 3, 32, 32)).shape == (2, 5)
    assert seen["head.in"].shape == (2, 384)


# the cache


def test_two_backward_passes_in_evaluation_mode(model: Model, x: Tensor) -> None:
    grads = []
    for _ in range(2):
        model.zero_grad()
        model(x).square().sum().backward()
        grads.append({name: weight.grad for name, weight in model.named_parameters()})
    assert all(grad is not None and grad.any() for name, grad in grads[0].items() if "attention_biases" in name)
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("conv", [False, True])
def test_a_copy_after_a_call_is_independent(x: Tensor, conv: bool) -> None:
    name = "timm:levit_conv_128s" if conv else "timm:levit_128s"
    model = load(name, num_classes=5, image_size=64).double()
    before = model(x)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for weight in twin.parameters():
            weight.add_(0.1)
    assert torch.equal(model(x), before)
    assert not torch.allclose(twin(x), before)


def change_in_place(model: Model, biases: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in biases.items():
            model.get_parameter(name).copy_(value)


def change_by_state(model: Model, biases: dict[str, Tensor]) -> None:
    model.load_state_dict({**model.state_dict(), **biases})


@pytest.mark.parametrize("change", [change_in_place, change_by_state])
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_changed_biases_take_effect_without_a_mode_change(
    model: Model, x: Tensor, change: Callable[[Model, dict[str, Tensor]], None], context: Callable[[], torch.no_grad]
) -> None:
    with context():
        before = model(x)
    biases = {name: torch.randn_like(p) for name, p in model.named_parameters() if name.endswith("attention_biases")}
    change(model, biases)
    expected = copy.deepcopy(model).eval()(x)
    assert torch.equal(model(x), expected)
    assert not torch.allclose(expected, before)
    assert expected.requires_grad


def test_an_attack_during_training_leaves_no_cached_biases(model: Model, x: Tensor) -> None:
    """Attacks switch to evaluation mode and back without telling the modules."""
    attack, goal = PGD(steps=1, step_size=0.1), Untargeted(torch.tensor([0, 1]))
    model.train()
    attack(model, x, goal, Linf(0.1), seed=0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("attention_biases"):
                weight.mul_(-3)
    for module in model.modules():
        module.training = False
    assert torch.equal(model(x), copy.deepcopy(model).eval()(x))


def test_precision_can_change_after_a_call(model: Model, x: Tensor) -> None:
    double = model(x)
    single = model.float()(x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-3)
    with model.taps.read("*.logits") as seen:
        model(x.float())
    assert {logits.dtype for logits in seen.values()} == {torch.float32}


# sizes and files


def test_the_stem_determines_the_patch_size() -> None:
    message = r"makes patches of 16, got patch_size=4\. Leave it out, or choose a stem .*'stem_type': 's8'"
    with pytest.raises(UsageError, match=message):
        load("timm:levit_128s", image_size=32, patch_size=4)
    with pytest.raises(UsageError, match="4 x 4 tokens with patches of 16 does not tile 72 x 72"):
        load("timm:levit_128s", image_size=72)


def test_images_of_any_multiple_of_the_patch_size(tmp_path: Path) -> None:
    model = load("timm:levit_128s", num_classes=5, image_size=48)
    with model.taps.read("blocks.0.attn.probs") as seen:
        assert model(torch.rand(2, 3, 48, 48)).shape == (2, 5)
    assert seen["blocks.0.attn.probs"].shape == (2, 4, 9, 9)
    save(model, tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match="attention_biases"):  # position biases are not resampled
        load(tmp_path / "model.safetensors", image_size=64)


def test_indices_in_old_files_are_ignored(tmp_path: Path) -> None:
    model = load("timm:levit_128s", num_classes=5, image_size=32, seed=1)
    indices = {name: value for name, value in model.net.named_buffers() if name.endswith("attention_bias_idxs")}
    assert len(indices) == 11
    torch.save({**model.net.state_dict(), **indices}, tmp_path / "old.pth")
    again = load(f"timm:levit_128s@{tmp_path / 'old.pth'}", num_classes=5, image_size=32)
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(again(images), model(images))
