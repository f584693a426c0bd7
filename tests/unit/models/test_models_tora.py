"""TORA: the published sizes, the frozen network at the start, gates that sum to one, and which weights are trained.

Shape letters: A adapters, B images, H heads, N tokens.
"""

import copy
from pathlib import Path

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.models import Model, Option, add_adapters, load, save, save_adapters, tora, with_head
from vitadel.models.tora import AdaptedViT, AdapterConfig, GatedFusion, make_adapted_vit

WAYS = [
    AdapterConfig(),
    AdapterConfig(softmax="token"),
    AdapterConfig(softmax="joint"),
    AdapterConfig(gate="per-token"),
    AdapterConfig(tuning="single"),
    AdapterConfig(tuning="head"),
    AdapterConfig(normalization="sqrt"),
    AdapterConfig(normalization="rows"),
    AdapterConfig(normalization="learned"),
    AdapterConfig(gate="per-token", residual=False),
    AdapterConfig(added_to="adapters"),
    AdapterConfig(gate="per-token", added_to="adapters"),
    AdapterConfig(prediction="probabilities"),
]
# these change the function of the frozen network from the start
OTHER_STARTS = [
    AdapterConfig(initialization="layer-scale"),
    AdapterConfig(recursion="fusion"),
    AdapterConfig(recursion="fusion", softmax="token"),
    AdapterConfig(residual=False),
]


def backbone(**options: object) -> VisionTransformer:
    settings = {
        "img_size": 16,
        "patch_size": 4,
        "embed_dim": 32,
        "depth": 3,
        "num_heads": 4,
        "num_classes": 5,
        **options,
    }
    torch.manual_seed(0)
    net = timm.create_model("vit_tiny_patch16_224", **settings).eval()
    assert isinstance(net, VisionTransformer)
    for weight in net.parameters():  # timm initializes its head and its class token near zero
        nn.init.normal_(weight, std=0.2)
    return net.double()


@pytest.fixture
def x() -> Tensor:
    return torch.rand(3, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def noisy_weights(net: AdaptedViT) -> AdaptedViT:
    rng = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in net.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn(weight.shape, generator=rng, dtype=weight.dtype))
    return net.double().eval()


@pytest.mark.parametrize(
    ("tuning", "parameters", "published"),
    [
        (AdapterConfig(tuning="head"), 88_105_656, 88.1),
        (AdapterConfig(tuning="single"), 88_250_384, 88.3),
        (AdapterConfig(gate="per-token"), 111_194_424, 111.2),
        (AdapterConfig(), 111_194_424, 111.2),
    ],
)
def test_parameter_counts_are_as_published(tuning: AdapterConfig, parameters: int, published: float) -> None:
    net = AdaptedViT(timm.create_model("vit_base_patch16_224"), tuning, 1000)
    counted = sum(weight.numel() for weight in net.parameters())
    assert counted == parameters
    assert round(counted / 1e6, 1) == published


@pytest.mark.parametrize("tuning", WAYS)
@pytest.mark.parametrize(
    "options", [{}, {"pre_norm": True}, {"reg_tokens": 2}, {"no_embed_class": True}, {"fc_norm": True}], ids=str
)
def test_initially_every_head_gives_the_frozen_logits(
    x: Tensor, tuning: AdapterConfig, options: dict[str, object]
) -> None:
    net = backbone(**options)
    adapted = make_adapted_vit(net, tuning, 5).double().eval()
    logits_of = adapted.logits_by_head(x)
    assert set(logits_of) == {*tuning.names, "kept"}
    expected = net(x).detach()
    for logits in logits_of.values():
        torch.testing.assert_close(logits.detach(), expected, rtol=0, atol=1e-13 * float(expected.abs().max()))
    joint = expected.log_softmax(1) if tuning.prediction == "probabilities" else expected
    torch.testing.assert_close(adapted(x).detach(), joint, rtol=0, atol=1e-13 * float(expected.abs().max()))
    expected = net.float()(x.float()).detach()
    single = adapted.float().logits_by_head(x.float())[tuning.names[-1]].detach()
    torch.testing.assert_close(single, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_added_to_two_equal_adapters_it_is_a_single_adapter(x: Tensor) -> None:
    fresh = make_adapted_vit(backbone(), AdapterConfig(tuning="single"), 5)
    single = noisy_weights(copy.deepcopy(fresh))
    single.tokens.load_state_dict(fresh.tokens.state_dict())  # the class token, as in the stream of the pair
    pair = noisy_weights(make_adapted_vit(backbone(), AdapterConfig(added_to="adapters"), 5))
    weights = single.state_dict()
    for name, weight in pair.state_dict().items():
        if name.startswith("fusions"):
            weight.zero_()
        else:
            weight.copy_(weights[name.replace("rob", "acc")])
    logits = pair.logits_by_head(x)
    for head in ("acc", "rob"):
        torch.testing.assert_close(logits[head], single(x))
    assert not torch.allclose(single(x), backbone()(x))


def test_layer_scale_starts_near_the_frozen_network_and_is_trained(x: Tensor) -> None:
    net = backbone()
    adapted = make_adapted_vit(net, AdapterConfig(initialization="layer-scale"), 5).double()
    difference = (adapted(x) - net(x)).abs().max()
    assert 0 < difference < 1e-3 * net(x).abs().max()
    adapted(x).square().sum().backward()
    for name in ("layer_scale", "v.weight", "q.weight"):
        grad = adapted.fusions[0].get_parameter(name).grad
        assert grad is not None
        assert grad.abs().max() > 0


def test_with_the_formula_of_the_slides_heads_ignore_the_image(x: Tensor) -> None:
    """An adapter processes each token alone, so its own token never sees another one."""
    logits_of = noisy_weights(make_adapted_vit(backbone(), AdapterConfig(recursion="literal"), 5)).logits_by_head(x)
    for head in ("acc", "rob"):
        torch.testing.assert_close(logits_of[head], logits_of[head][:1].expand(3, -1), rtol=0, atol=0)
    assert (logits_of["kept"][0] - logits_of["kept"][1]).abs().max() > 1e-3


def test_with_recursion_through_the_fusion_the_last_fusion_is_read(x: Tensor) -> None:
    for recursion, read in (("block", False), ("fusion", True)):
        adapted = noisy_weights(make_adapted_vit(backbone(), AdapterConfig(recursion=recursion), 5))
        adapted(x).square().sum().backward()
        grad = adapted.fusions[-1].get_parameter("v.weight").grad
        assert (grad is not None and bool(grad.abs().max() > 0)) is read


def test_the_recursion_matches_its_sum(x: Tensor) -> None:
    """Tokens after the first block, from the parts it is made of."""
    z_BND, before_BND = torch.randn(2, 2, 17, 32, dtype=torch.float64)
    for recursion in ("block", "fusion", "literal"):
        adapted = noisy_weights(make_adapted_vit(backbone(), AdapterConfig(recursion=recursion), 5))
        tokens = {name: token.expand(2, -1, -1) for name, token in adapted.tokens.items()}
        stream, next_tokens = adapted.fused[0](before_BND, z_BND, tokens)
        fused_B1D = (stream - z_BND)[:, :1]
        for name, token in tokens.items():
            adapter = adapted.get_submodule(f"adapters.{name}.0")
            expected = {
                "block": lambda: adapter(token + z_BND[:, :1] - before_BND[:, :1]),  # noqa: B023
                "fusion": lambda: adapter(token) + fused_B1D,  # noqa: B023
                "literal": lambda: adapter(token),  # noqa: B023
            }[recursion]()
            torch.testing.assert_close(next_tokens[name], expected)


@pytest.mark.parametrize("tuning", ["tora", "single", "head"])
def test_heads_of_a_distilled_network_start_as_the_mean_of_its_heads(x: Tensor, tuning: str) -> None:
    net = timm.create_model(
        "deit_tiny_distilled_patch16_224", img_size=16, patch_size=4, num_classes=5, depth=2
    ).double()
    adapted = make_adapted_vit(net, AdapterConfig(tuning=tuning), 5).double().eval()
    for logits in adapted.logits_by_head(x).values():
        torch.testing.assert_close(logits, net.eval()(x), rtol=1e-9, atol=1e-9)


def test_heads_for_other_classes_are_new_and_the_kept_head_stays(x: Tensor) -> None:
    adapted = make_adapted_vit(backbone(), AdapterConfig(), 7).double().eval()
    logits = adapted.logits_by_head(x)
    assert {name: one.shape[1] for name, one in logits.items()} == {
        "acc": 7,
        "rob": 7,
        "kept": 5,
    }


def test_logits_of_a_frozen_model_have_no_gradient(x: Tensor) -> None:
    adapted = make_adapted_vit(backbone(), AdapterConfig(), 5).double()
    assert adapted(x).requires_grad
    assert not adapted.requires_grad_(False)(x).requires_grad
    assert adapted(x.clone().requires_grad_()).requires_grad


@pytest.mark.parametrize("tuning", WAYS[:4])
def test_gates_sum_to_one(x: Tensor, tuning: AdapterConfig) -> None:
    adapted = noisy_weights(make_adapted_vit(backbone(), tuning, 5))
    seen: list[Tensor] = []
    for fusion in adapted.fusions:
        fusion.get_submodule("gates").register_forward_hook(lambda module, args, out: seen.append(out))
    adapted(x)
    assert len(seen) == 3
    for gates in seen:
        assert gates.shape == ((2, 3, 4, 17) if tuning.gate == "per-token" else (2, 3, 4, 17, 17))
        over = {"adapter": (0,), "token": (-1,), "joint": (0, -1)}[tuning.softmax]
        torch.testing.assert_close(gates.sum(over), torch.ones_like(gates.sum(over)))
        assert gates.std() > 1e-3


def by_hand(fusion: GatedFusion, z_ND: Tensor, result: tuple[Tensor, Tensor], normalization: str) -> Tensor:
    """One head, one query and one key after the other."""
    rows = []
    for q_D in fusion.q(z_ND):
        heads = []
        for head, part in enumerate(torch.arange(32).split(8)):
            sums = torch.zeros(2, 8, dtype=torch.float64)
            of_each = torch.zeros(2, 1, dtype=torch.float64)
            for j in range(len(z_ND)):
                scores = torch.stack([q_D[part] @ fusion.k(one)[j, part] / 8**0.5 for one in result])
                weights = scores.softmax(0)[:, None]
                sums = sums + weights * torch.stack([fusion.v(one)[j, part] for one in result])
                of_each = of_each + weights
            n = len(z_ND)
            if normalization == "rows":
                heads.append((sums / of_each).mean(0))
            elif normalization == "learned":
                assert fusion.factor is not None
                heads.append(fusion.factor[head, 0, 0] * sums.sum(0) / n)
            else:
                heads.append(sums.sum(0) / (n if normalization == "mean" else n**0.5))
        rows.append(torch.cat(heads))
    return torch.stack(rows)


@pytest.mark.parametrize("normalization", ["mean", "sqrt", "rows", "learned"])
def test_fusion_matches_the_formula(normalization: str) -> None:
    torch.manual_seed(0)
    fusion = GatedFusion(32, 4, AdapterConfig(normalization=normalization)).double()
    nn.init.normal_(fusion.v.weight)
    if fusion.factor is not None:
        nn.init.normal_(fusion.factor)
    z_ND, a_ND, r_ND = torch.randn(3, 5, 32, dtype=torch.float64)
    out = fusion(z_ND[None], torch.stack([a_ND, r_ND])[:, None])
    torch.testing.assert_close(out[0], by_hand(fusion, z_ND, (a_ND, r_ND), normalization))


def test_equal_adapters_give_gates_of_one_half_and_a_mean_fusion() -> None:
    torch.manual_seed(0)
    fusion = GatedFusion(32, 4, AdapterConfig()).double()
    nn.init.normal_(fusion.v.weight)
    z_BND, a_BND = torch.randn(2, 3, 5, 32, dtype=torch.float64)
    out = fusion(z_BND, torch.stack([a_BND, a_BND]))
    torch.testing.assert_close(out, fusion.v(a_BND).mean(1, keepdim=True).expand_as(out))


def test_joint_probabilities_are_the_mean_of_both_heads(x: Tensor) -> None:
    adapted = noisy_weights(make_adapted_vit(backbone(), AdapterConfig(), 5))
    logits_of = adapted.logits_by_head(x)
    assert not torch.allclose(logits_of["acc"], logits_of["rob"])
    torch.testing.assert_close(adapted(x), (logits_of["acc"] + logits_of["rob"]) / 2)
    adapted.tuning = AdapterConfig(prediction="probabilities")
    mean = (logits_of["acc"].softmax(1) + logits_of["rob"].softmax(1)) / 2
    torch.testing.assert_close(adapted(x), mean.log())
    for name in ("acc", "rob", "kept"):
        adapted.tuning = AdapterConfig(head=name)
        assert torch.equal(adapted(x), logits_of[name])


@pytest.mark.parametrize("tuning", [*WAYS, *OTHER_STARTS])
def test_frozen_parts_are_frozen(x: Tensor, tuning: AdapterConfig) -> None:
    net = backbone()
    before = copy.deepcopy(net.state_dict())
    adapted = noisy_weights(make_adapted_vit(net, tuning, 5)).train()
    assert not adapted.backbone.training
    optimizer = torch.optim.AdamW(adapted.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(2):
        adapted(x).square().sum().backward()
        optimizer.step()
    for state in (net.state_dict(), adapted.backbone.state_dict()):
        assert all(torch.equal(value, before[key]) for key, value in state.items())


def test_parts_name_every_trained_weight_once() -> None:
    adapted = make_adapted_vit(backbone(), AdapterConfig(), 5)
    parts = [{id(one) for one in adapted.parts(name)} for name in ("acc", "rob", "fusion")]
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert set().union(*parts) == {id(one) for one in adapted.parameters() if one.requires_grad}


def test_the_image_affects_both_heads_in_every_setting(x: Tensor) -> None:
    for tuning in [*WAYS, *OTHER_STARTS]:
        logits_of = noisy_weights(make_adapted_vit(backbone(), tuning, 5)).logits_by_head(x)
        assert all((logits[0] - logits[1]).abs().max() > 1e-3 for logits in logits_of.values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"class_token": False, "global_pool": "avg"}, "has none or does not read it"),
        ({"global_pool": "avg"}, r"global_pool='avg'\). Choose a ViT with a class token"),
    ],
)
def test_networks_without_class_token_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_adapted_vit(backbone(**options), AdapterConfig(), 5)


def test_other_families_are_refused() -> None:
    with pytest.raises(UsageError, match="adapters are for timm's ViT and DeiT, got ResNet"):
        make_adapted_vit(timm.create_model("resnet18"), AdapterConfig(), 5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tuning": "lora"}, "AdapterConfig.tuning"),
        ({"softmax": "all"}, "AdapterConfig.softmax"),
        ({"reduction": 0}, "at least 1"),
        ({"gate": "per-token", "softmax": "token"}, "weights adapters only"),
        ({"normalization": "max"}, "AdapterConfig.normalization"),
        ({"normalization": "rows", "softmax": "token"}, "the rows of the others sum to one"),
        ({"normalization": "sqrt", "gate": "per-token"}, "the rows of the others sum to one"),
        ({"recursion": "class"}, "AdapterConfig.recursion"),
        ({"initialization": "random"}, "AdapterConfig.initialization"),
        ({"initialization": "layer-scale", "residual": False}, "cannot start at zero"),
        ({"residual": "no"}, "true or false, got 'no'"),
        ({"residual": False, "added_to": "adapters"}, "not added to anything"),
        ({"added_to": "tokens"}, "AdapterConfig.added_to"),
        ({"prediction": "votes"}, "AdapterConfig.prediction"),
        ({"head": "best"}, "unknown head 'best'"),
        ({"tuning": "single", "head": "rob"}, "unknown head 'rob'"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        AdapterConfig(**settings)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="leaves no channels of 32"):
        make_adapted_vit(backbone(), AdapterConfig(reduction=64), 5)


@pytest.fixture
def base() -> Model:
    options: dict[str, Option] = {"embed_dim": 32, "depth": 3, "num_heads": 4}
    return load("timm:vit_tiny_patch16_224", num_classes=5, image_size=16, patch_size=4, options=options, seed=1)


@pytest.mark.parametrize("tuning", [*WAYS, *OTHER_STARTS])
def test_saving_and_loading_keeps_the_logits(base: Model, tuning: AdapterConfig, x: Tensor, tmp_path: Path) -> None:
    model = tora(base, tuning, num_classes=7, seed=3)
    noisy_weights(model.net.double())  # type: ignore[arg-type]
    save(model.float(), tmp_path / "whole.safetensors")
    loaded = load(tmp_path / "whole.safetensors")
    assert loaded.spec == model.spec
    assert loaded.spec is not None
    assert (loaded.spec.num_classes, loaded.spec.kept_classes) == (7, 5)
    assert torch.equal(loaded(x.float()), model.eval()(x.float()))
    assert sum(one.requires_grad for one in loaded.parameters()) == sum(one.requires_grad for one in model.parameters())


def test_adapters_alone_are_a_small_file_for_one_network(base: Model, x: Tensor, tmp_path: Path) -> None:
    model = tora(base, AdapterConfig(), seed=3)
    noisy_weights(model.net.double())  # type: ignore[arg-type]
    model.float().eval()
    save(base, tmp_path / "base.safetensors")
    save_adapters(model, tmp_path / "added.safetensors")
    added = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    assert (tmp_path / "added.safetensors").stat().st_size < 4 * added + 20_000
    text = f"{tmp_path}/base.safetensors+{tmp_path}/added.safetensors"
    assert torch.equal(load(text)(x.float()), model(x.float()))
    assert torch.equal(load(f"{text}#rob")(x.float()), with_head(model, "rob")(x.float()))
    with pytest.raises(UsageError, match="fit one network as it is. Leave its classes and sizes out"):
        load(text, num_classes=9)
    with pytest.raises(UsageError, match="holds adapters without their network. Write MODEL"):
        load(tmp_path / "added.safetensors")
    with pytest.raises(UsageError, match="were trained on another network"):
        add_adapters(tora_base(seed=2), tmp_path / "added.safetensors")
    with pytest.raises(UsageError, match="holds no adapters"):
        add_adapters(base, tmp_path / "base.safetensors")


def tora_base(seed: int) -> Model:
    options: dict[str, Option] = {"embed_dim": 32, "depth": 3, "num_heads": 4}
    return load("timm:vit_tiny_patch16_224", num_classes=5, image_size=16, patch_size=4, options=options, seed=seed)


def test_a_head_normalizes_where_the_weights_are(base: Model, x: Tensor) -> None:
    model = tora(base).double()  # as moving it to a device does, this replaces the mean and standard deviation
    head = with_head(model, "rob")
    assert (head.mean.dtype, head.std.dtype) == (torch.float64, torch.float64)
    assert head(x.double()).dtype == torch.float64


def test_heads_share_weights_and_have_their_own_specs(base: Model, x: Tensor) -> None:
    model = tora(base)
    views = {head: with_head(model, head) for head in ("acc", "rob", "kept", "joint")}
    assert len({view.spec.tuning.head for view in views.values() if view.spec and view.spec.tuning}) == 4
    with torch.no_grad():
        model.net.get_parameter("heads.acc.bias").add_(1.0)
    assert torch.equal(views["acc"](x.float()), views["rob"](x.float()) + 1)
    assert torch.allclose(views["joint"](x.float()), views["rob"](x.float()) + 0.5)
    with pytest.raises(UsageError, match="unknown head 'best'"):
        with_head(model, "best")
    with pytest.raises(UsageError, match="has no adapters. Make them with vitadel.models.tora"):
        with_head(base, "acc")
    with pytest.raises(UsageError, match="that has none yet"):
        tora(model)


def test_taps_reach_the_frozen_blocks(base: Model, x: Tensor) -> None:
    model = tora(base)
    with model.taps.read("*") as seen:
        model(x.float())
    assert sorted(seen) == sorted(model.taps.names())
    assert len(model.taps.attentions()) == 3
    with model.taps.scale(0.1):
        assert not torch.allclose(model(x.float()), base(x.float()))
    torch.testing.assert_close(model(x.float()), base(x.float()))


def test_loaded_for_other_classes_the_kept_head_stays(base: Model, tmp_path: Path) -> None:
    save(tora(base), tmp_path / "m.safetensors")
    other = load(tmp_path / "m.safetensors", num_classes=9)
    shapes = {name: other.net.get_parameter(f"{name}.weight").shape[0] for name in ("heads.acc", "backbone.head")}
    assert shapes == {"heads.acc": 9, "backbone.head": 5}


def test_loaded_at_another_size_positions_are_resampled(base: Model, tmp_path: Path) -> None:
    save(tora(base), tmp_path / "m.safetensors")
    larger = load(tmp_path / "m.safetensors", image_size=32)
    assert larger(torch.rand(1, 3, 32, 32)).shape == (1, 5)
