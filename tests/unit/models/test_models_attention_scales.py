"""Stored scale factors of attention: used in every forward pass, kept in every copy and file."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitadel import models
from vitadel.attacks.attention_scaling.rescaled_model import RescaledModel
from vitadel.attacks.engine.precision import search_model
from vitadel.core.errors import UsageError
from vitadel.models import Model, Option, attention_scales, set_attention_scales, weights_sha256

FACTORS = (0.05, 3.0)


def fresh() -> Model:
    options: dict[str, Option] = {"depth": 2, "embed_dim": 32, "num_heads": 2, "global_pool": "avg"}
    model = models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=options)
    with torch.no_grad():  # or every score is nearly zero, and factors change nearly nothing
        for name, weight in model.named_parameters():
            if "qkv" in name:
                weight.mul_(20)
    return model


def scaled() -> Model:
    model = fresh()
    set_attention_scales(model, FACTORS)
    return model


@pytest.fixture
def x() -> Tensor:
    return torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_logits_match_scaling_by_taps(x: Tensor) -> None:
    plain, model = fresh(), scaled()
    with plain.taps.scale(FACTORS):
        by_hand = plain(x)
    assert torch.equal(model(x), by_hand)
    assert not torch.allclose(model(x), plain(x), atol=1e-3)
    assert model.attention_scales is not None
    assert plain.attention_scales is None


@torch.no_grad()
def test_scale_factors_of_an_attack_multiply(x: Tensor) -> None:
    plain, model = fresh(), scaled()
    with plain.taps.scale([factor * more for factor, more in zip(FACTORS, (0.5, 0.25), strict=True)]):
        product = plain(x)
    torch.testing.assert_close(RescaledModel(model, [0.5, 0.25])(x), product)
    with model.taps.read("blocks.1.attn.logits") as seen:
        model(x)
    with plain.taps.scale(FACTORS), plain.taps.read("blocks.1.attn.logits") as by_hand:
        plain(x)
    torch.testing.assert_close(seen["blocks.1.attn.logits"], by_hand["blocks.1.attn.logits"])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_factors_can_be_changed_together_and_alone(x: Tensor) -> None:
    model = scaled()
    set_attention_scales(model, 1.0)
    with torch.no_grad():
        assert torch.equal(model(x), fresh()(x))
    assert model.attention_scales is not None
    assert model.attention_scales.tolist() == [1.0, 1.0]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["file", "copy", "foreign"])
def test_files_and_copies_have_the_factors(x: Tensor, tmp_path: Path, kind: str) -> None:
    model = scaled()
    ways: dict[str, Callable[[], Model]] = {
        "file": lambda: _through_file(model, tmp_path / "model.safetensors"),
        "copy": lambda: copy.deepcopy(model),
        "foreign": lambda: _through_pickle(model, tmp_path / "model.pth"),
    }
    back = ways[kind]()
    assert torch.equal(back(x), model(x))
    assert weights_sha256(back.net.state_dict()) == weights_sha256(model.net.state_dict())
    assert weights_sha256(fresh().net.state_dict()) != weights_sha256(model.net.state_dict())


def _through_file(model: Model, path: Path) -> Model:
    models.save(model, path)
    return models.load(path)


def _through_pickle(model: Model, path: Path) -> Model:
    """As a distributed run of other code would have saved it."""
    torch.save({"state_dict": {f"module.{key}": value for key, value in model.net.state_dict().items()}}, path)
    assert model.spec is not None
    return models.load(
        f"timm:test_vit@{path}", num_classes=10, image_size=8, patch_size=2, options=dict(model.spec.options)
    )


@torch.no_grad()
@pytest.mark.parametrize("way", ["file", "copy", "foreign"])
def test_a_factor_of_the_logits_goes_with_them(x: Tensor, tmp_path: Path, way: str) -> None:
    plain, model = scaled(), fresh()
    set_attention_scales(model, FACTORS, logits=0.5)
    assert "logits_scale" in model.net.state_dict()
    assert "logits_scale" not in plain.net.state_dict()
    torch.testing.assert_close(model(x), 0.5 * plain(x))
    backs: dict[str, Callable[[], Model]] = {
        "file": lambda: _through_file(model, tmp_path / "model.safetensors"),
        "copy": lambda: copy.deepcopy(model),
        "foreign": lambda: _through_pickle(model, tmp_path / "model.pth"),
    }
    back = backs[way]()
    assert torch.equal(back(x), model(x))
    assert weights_sha256(back.net.state_dict()) == weights_sha256(model.net.state_dict())


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf"), [0.5, 0.5]])
def test_a_file_with_an_impossible_factor_of_the_logits_is_refused(tmp_path: Path, factor: object) -> None:
    name = attention_scales.LOGITS[attention_scales.ATTENTION]
    state = {**scaled().net.state_dict(), name: torch.tensor(factor)}
    models.save(fresh(), tmp_path / "model.safetensors", tensors=state)
    with pytest.raises(UsageError, match="the factor of the logits must be a positive number, got"):
        models.load(tmp_path / "model.safetensors")


def test_training_state_is_in_no_file(tmp_path: Path) -> None:
    model = fresh()
    attention_scales.set_factors(model.net, attention_scales.ATTACK, FACTORS)
    attention_scales.set_logits_factor(model.net, attention_scales.LOGITS[attention_scales.ATTACK], 0.5)
    attention_scales.set_buffer(model.net, attention_scales.SEARCH_RECORD, torch.zeros(2))
    models.save(model, tmp_path / "model.safetensors")
    assert weights_sha256(models.load(tmp_path / "model.safetensors").net.state_dict()) == weights_sha256(
        fresh().net.state_dict()
    )
    attention_scales.drop_training_buffers(model.net)
    assert model.net.state_dict().keys() == fresh().net.state_dict().keys()


def test_a_file_with_the_factors_of_another_depth_is_refused(tmp_path: Path) -> None:
    state = {**fresh().net.state_dict(), attention_scales.ATTENTION: torch.ones(3)}
    models.save(fresh(), tmp_path / "model.safetensors", tensors=state)
    with pytest.raises(UsageError, match="this network has 2 attention layers, got 3 factors"):
        models.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ([1.0], "this network has 2 attention layers, got 1 factors. Give one, or one each"),
        ([1.0, -0.5], r"must be finite and not negative, got \[1.0, -0.5\]"),
        ([1.0, float("nan")], "must be finite and not negative"),
    ],
)
def test_invalid_factors_are_refused(factors: list[float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        set_attention_scales(fresh(), factors)


def test_a_network_without_attention_is_refused() -> None:
    model = models.load("timm:resnet18", num_classes=10, image_size=32)
    with pytest.raises(UsageError, match="ResNet has no attention Vitadel supports, so there is nothing to scale"):
        set_attention_scales(model, 0.5)


# ------------------------------------------------------------------ compilers


@pytest.mark.parametrize("first", ["plain", "scaled"])
def test_a_compiled_model_uses_the_factors(x: Tensor, first: str) -> None:
    """Whatever was compiled before: a model without factors that gets some, or one with them."""
    model = scaled() if first == "scaled" else fresh()
    fast = torch.compile(model, backend="eager", dynamic=True)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
        for factors in (FACTORS, (2.0, 0.01)):
            set_attention_scales(model, factors)
            for rows in (x, x[:2]):
                by_hand = fresh()
                with by_hand.taps.scale(factors):
                    torch.testing.assert_close(fast(rows), by_hand(rows))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_compiled_search_uses_the_factors(x: Tensor, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """Logits and gradients of the model that an engine searches on are those of the attacked model."""
    build = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: build(model, **options, backend="eager"))
    model = scaled()
    fast, _, flags = search_model(model, x, precision, compile=True)
    plain, *_ = search_model(model, x, precision)
    assert not flags
    pixels = x.clone().requires_grad_()
    gradients = [torch.autograd.grad(one(pixels)[:, 0].sum(), pixels)[0] for one in (fast, plain)]
    torch.testing.assert_close(fast(x), plain(x))
    torch.testing.assert_close(*gradients)
    assert not torch.allclose(fast(x).float(), fresh()(x), atol=1e-2)


def test_a_compiled_network_is_refused(x: Tensor) -> None:
    model = scaled()
    model.net.compile(backend="eager")
    with pytest.raises(UsageError, match="compiled code does not apply. Do not compile it"):
        model(x)
