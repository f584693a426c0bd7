"""The same answers on a GPU; skipped where there is none."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitadel import data, models
from vitadel.attacks import FGSM, PGD
from vitadel.data import Squash
from vitadel.draws import Draws
from vitadel.evaluate import SUITES, evaluate
from vitadel.goals import Untargeted
from vitadel.objectives import Adversarial
from vitadel.runs import Run
from vitadel.threat import L1, L2, Linf, Threat
from vitadel.train import AdamW, PadCrop, Plan, Precision, fit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

THREATS = [Linf(8 / 255), L2(0.5), L1(12.0)]


def model(name: str = "timm:test_vit", patch: int = 4) -> models.Model:
    return models.load(name, num_classes=10, image_size=32, patch_size=patch)


def test_draws_are_the_same_numbers() -> None:
    index = torch.arange(7)
    here, there = Draws.of(5, index), Draws.of(5, index.cuda())
    assert torch.equal(here.uniform(3, 4, 5), there.uniform(3, 4, 5).cpu())
    assert torch.equal(here.uniform(9, dtype=torch.float64), there.uniform(9, dtype=torch.float64).cpu())
    torch.testing.assert_close(here.normal(100), there.normal(100).cpu(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_projections_agree(threat: Threat) -> None:
    x0 = torch.rand(5, 3, 16, 16)
    x = x0 + torch.randn_like(x0)
    torch.testing.assert_close(threat.project(x.cuda(), x0.cuda()).cpu(), threat.project(x, x0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_attacks_reach_the_same_verdicts(threat: Threat) -> None:
    net = model().double()
    x = torch.rand(16, 3, 32, 32, dtype=torch.float64)
    y = net(x).argmax(1)
    for attack in (FGSM(), PGD(steps=5, restarts=2)):
        here = attack(net.cpu(), x, Untargeted(y), threat, seed=1)
        there = attack(net.cuda(), x.cuda(), Untargeted(y.cuda()), threat, seed=1)
        assert torch.equal(here.reached, there.reached.cpu())
        assert bool((there.size.cpu() <= threat.eps * (1 + 1e-5)).all())


@pytest.mark.parametrize(
    ("name", "patch"),
    [
        ("vit_tiny_patch16_224", 4),
        ("cait_xxs24_224", 4),
        ("xcit_nano_12_p16_224", 4),
        ("swin_tiny_patch4_window7_224", 2),
    ],
)
def test_taps_under_autocast(name: str, patch: int) -> None:
    net = model(f"timm:{name}", patch).cuda()
    x = torch.rand(4, 3, 32, 32, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        bare = net(x)
        with net.taps.read("*") as seen:
            tapped = net(x)
        with net.taps.scale(1.0):
            scaled = net(x)
    torch.testing.assert_close(tapped.float(), bare.float(), rtol=0.05, atol=0.05)
    torch.testing.assert_close(scaled.float(), bare.float(), rtol=0.02, atol=0.02)
    penalty = torch.stack([seen[k].float().square().mean() for k in seen if k.endswith("logits")]).sum()
    (grad,) = torch.autograd.grad(penalty, x)
    assert grad.abs().sum() > 0


def test_training_in_bf16_and_evaluation(tmp_path: Path) -> None:
    digits = data.load("digits[:256]", preprocess=Squash(32))
    assert digits.train is not None
    plan = Plan(
        epochs=2,
        batch=64,
        optimiser=AdamW(lr=1e-3),
        precision=Precision.BF16,
        augment=PadCrop(),
        ema=0.9,
        log_every_steps=1,
    )
    objective = Adversarial(PGD(steps=2, step_size=0.05, keep_best=False), Linf(0.1))
    run = Run.claim(tmp_path / "train", "train", {}, device="cuda")
    trained = fit(model(), objective, digits.train, plan, run, seed=0)
    assert next(trained.parameters()).is_cuda
    again = Run.claim(tmp_path / "again", "train", {}, device="cuda")
    with pytest.raises(KeyboardInterrupt):
        fit(
            model(), objective, digits.train, replace(plan, checkpoint_every_steps=2), again, seed=0, notify=_stop_at(3)
        )
    resumed = fit(model(), objective, digits.train, replace(plan, checkpoint_every_steps=2), again, seed=0)
    for one, other in zip(trained.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-3)
    evaluated = Run.claim(tmp_path / "eval", "evaluate", {}, device="cuda")
    (summary,) = evaluate(trained, digits, SUITES["quick"], evaluated, threat=Linf(0.1), batch=50)
    assert summary["n"] == 256


def _stop_at(step: int):  # type: ignore[no-untyped-def]
    def stop(what: str, done: int, total: int, numbers: object) -> None:
        if done == step:
            raise KeyboardInterrupt

    return stop
