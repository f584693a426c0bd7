"""Saliency maps: known values, every family, and no side effects.

Shape letters: B images, H heads, N tokens, P patches, h x w cells.
"""

import base64
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import study_models  # type: ignore[import-not-found]
import torch
from study_models import hooks, studied_in
from torch import Tensor, nn

from vitadel.analyze import Saliency, study
from vitadel.analyze.eigencam import eigencam
from vitadel.analyze.saliency import center_share, evenness, map_correlation, with_matching_sign
from vitadel.analyze.saliency_maps import Method, SaliencyMaps, rollout
from vitadel.core.errors import UsageError
from vitadel.models import Model, Option, load, tora, wrap
from vitadel.models.wide_resnet import WideResNet
from vitadel.runs import ResultFolder
from vitadel.threats import Linf

EIGEN, ATTENTION, ROLLOUT = Method.EIGENCAM, Method.ATTENTION, Method.ROLLOUT
OFFERS = {
    "vit": ("blocks.2.norm1", 4, [EIGEN, ATTENTION, ROLLOUT]),
    "distilled": ("blocks.1.norm1", 4, [EIGEN, ATTENTION, ROLLOUT]),
    "cait": ("blocks.1.out", 4, [EIGEN, ATTENTION, ROLLOUT]),
    "xcit": ("blocks.1.out", 4, [EIGEN, ATTENTION]),
    "swin": ("blocks.9.out", 2, [EIGEN]),
    "levit": ("blocks.5.out", 2, [EIGEN]),
    "resnet": ("layer3", 2, [EIGEN]),
    "wrn": ("bn", 8, [EIGEN]),
}


def bare(net: nn.Module) -> Model:
    return wrap(net, mean=(0.0,) * 3, std=(1.0,) * 3)


def tiny(family: str) -> Model:
    if family == "wrn":
        torch.manual_seed(1)
        return bare(WideResNet(10, 1, 5))
    if family == "resnet":
        return load("timm:test_resnet", num_classes=5, image_size=32, seed=1)
    return study_models.tiny(family, seed=1)


@pytest.fixture
def x() -> Tensor:
    return torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(3))


def studied(
    model: nn.Module, x: Tensor, settings: Saliency | None = None, batch_size: int | None = None
) -> dict[str, Any]:
    return study(model, x, torch.arange(len(x)), settings or Saliency(steps=2), batch_size=batch_size)


def overlay(result: dict[str, Any], row: int, column: int) -> np.ndarray:
    image = result["exhibits"][0]["cells"][row][column]["overlay"]
    return np.frombuffer(base64.b64decode(image["base64"]), dtype=image["dtype"]).reshape(image["shape"])


@pytest.mark.parametrize("family", OFFERS)
def test_every_family_has_its_methods(family: str, x: Tensor) -> None:
    model = tiny(family).train()
    before, layer_cells_methods = copy.deepcopy(model.state_dict()), OFFERS[family]
    hooks_before = hooks(model)
    layer, cells, methods = layer_cells_methods
    result = studied(model, x)
    assert result["layer"] == layer
    assert list(result["maps"]) == [method.value for method in methods]
    assert set(result["missing"]) == {method.value for method in Method} - set(result["maps"])
    assert overlay(result, 0, 2).shape == (cells, cells)
    shown = result["exhibits"][0]
    assert len(shown["cells"]) == 4
    assert len(shown["columns"]) == 2 + 2 * len(methods)
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert hooks(model) == hooks_before


def test_attention_of_a_vit_is_the_row_of_the_class_token(x: Tensor) -> None:
    model = tiny("vit").double()
    with torch.no_grad(), model.taps.read("blocks.*.attn.probs") as seen:
        model(x)
    maps_of = SaliencyMaps.of(model, (EIGEN, ATTENTION, ROLLOUT), None, False, x)
    maps, z_BK = maps_of(x, 0)
    known = torch.stack([seen["blocks.2.attn.probs"][:, head, 0, 1:] for head in range(3)]).mean(0)
    torch.testing.assert_close(maps[ATTENTION].flatten(1).double(), known, atol=1e-6, rtol=0)
    product = torch.eye(17, dtype=torch.float64).expand(4, -1, -1)
    for block in range(3):
        mixed = (seen[f"blocks.{block}.attn.probs"].mean(1) + torch.eye(17)) / 2
        product = mixed @ product
    torch.testing.assert_close(maps[ROLLOUT].flatten(1).double(), product[:, 0, 1:], atol=1e-6, rtol=0)
    torch.testing.assert_close(z_BK, model(x).float())


def test_rollout_through_class_blocks_is_the_product_of_whole_matrices() -> None:
    rng = torch.Generator().manual_seed(0)
    patches, count = 6, 2
    a_BPP = torch.rand(count, patches, patches, generator=rng, dtype=torch.float64).softmax(2)
    b_B1N = torch.rand(count, 1, patches + 1, generator=rng, dtype=torch.float64).softmax(2)
    c_B1N = torch.rand(count, 1, patches + 1, generator=rng, dtype=torch.float64).softmax(2)
    product = torch.eye(patches + 1, dtype=torch.float64).expand(count, -1, -1)
    first = torch.eye(patches + 1, dtype=torch.float64).repeat(count, 1, 1)
    first[:, 1:, 1:] = (a_BPP + torch.eye(patches)) / 2
    product = first @ product
    for one in (b_B1N, c_B1N):
        later = torch.eye(patches + 1, dtype=torch.float64).repeat(count, 1, 1)
        later[:, :1] = (later[:, :1] + one) / 2
        product = later @ product
    torch.testing.assert_close(rollout([a_BPP, b_B1N, c_B1N]), product[:, 0])
    assert rollout([a_BPP, b_B1N, c_B1N]).sum(1).tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize("family", ["cait", "xcit"])
def test_class_blocks_attend_to_patches(family: str, x: Tensor) -> None:
    model = tiny(family)
    with torch.no_grad(), model.taps.read("class_blocks.1.attn.probs") as seen:
        model(x)
    maps, _ = SaliencyMaps.of(model, (ATTENTION,), None, False, x)(x, 0)
    known = seen["class_blocks.1.attn.probs"].mean(1)[:, 0, 1:]
    torch.testing.assert_close(maps[ATTENTION].flatten(1), known, atol=1e-6, rtol=0)


def test_eigencam_keeps_the_order_of_patches(x: Tensor) -> None:
    for family, prefix, depth in (("vit", 1, 3), ("distilled", 2, 2)):
        model = tiny(family)
        last = model.net.get_submodule(f"blocks.{depth - 1}.norm1")
        with torch.no_grad(), model.taps.read(f"blocks.{depth - 2}.out") as seen:
            model(x)
            entering = last(seen[f"blocks.{depth - 2}.out"])  # what the last attention sees of the block before
        maps, _ = SaliencyMaps.of(model, (EIGEN,), None, True, x)(x, 0)
        known = eigencam(entering[:, prefix:], center=True).view(4, 4, 4)
        torch.testing.assert_close(maps[EIGEN], known, atol=1e-4, rtol=1e-3)
        raw, _ = SaliencyMaps.of(model, (EIGEN,), f"blocks.{depth - 2}.out", False, x)(x, 0)
        known = eigencam(seen[f"blocks.{depth - 2}.out"][:, prefix:]).view(4, 4, 4)
        torch.testing.assert_close(raw[EIGEN], known, atol=1e-4, rtol=1e-3)


def test_eigencam_of_a_convolutional_network_uses_the_pooled_features(x: Tensor) -> None:
    model = tiny("wrn").eval()
    net = model.net
    assert isinstance(net, WideResNet)
    with torch.no_grad():
        features = torch.relu(net.bn(net.groups(net.stem(x))))
    maps, _ = SaliencyMaps.of(model, (EIGEN,), None, False, x)(x, 0)
    known = eigencam(features.flatten(2).mT).view(4, 8, 8)
    torch.testing.assert_close(maps[EIGEN], known, atol=1e-4, rtol=1e-4)
    chosen = SaliencyMaps.of(model, (EIGEN,), "groups.0", False, x)
    assert chosen(x, 0)[0][EIGEN].shape == (4, 32, 32)


def test_a_network_without_class_token_uses_its_last_patches(x: Tensor) -> None:
    options: dict[str, Option] = {"depth": 2, "embed_dim": 48, "global_pool": "avg", "class_token": False}
    model = load("timm:vit_tiny_patch16_224", num_classes=5, image_size=32, patch_size=8, options=options)
    result = studied(model, x)
    assert result["layer"] == "blocks.1.out"
    assert "reads no class token (global_pool='avg')" in result["missing"]["attention"]
    with pytest.raises(UsageError, match=r"no rollout here: .* Choose from eigencam"):
        studied(model, x, Saliency(methods=(ROLLOUT,)))


class ChannelsLast(nn.Module):
    """A feature map of 4 x 4 cells and 6 channels, which are last after the normalization, as in Swin V2."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, 6, 8, 8), nn.LayerNorm(6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.stem(x).permute(0, 2, 3, 1)).mean((1, 2)))


class SomeAttention(nn.Module):
    """Two heads of 16 features for 16 tokens: inside, all looks like a map of 16 x 16 cells."""

    def __init__(self) -> None:
        super().__init__()
        self.k_norm = nn.LayerNorm(16)

    def forward(self, tokens_BNC: Tensor) -> Tensor:
        return self.k_norm(tokens_BNC.unflatten(2, (2, 16)).transpose(1, 2)).transpose(1, 2).flatten(2)


class Tokens(nn.Module):
    """An unknown family: after the embedding there are only tokens, the class token first."""

    num_prefix_tokens = 1

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.attn, self.head = nn.Conv2d(3, 32, 8, 8), SomeAttention(), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens_BNC = self.attn(self.stem(x).flatten(2).mT)
        return self.head(torch.cat([tokens_BNC[:, :1], tokens_BNC], 1))[:, 0]


def test_channels_may_be_last(x: Tensor) -> None:
    net = ChannelsLast()
    maps_of = SaliencyMaps.of(bare(net), (EIGEN,), None, False, x)
    assert maps_of.layer == "norm"
    with torch.no_grad():
        features = net.norm(net.stem(x).permute(0, 2, 3, 1))
    torch.testing.assert_close(maps_of(x, 0)[0][EIGEN], eigencam(features.flatten(1, 2)).view(4, 4, 4))


def test_tokens_of_an_unknown_family_need_a_layer_name(x: Tensor) -> None:
    model = bare(Tokens())
    with pytest.raises(UsageError, match=r"Tokens goes on with tokens after its last feature map.* layer=stem is that"):
        SaliencyMaps.of(model, (EIGEN,), None, False, x)
    maps, _ = SaliencyMaps.of(model, (EIGEN,), "head", False, x)(x, 0)
    assert maps[EIGEN].shape == (4, 4, 4)
    with pytest.raises(
        UsageError, match=r"attn\.k_norm gives \[4, 2, 16, 16\] for 4 images, which is not a map of each"
    ):
        SaliencyMaps.of(model, (EIGEN,), "attn.k_norm", False, x)(x, 0)


def test_windows_of_swin_are_not_images(x: Tensor) -> None:
    with pytest.raises(
        UsageError, match=r"gives \[16, 16, 24\] for 4 images, which is not a map of each. Name another"
    ):
        SaliencyMaps.of(tiny("swin"), (EIGEN,), "layers.0.blocks.0.attn", False, x)(x, 0)


def test_a_layer_and_an_earlier_attention_are_separate(x: Tensor) -> None:
    model = tiny("vit")
    with pytest.raises(UsageError, match=r"blocks\.0\.attn\.probs is inside an attention.* blocks\.0\.attn\.out"):
        studied(model, x, Saliency(steps=1, layer="blocks.0.attn.probs"))
    result = studied(model, x, Saliency(steps=1, layer="blocks.0.attn.out"))
    assert list(result["maps"]) == ["eigencam", "attention", "rollout"]


def test_adapters_do_not_hide_the_backbone(x: Tensor) -> None:
    result = studied(tora(tiny("vit")), x)
    assert result["layer"] == "backbone.blocks.2.norm1"
    assert list(result["maps"]) == ["eigencam", "attention", "rollout"]


def test_statistics_of_maps() -> None:
    flat, corner = torch.ones(1, 8, 8), torch.zeros(1, 8, 8)
    corner[0, 0, 0] = 5
    assert float(evenness(flat)) == 1
    assert float(evenness(corner)) == pytest.approx(1 / 64)
    assert float(evenness(torch.tensor([[[1.0, -7.0], [1.0, -1.0]]]))) == 0.5  # only what is positive counts
    assert float(center_share(flat)) == pytest.approx(0.25)
    assert float(center_share(torch.ones(1, 7, 7))) == pytest.approx(0.25)  # cells on the edge count in part
    assert float(center_share(corner)) == 0
    middle = torch.zeros(1, 8, 6)
    middle[0, 3, 2] = 1
    assert float(center_share(middle)) == 1
    ramp = torch.arange(16.0).view(1, 4, 4)
    assert float(map_correlation(ramp, 3 * ramp + 1)) == pytest.approx(1)
    assert float(map_correlation(ramp, -ramp)) == pytest.approx(-1)
    assert bool(map_correlation(ramp, torch.ones(1, 4, 4)).isnan())


def test_maps_under_attack_have_the_sign_of_the_clean_maps() -> None:
    rng = torch.Generator().manual_seed(0)
    clean = torch.randn(6, 4, 4, generator=rng)
    flips = torch.tensor([1.0, -1, -1, 1, -1, 1]).view(-1, 1, 1)
    torch.testing.assert_close(with_matching_sign(clean, flips * (2 * clean + 1)), 2 * clean + 1)
    assert torch.equal(with_matching_sign(clean.abs(), torch.ones(6, 4, 4)), torch.ones(6, 4, 4))


def test_a_nonnegative_map_never_changes_sign() -> None:
    clean, attacked = (eigencam(torch.tensor([cells])[..., None]) for cells in ([1.0, 1, 1, 3], [3.0, 1, 1, 1]))
    clean, attacked = clean.view(1, 2, 2), attacked.view(1, 2, 2)
    assert torch.equal(with_matching_sign(clean, attacked), attacked)
    assert float(map_correlation(clean, with_matching_sign(clean, attacked))) == pytest.approx(-1 / 3)
    assert torch.equal(with_matching_sign(clean, -attacked), attacked)


def test_centered_maps_under_a_small_attack_keep_their_sign(x: Tensor) -> None:
    model = tiny("vit").double()
    settings = Saliency(methods=(EIGEN,), steps=1, center=True)
    images = x.repeat(4, 1, 1, 1) * torch.linspace(0.5, 1, 16).view(-1, 1, 1, 1)
    result: dict[str, Any] = study(model, images, torch.arange(16) % 5, settings, threat=Linf(1e-5))
    assert result["maps"]["eigencam"]["alike"]["mean"] > 0.99


def test_statistics_and_exhibits_match_the_maps(x: Tensor) -> None:
    model = tiny("vit").double()
    settings = Saliency(methods=(EIGEN,), steps=1, images=2)
    result = studied(model, x, settings)
    maps_of = SaliencyMaps.of(model, (EIGEN,), None, False, x)
    maps, z_BK = maps_of(x, 0)
    known = evenness(maps[EIGEN])
    assert result["maps"]["eigencam"]["spread clean"]["mean"] == pytest.approx(float(known.mean()), rel=1e-5)
    drawn = maps[EIGEN][1].clamp_min(0) / maps[EIGEN][1].max()
    np.testing.assert_allclose(overlay(result, 1, 2), drawn, atol=1e-5)
    assert len(result["exhibits"][0]["cells"]) == 2
    assert result["exhibits"][0]["cells"][1][0]["note"] == f"predicted {int(z_BK[1].argmax())}"
    assert result["n"] == 4


def test_results_do_not_depend_on_batches_or_interruptions(x: Tensor, tmp_path: Path) -> None:
    model = tiny("vit").double()
    whole, single = studied(model, x, Saliency(steps=2)), studied(model, x, Saliency(steps=2), batch_size=1)
    for method, result in whole["maps"].items():
        for key, value in result.items():
            assert single["maps"][method][key]["mean"] == pytest.approx(value["mean"], abs=1e-6)

    many = x.repeat(5, 1, 1, 1)
    settings, y = Saliency(steps=1, methods=(EIGEN,)), torch.arange(20) % 5
    with pytest.raises(KeyboardInterrupt):
        studied_in(tmp_path, model, many, y, settings, stop_after=0.5, batch_size=4)
    assert 0 < len(ResultFolder(tmp_path).read("maps")["index"]) < 20
    resumed = studied_in(tmp_path, model, many, y, settings, batch_size=4)
    straight = study(model, many, y, settings, batch_size=4)
    assert {**resumed, "seconds": 0} == {**straight, "seconds": 0}


def test_invalid_settings_are_refused(x: Tensor) -> None:
    for family, method, message in (
        (
            "resnet",
            ATTENTION,
            r"no attention here: ResNet has no attention that Vitadel supports\. Choose from eig",
        ),
        ("swin", ATTENTION, "SwinTransformer has no class token"),
        ("xcit", ROLLOUT, "its blocks relate channels, not patches. Choose from eigencam, attention"),
    ):
        with pytest.raises(UsageError, match=message):
            studied(tiny(family), x, Saliency(methods=(method,)))
    with pytest.raises(UsageError, match=r"unknown layer 'block\.1\.out'. Did you mean 'blocks\.1\.out'"):
        studied(tiny("vit"), x, Saliency(layer="block.1.out"))
    with pytest.raises(UsageError, match=r"the layer head\.in gives \[1, 48\]|which is not a map of the image"):
        studied(tiny("vit"), x[:1], Saliency(layer="head.in", steps=1))
    with pytest.raises(UsageError, match="no feature map of more than one cell"):
        studied(bare(nn.Sequential(nn.Flatten(), nn.Linear(3072, 5))), x)
    with pytest.raises(UsageError, match="names one twice"):
        Saliency(methods=(EIGEN, EIGEN))
    with pytest.raises(UsageError, match=r"Saliency\.steps must be at least 1"):
        Saliency(steps=0)
