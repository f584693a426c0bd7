"""Scaling the logits of networks without attention (Jain & Dutta 2024, Figure 1b)."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from vitadel import robustness
from vitadel.attacks import AAS, FGSM, PGD, SCALINGS, Factors, Scaling
from vitadel.attacks.attention_scaling.attack import find_attack_factors, rescale_attack, rescale_model
from vitadel.evaluate import NamedAttack
from vitadel.goals import Untargeted
from vitadel.losses import Loss, cross_entropy, margin
from vitadel.models import Model, load, wrap
from vitadel.threats import Linf

THREAT = Linf(24 / 255)
TRIAL = PGD(steps=5, random_start=False)


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    x = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return x, convolutions()(x).argmax(1)


def convolutions(scale: float = 1.0) -> Model:
    """A small network of convolutions in float32, its logits times `scale`."""

    class Times(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * scale

    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 36, 5), Times())
    return wrap(net, mean=0.0, std=1.0).eval()


def gradient(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(loss(model(leaf), y).sum(), leaf)[0]


@pytest.mark.parametrize("factor", [10.0, 0.1, 1e-4])
def test_a_factor_of_the_logits_in_closed_form(images: tuple[Tensor, Tensor], factor: float) -> None:
    """Predictions stay; gradients of margins are multiplied by c, those of the cross-entropy are c J'(p(cz) - y)."""
    (x, y), model = images, convolutions()
    rescaled = rescale_model(model, Factors((), factor))
    torch.testing.assert_close(rescaled(x), factor * model(x))
    assert torch.equal(rescaled(x).argmax(1), model(x).argmax(1))
    torch.testing.assert_close(gradient(rescaled, x, y, margin), factor * gradient(model, x, y, margin))
    pull_BK = factor * ((factor * model(x)).softmax(1) - nn.functional.one_hot(y, 5)).detach()
    expected = gradient(model, x, y, lambda z_BK, _: (z_BK * pull_BK).sum(1))
    torch.testing.assert_close(gradient(rescaled, x, y, cross_entropy), expected, rtol=1e-3, atol=1e-7)


def test_sign_steps_along_margins_do_not_change(images: tuple[Tensor, Tensor]) -> None:
    (x, y), model, attack = images, convolutions(), PGD(steps=5, keep_best=False)
    plain = attack(model, x, Untargeted(y, margin), THREAT).x_adv
    scaled = rescale_attack(attack, Factors((), 2.0**-10))(model, x, Untargeted(y, margin), THREAT).x_adv
    assert torch.equal(plain, scaled)


@pytest.mark.parametrize("name", SCALINGS)
def test_saturated_logits_are_scaled_back(images: tuple[Tensor, Tensor], name: str) -> None:
    """Logits times 1e6 underflow in the softmax: gradients are exactly zero. Some factor undoes that."""
    (x, y), model = images, convolutions(1e6)
    scaling = replace(SCALINGS[name](), trial_attack=TRIAL, trial_images=12)
    plain = TRIAL(model, x, Untargeted(y, cross_entropy), THREAT)
    found = find_attack_factors(model, x, y, THREAT, scaling)
    assert [one.logits for one in found.tried] == [10.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5]
    assert found.best.attentions == ()
    assert found.best.broken == max(one.broken or 0 for one in found.tried)
    assert not plain.success.any()
    assert (gradient(model, x, y, cross_entropy) == 0).all()
    scaled = rescale_attack(TRIAL, found.best)(model, x, Untargeted(y, cross_entropy), THREAT)
    normal = TRIAL(convolutions(), x, Untargeted(y, cross_entropy), THREAT)
    assert int(scaled.success.sum()) == found.best.broken == int(normal.success.sum()) > 0


def test_of_factors_that_break_as_much_the_one_nearest_to_1_is_kept(images: tuple[Tensor, Tensor]) -> None:
    (x, y), model = images, convolutions()
    tiny = Linf(1e-6)  # breaks nothing
    found = find_attack_factors(model, x, y, tiny, Scaling(grid=(100.0, 0.1, 1e-3), trial_attack=TRIAL))
    assert {one.broken for one in found.tried} == {0}
    assert found.best.logits == 0.1


def test_the_result_is_flagged(images: tuple[Tensor, Tensor]) -> None:
    (x, y), model = images, convolutions()
    attack = AAS(FGSM(), Scaling(grid=(0.1,), trial_attack=FGSM()))
    assert [flag.code for flag in attack(model, x, y, THREAT).flags] == ["logit-scaling"]
    result = robustness(model, x, y, str(THREAT), [NamedAttack("fgsm", FGSM())], scaling="0.1")
    assert result.factors == Factors((), 0.1, None, result.factors.broken, 12) if result.factors else False
    assert "logit-scaling" in {flag.code for flag in result.flags}
    assert result.paper_protocol is not None
    assert result.paper_protocol.accuracy == result.robust.accuracy, "predictions of both models are the same"


def test_networks_with_attention_are_not_flagged() -> None:
    model = load("timm:test_vit", num_classes=5, image_size=8, patch_size=4).eval()
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    attack = AAS(FGSM(), factors=Factors((0.1,) * len(model.taps.attentions())))
    assert "logit-scaling" not in {flag.code for flag in attack(model, x, model(x).argmax(1), THREAT).flags}
