"""Masked gradients: a softmax that is exactly one-hot, a gradient that is exactly zero, and how scaling restores it."""

import copy
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from vitadel.api.train import as_recipe
from vitadel.core.errors import UsageError
from vitadel.losses import Loss, cross_entropy, dlr, margin
from vitadel.models import Model, load, save, weights_sha256
from vitadel.models.masked_gradient_net import SHARPNESS, MaskedGradientNet

ATTENTIONS = ("blocks.0.attn", "blocks.1.attn")
SOFT = 1 / SHARPNESS


@pytest.fixture
def model() -> Model:
    return load("vitadel:masked_gradient_net", seed=0)


@pytest.fixture
def x() -> Tensor:
    return images(1)


def images(seed: int) -> Tensor:
    return torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def pixel_gradient(model: nn.Module, x: Tensor, loss: Loss) -> Tensor:
    x = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss(model(x), torch.arange(len(x))).sum(), x)
    return grad


def constantly(value: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda _: value


def with_sharpness(net: nn.Module, *sharpnesses: float) -> MaskedGradientNet:
    other = copy.deepcopy(net)
    assert isinstance(other, MaskedGradientNet)
    for block, sharpness in zip(other.blocks, sharpnesses, strict=True):
        block.attn.sharpness = sharpness  # type: ignore[union-attr]
    return other


def by_hand(attention: nn.Module, x_BQD: Tensor, tokens_BND: Tensor, places_ND: Tensor, sharpness: float) -> Tensor:
    """One head after the other, with four heads of eight numbers each."""
    q, k, v, proj = (attention.get_submodule(name) for name in ("q", "k", "v", "proj"))
    heads = []
    for part in torch.arange(32).split(8):
        scores = torch.einsum("bqd,bnd->bqn", q(x_BQD)[..., part], k(tokens_BND)[..., part]) / 8**0.5
        heads.append(torch.softmax(sharpness * scores, -1) @ v(places_ND)[:, part])
    return proj(torch.cat(heads, -1))


def test_softmax_is_exactly_one_hot(model: Model, x: Tensor) -> None:
    with model.taps.read("blocks.*.attn.probs") as seen:
        model(x)
    assert sorted(seen) == [f"{name}.probs" for name in ATTENTIONS]
    for probs in seen.values():
        assert probs.shape == (4, 4, 4, 64)
        assert torch.equal(probs.sort(-1).values, torch.eye(64)[-1].expand_as(probs))


@pytest.mark.parametrize("loss", [cross_entropy, margin, dlr])
def test_the_input_gradient_is_exactly_zero_unless_scaled(model: Model, x: Tensor, loss: Loss) -> None:
    assert not pixel_gradient(model, x, loss).any()
    with model.taps.scale(SOFT):
        assert pixel_gradient(model, x, loss).flatten(1).any(1).all()


def test_each_attention_masks_a_gradient(model: Model, x: Tensor) -> None:
    grads = []
    for factors in ((SOFT, 1.0), (1.0, SOFT), (SOFT, SOFT)):
        with model.taps.scale(factors):
            grads.append(pixel_gradient(model, x, margin))
    first, second, both = grads
    assert first.any()
    assert second.any()
    assert not torch.allclose(first, both)
    assert not torch.allclose(second, both)


def test_the_image_affects_the_output_through_positions_alone(model: Model, x: Tensor) -> None:
    other = images(2)
    with model.taps.read("blocks.*.attn.probs") as seen, torch.no_grad():
        expected = model(x)
    assert not torch.equal(model(other), expected)
    with ExitStack() as held, torch.no_grad():
        for name, probs in dict(seen).items():
            held.enter_context(model.taps.edit(name, constantly(probs)))
        assert torch.equal(model(other), expected)


def test_later_queries_depend_on_earlier_positions(model: Model, x: Tensor) -> None:
    with model.taps.read("blocks.*.attn.q") as seen:
        model(x)
    first, second = (seen[f"{name}.q"] for name in ATTENTIONS)
    assert torch.equal(first[0], first[1])
    assert not torch.equal(second[0], second[1])


def test_scaled_attention_matches_a_direct_computation(model: Model, x: Tensor) -> None:
    model, x = model.double(), x.double()
    net = model.net
    assert isinstance(net, MaskedGradientNet)
    tokens_BND = net.norm_embed(net.embed(x).flatten(2).mT + net.key_places_ND)
    x_BQD = net.blocks[0].norm1(net.queries_QD).expand(4, -1, -1)  # type: ignore[operator]
    for factor in (1.0, 1e-3, SOFT, 1e-9):
        with model.taps.scale(factor), model.taps.read("blocks.0.attn.out") as seen:
            model(x)
        expected = by_hand(
            net.get_submodule("blocks.0.attn"), x_BQD, tokens_BND, net.value_places_ND, factor * SHARPNESS
        )
        torch.testing.assert_close(seen["blocks.0.attn.out"], expected)


def test_scale_factors_of_taps_scale_the_sharpness(model: Model, x: Tensor) -> None:
    model, x = model.double(), x.double()
    with model.taps.scale([1e-5, 1e-7]):
        scaled = model(x)
    torch.testing.assert_close(scaled, with_sharpness(model.net, SHARPNESS * 1e-5, SHARPNESS * 1e-7)(x))
    assert not torch.allclose(scaled, model(x))


def test_training_is_hard_forward_and_soft_backward(model: Model, x: Tensor) -> None:
    sharp = copy.deepcopy(model).double()
    soft = with_sharpness(sharp.net, 1.0, 1.0)
    x = x.double()
    evaluated = sharp(x)
    assert torch.equal(sharp.train()(x), evaluated)
    assert pixel_gradient(sharp, x, cross_entropy).flatten(1).any(1).all()
    # after a single attention the network is linear here, so the two gradients are the same
    queries, places = torch.randn(4, 4, 32).double(), torch.randn(64, 32).double()
    weight, grads = torch.randn(4, 4, 32).double(), []
    for attention in (sharp.net.get_submodule("blocks.0.attn"), soft.get_submodule("blocks.0.attn")):
        tokens = torch.linspace(-1, 1, 4 * 64 * 32).double().sin().view(4, 64, 32).requires_grad_()
        grads.append(torch.autograd.grad((attention(queries, tokens, places) * weight).sum(), tokens)[0])
    torch.testing.assert_close(*grads)
    assert grads[0].any()


def test_every_weight_is_trained(model: Model, x: Tensor) -> None:
    model.train()
    cross_entropy(model(x), torch.arange(4)).sum().backward()
    # softmax is invariant to a common offset, and so to a bias of the keys
    still = [name for name, weight in model.net.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert not [name for name in still if not name.endswith("attn.k.bias")]


def test_saving_and_loading_keeps_the_model(model: Model, x: Tensor, tmp_path: Path) -> None:
    changed = load("vitadel:masked_gradient_net", num_classes=7, seed=3)
    save(changed, tmp_path / "m.safetensors")
    loaded = load(tmp_path / "m.safetensors")
    assert loaded.spec == changed.spec
    assert weights_sha256(loaded.net.state_dict()) == weights_sha256(changed.net.state_dict())
    assert torch.equal(loaded(x), changed(x))
    assert model.spec is not None
    assert (model.spec.num_classes, model.spec.image_size, model.spec.patch_size) == (10, 8, None)


def test_all_taps_are_named_and_blocks_can_be_skipped(model: Model, x: Tensor) -> None:
    with model.taps.read("*") as seen:
        model(x)
    assert sorted(seen) == sorted(model.taps.names())
    assert len(seen) == 1 + 2 * 8 + 1
    assert seen["embed"].shape == (4, 64, 32)
    with model.taps.skip("blocks.0"), model.taps.read("blocks.0.out") as seen:
        model(x)
    assert torch.equal(seen["blocks.0.out"][2], model.net.get_parameter("queries_QD"))


def test_images_of_another_size_are_refused(model: Model) -> None:
    with pytest.raises(UsageError, match="vitadel:masked_gradient_net takes 8 x 8 images, got 8 x 16. Resize them."):
        model(torch.rand(1, 3, 8, 16))


def test_former_names_are_understood() -> None:
    former = load("vitadel:masked_gradient_net", seed=0)
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(former(x), load("vitadel:masked_gradient_net", seed=0)(x))
    assert as_recipe("digits-masked-gradient") == as_recipe("digits-masked-gradient")
