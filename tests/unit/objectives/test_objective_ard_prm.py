"""ARD and PRM (Mo et al. 2022): which gradients are dropped and which patches masked, against what they must be."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from vitadel import models
from vitadel.attacks import FGSM, PGD
from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.losses import cross_entropy
from vitadel.models import Model, Option
from vitadel.objectives import (
    ARDPRM,
    AWP,
    MART,
    TRADES,
    Adversarial,
    AdversarialObjective,
    AttentionScaling,
    Objective,
    Scope,
    Standard,
    TORATraining,
    TrainingTime,
)
from vitadel.objectives.ard_prm import dropped_attention_gradients, patch_mask
from vitadel.threats import Linf

ATTACK = PGD(steps=3, step_size=0.03, keep_best=False)
ADVERSARIAL = Adversarial(ATTACK, Linf(0.1))
PATCHES = 16


def fresh() -> Model:
    # averaged tokens: of a class token, gradients reach pixels through attention alone
    pooled: dict[str, Option] = {"class_token": False, "global_pool": "avg"}
    options = {"depth": 2, "embed_dim": 32, "num_heads": 2, **pooled}
    model = models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=options)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "qkv" in name or "attn.proj" in name:
                weight.mul_(20)  # so that attention matters
    return model.train()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    # away from 0 and 1, so that no step is cut there
    return 0.3 + 0.4 * torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(8)


def at_share(
    kept: float, inner: AdversarialObjective = ADVERSARIAL, *, ard: bool = True, prm: bool = True
) -> Objective:
    """The update at which this share is kept."""
    return ARDPRM(inner, ard=ard, prm=prm, warmup_epochs=10).at(TrainingTime(10 * kept, 40))


def patches(x: Tensor) -> Tensor:
    """[B, N, 12] the pixels of each patch."""
    return nn.functional.unfold(x, 2, stride=2).transpose(1, 2)


@pytest.mark.parametrize(
    ("epoch", "kept"), [(0.0, 0.0), (0.25, 0.025), (1.0, 0.1), (5.0, 0.5), (9.99, 0.999), (10.0, 1.0), (39.0, 1.0)]
)
def test_warm_up_is_linear_in_epochs(epoch: float, kept: float) -> None:
    """train_cifar.py: `t / args.n_w` while `t < args.n_w`, then 1, with t the epochs done after the update."""
    assert ARDPRM(ADVERSARIAL).kept_share(TrainingTime(epoch, 40)) == pytest.approx(kept)


def test_after_the_warm_up_it_is_the_inner_objective() -> None:
    eps_warmup = replace(ADVERSARIAL, eps_warmup=0.5)
    assert ARDPRM(ADVERSARIAL, warmup_epochs=2).at(TrainingTime(2.0, 4)) is ADVERSARIAL
    assert ARDPRM(ADVERSARIAL, warmup_epochs=2).at(TrainingTime(1.99, 4)) is not ADVERSARIAL
    now = TrainingTime(1.0, 4)
    assert ARDPRM(eps_warmup, warmup_epochs=1).at(now) == eps_warmup.at(now), "schedules of the inner one apply"


@pytest.mark.parametrize(("kept", "masked"), [(0.0, 16), (0.05, 15), (0.5, 8), (0.6, 6), (0.9, 1), (0.95, 0), (1.0, 0)])
def test_masked_patches_are_counted_as_in_the_code(kept: float, masked: int) -> None:
    """int(max_num_patch * (1 - drop_rate)) patches of every image, each masked as a whole."""
    streams = RandomStreams.of(3, torch.arange(50))
    keep = patches(patch_mask(streams, torch.Size((8, 8)), 2, kept).float())
    assert ((keep == 0).all(2) | (keep == 1).all(2)).all()
    assert ((keep == 0).all(2).sum(1) == masked).all()
    if 0 < masked < PATCHES:
        assert len({tuple(one) for one in keep[:, :, 0].tolist()}) > 10, "images have different masks"


class Recording(nn.Module):
    """A model that notes the images it is given."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.inner, self.net, self.taps = model, model.net, model.taps
        self.images: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.images.append(x.detach().clone())
        z_BK: Tensor = self.inner(x)
        return z_BK


def test_masked_patches_have_no_perturbation(batch: tuple[Tensor, Tensor]) -> None:
    model = Recording(fresh())
    at_share(0.6, ard=False).prepare(model, *batch, seed=1)
    assert len(model.images) == ATTACK.steps
    clean = [(patches(x) == patches(batch[0])).all(2) for x in model.images]
    assert all((one.sum(1) == 6).all() for one in clean), "int(16 * 0.4) patches at every step"
    assert not torch.equal(clean[0], clean[1])


def test_with_all_patches_masked_only_the_last_step_remains(batch: tuple[Tensor, Tensor]) -> None:
    model, (x, y) = fresh(), batch
    examples = at_share(0.0, ard=False).prepare(model, x, y, seed=1)
    leaf = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(cross_entropy(model.eval()(leaf), y).sum(), leaf)
    torch.testing.assert_close(examples.x_adv, x + 0.03 * grad.sign())


def pixel_gradients(model: Model, x: Tensor, y: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(cross_entropy(model(leaf), y).sum(), leaf)[0]


def test_dropped_attention_passes_no_gradient(batch: tuple[Tensor, Tensor]) -> None:
    """All dropped: the gradient of a network whose attention outputs are constants. None dropped: the gradient."""
    model, streams = fresh().eval(), RandomStreams.of(0, torch.arange(8))
    full = pixel_gradients(model, *batch)
    with dropped_attention_gradients(model.taps, streams, 0.0):
        none = pixel_gradients(model, *batch)
    with dropped_attention_gradients(model.taps, streams, 1.0):
        all_kept = pixel_gradients(model, *batch)
    with model.taps.edit("blocks.*.attn.out", Tensor.detach):
        constants = pixel_gradients(model, *batch)
    torch.testing.assert_close(none, constants)
    torch.testing.assert_close(all_kept, full)
    assert not torch.allclose(none, full, rtol=0.1)


def test_attention_is_dropped_for_each_image_at_each_pass(batch: tuple[Tensor, Tensor]) -> None:
    """With half of two attentions dropped, an image's gradient is one of four; all four occur, and change by pass."""
    model, streams = fresh().eval(), RandomStreams.of(0, torch.arange(8))
    choices = []
    for dropped in ([], ["blocks.0.attn.out"], ["blocks.1.attn.out"], ["blocks.0.attn.out", "blocks.1.attn.out"]):
        choices.append(_with_constants(model, dropped, batch))
    seen = []
    with dropped_attention_gradients(model.taps, streams, 0.5):
        for _ in range(20):
            grad = pixel_gradients(model, *batch)
            near = torch.stack([(grad - one).abs().amax((1, 2, 3)) / one.abs().amax((1, 2, 3)) for one in choices])
            assert (near.amin(0) < 1e-4).all()
            seen.append(near.argmin(0))
    counts = torch.stack(seen).flatten().bincount(minlength=4)
    # 160 draws of four equally likely ones: 40 each, with a deviation of 5.5
    assert ((counts - 40).abs() < 4 * 5.5).all()


def _with_constants(model: Model, names: Sequence[str], batch: tuple[Tensor, Tensor]) -> Tensor:
    if not names:
        return pixel_gradients(model, *batch)
    with model.taps.edit(names[0], Tensor.detach):
        return _with_constants(model, names[1:], batch)


def test_outputs_do_not_change(batch: tuple[Tensor, Tensor]) -> None:
    model = fresh().eval()
    with dropped_attention_gradients(model.taps, RandomStreams.of(0, torch.arange(8)), 0.3):
        inside = model(batch[0])
    assert torch.equal(inside, model(batch[0]))


@pytest.mark.parametrize("inner", [ADVERSARIAL, TRADES(ATTACK, Linf(0.1)), MART(ATTACK, Linf(0.1))])
def test_only_the_attack_changes_and_nothing_stays(batch: tuple[Tensor, Tensor], inner: AdversarialObjective) -> None:
    """The loss is the inner objective's on the same examples, with the gradients of all weights."""
    model, other = fresh(), fresh()
    objective = at_share(0.4, inner)
    examples = objective.prepare(model, *batch, seed=2)
    assert not any(module._forward_hooks for module in model.net.modules())
    assert not any(module._forward_pre_hooks for module in model.net.modules())
    assert model.training
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    (one, two) = objective.loss(model, examples), inner.loss(other, examples)
    assert torch.equal(one.loss, two.loss)
    one.loss.backward()
    two.loss.backward()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)
    plain = inner.prepare(fresh(), *batch, seed=2)
    assert not torch.equal(examples.x_adv, plain.x_adv)


@pytest.mark.parametrize(("ard", "prm"), [(True, False), (False, True), (True, True)])
def test_examples_do_not_depend_on_the_batch(batch: tuple[Tensor, Tensor], ard: bool, prm: bool) -> None:
    (x, y), objective, index_B = batch, at_share(0.4, ard=ard, prm=prm), torch.arange(20, 28)
    whole = objective.prepare(fresh(), x, y, seed=2, index_B=index_B).x_adv
    halves = [
        objective.prepare(fresh(), x[part], y[part], seed=2, index_B=index_B[part]).x_adv
        for part in (slice(0, 3), slice(3, 8))
    ]
    torch.testing.assert_close(torch.cat(halves), whole)


def test_without_a_masked_patch_it_is_the_plain_attack(batch: tuple[Tensor, Tensor]) -> None:
    """int(16 * 0.03) patches are none: PGD as it is."""
    almost = ARDPRM(ADVERSARIAL, ard=False, warmup_epochs=10).at(TrainingTime(9.7, 40))
    x_adv = almost.prepare(fresh(), *batch, seed=2).x_adv
    assert torch.equal(x_adv, ADVERSARIAL.prepare(fresh(), *batch, seed=2).x_adv)


@pytest.mark.parametrize(
    "outer",
    [
        lambda inner: AWP(inner, gamma=0.01),
        lambda inner: AttentionScaling(inner, period=10),
        lambda inner: AttentionScaling(AWP(inner), period=10, scope=Scope.ATTACK),
    ],
)
def test_it_goes_inside_awp_and_attention_scaling(batch: tuple[Tensor, Tensor], outer: type[AWP]) -> None:
    model, wrapped = fresh(), outer(ARDPRM(ADVERSARIAL))
    wrapped.prepare_model(model)
    now = wrapped.at(TrainingTime(4.0, 40))
    examples = now.prepare(model, *batch, seed=2)
    torch.testing.assert_close(examples.x_adv, at_share(0.4).prepare(fresh(), *batch, seed=2).x_adv)
    assert wrapped.uses_taps
    assert not outer(ARDPRM(ADVERSARIAL, ard=False)).uses_taps


def test_it_costs_what_the_inner_objective_costs() -> None:
    objective = ARDPRM(ADVERSARIAL)
    assert objective.passes == at_share(0.5).passes == ADVERSARIAL.passes == 9
    assert objective.loss_passes == at_share(0.5).loss_passes == 3


def test_windows_and_class_attention() -> None:
    """Swin's attention has a row per window, CaiT's class attention one token: the drop is still one per image."""
    swin = models.load("timm:swin_tiny_patch4_window7_224", num_classes=4, image_size=64)
    cait = models.load("timm:cait_xxs24_224", num_classes=4, image_size=32, patch_size=8, options={"depth": 2})
    for model, size in ((swin.eval(), 64), (cait.eval(), 32)):
        x, y = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1])
        with model.taps.edit("*.attn.out", Tensor.detach):
            constants = pixel_gradients(model, x, y)
        with dropped_attention_gradients(model.taps, RandomStreams.of(0, torch.arange(2)), 0.0):
            torch.testing.assert_close(pixel_gradients(model, x, y), constants)


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (AWP(ADVERSARIAL), r"such as Adversarial, TRADES or MART, got AWP. .* around it: AWP\(ARDPRM\(\.\.\.\)\)"),
        (Standard(), "needs an objective with an attack inside, .* got Standard"),
        (TORATraining(ATTACK, Linf(0.1)), "got TORATraining"),
        (Adversarial(FGSM(), Linf(0.1)), "PGD that returns the last iterate, got FGSM. Write objective.inner.attack="),
        (Adversarial(PGD(steps=3), Linf(0.1)), "returns the last iterate, got PGD"),
    ],
)
def test_what_cannot_be_inside_is_refused(inner: AdversarialObjective, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ARDPRM(inner)


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(UsageError, match="neither ard nor prm"):
        ARDPRM(ADVERSARIAL, ard=False, prm=False)
    with pytest.raises(UsageError, match="warmup_epochs must be positive, got 0"):
        ARDPRM(ADVERSARIAL, warmup_epochs=0)
    resnet = models.load("timm:resnet10t", num_classes=4, image_size=32)
    with pytest.raises(UsageError, match=r"no attention Vitadel supports. Set objective.ard=false"):
        ARDPRM(ADVERSARIAL).prepare_model(resnet)
    with pytest.raises(UsageError, match=r"a ResNet has none. Set objective.prm=false"):
        ARDPRM(ADVERSARIAL, ard=False).prepare_model(resnet)
    with pytest.raises(UsageError, match="this Linear is none. Load it with vitadel.models.load"):
        ARDPRM(ADVERSARIAL).prepare_model(nn.Linear(3, 3))
