"""Our models in other libraries, and their attacks against ours; skipped where the extra `peers` is not installed."""

import pytest
import torch
from torch import Tensor

from vitadel import models
from vitadel.attacks import FGSM, PGD
from vitadel.goals import Untargeted
from vitadel.threat import L2, Linf


@pytest.fixture
def model() -> models.Model:
    options = {"depth": 2, "embed_dim": 32, "num_heads": 2}
    net = models.load("timm:test_vit", num_classes=10, image_size=16, patch_size=4, options=options).double()
    with torch.no_grad():  # an untrained head is nearly zero, and its gradients with it
        net.net.get_parameter("head.weight").mul_(50)
    return net


@pytest.fixture
def batch(model: models.Model) -> tuple[Tensor, Tensor]:
    x = torch.rand(6, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x, model(x).argmax(1)


def test_torchattacks_takes_the_same_steps(model: models.Model, batch: tuple[Tensor, Tensor]) -> None:
    torchattacks = pytest.importorskip("torchattacks")
    x, y = batch
    threat, ours = Linf(8 / 255), PGD(steps=7, step_size=2 / 255, random_start=False, keep_best=False)
    theirs = torchattacks.PGD(model, eps=8 / 255, alpha=2 / 255, steps=7, random_start=False)(x, y)
    torch.testing.assert_close(ours(model, x, Untargeted(y), threat, seed=0).x, theirs, rtol=0, atol=1e-9)
    theirs = torchattacks.FGSM(model, eps=8 / 255)(x, y)
    torch.testing.assert_close(FGSM()(model, x, Untargeted(y), threat, seed=0).x, theirs, rtol=0, atol=1e-9)


def test_foolbox_takes_the_same_steps(model: models.Model, batch: tuple[Tensor, Tensor]) -> None:
    foolbox = pytest.importorskip("foolbox")
    x, y = batch
    theirs = foolbox.PyTorchModel(model, bounds=(0, 1))
    attack = foolbox.attacks.LinfPGD(abs_stepsize=2 / 255, steps=7, random_start=False)
    _, found, _ = attack(theirs, x, y, epsilons=8 / 255)
    ours = PGD(steps=7, step_size=2 / 255, random_start=False, keep_best=False)
    torch.testing.assert_close(ours(model, x, Untargeted(y), Linf(8 / 255), seed=0).x, found, rtol=0, atol=1e-9)
    # in L2 both walk alike until the ball is left; there they rescale and clip, we project exactly
    attack = foolbox.attacks.L2PGD(abs_stepsize=0.05, steps=7, random_start=False)
    _, found, _ = attack(theirs, x * 0.5 + 0.25, y, epsilons=0.5)
    ours = PGD(steps=7, step_size=0.05, random_start=False, keep_best=False)
    inside = ours(model, x * 0.5 + 0.25, Untargeted(y), L2(0.5), seed=0).x
    torch.testing.assert_close(inside, found, rtol=0, atol=1e-6)


def test_autoattack_runs_on_our_model(model: models.Model, batch: tuple[Tensor, Tensor]) -> None:
    pyautoattack = pytest.importorskip("pyautoattack")
    x, y = batch
    with torch.random.fork_rng(devices=[]):  # it reseeds the global generator
        judge = pyautoattack.AutoAttack(model.float(), version="custom", attacks=["apgd-ce"], eps=16 / 255, seed=0)
        found, *_ = judge.run_standard_evaluation(x.float(), y, batch_size=6)
    assert (found - x.float()).abs().max() <= 16 / 255 + 1e-6
