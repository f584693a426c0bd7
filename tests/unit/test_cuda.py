"""The same results on a GPU; skipped where there is none."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitadel import data, models, robustness
from vitadel.attacks import APGD, FAB, FGSM, GAMA, PGD, Engine, Factors, IterativeAttack, Square
from vitadel.attacks.attention_scaling.attack import RescaledIterativeAttack
from vitadel.attacks.engine.batching import WorkQueue
from vitadel.attacks.engine.precision import search_model
from vitadel.attacks.oracle import Oracle
from vitadel.core.cuda_graph import GraphedBackward, GraphedForward
from vitadel.core.rng import RandomStreams
from vitadel.data import Split, Squash
from vitadel.evaluate import SUITES, Context, NamedAttack, evaluate_suite
from vitadel.evaluate.validation import validation_scores
from vitadel.goals import Untargeted, top_other_classes
from vitadel.losses import cross_entropy, margin
from vitadel.models import AdapterConfig, family_of
from vitadel.objectives import AWP, TRADES, Adversarial, Examples, Output, Standard, TORATraining
from vitadel.runs import Run
from vitadel.threats import L1, L2, Linf, Threat
from vitadel.train import (
    SGD,
    AdamW,
    Augment,
    Chain,
    ColorJitter,
    Compile,
    Erase,
    Flip,
    PadCrop,
    Precision,
    ResizedCrop,
    Rotate,
    Sampler,
    Trainer,
    TrainingConfig,
    peak_flops,
)
from vitadel.train.input.loader import Loader
from vitadel.train.monitor.hardware import Meter

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

THREATS = [Linf(8 / 255), L2(0.5), L1(12.0)]


def model(name: str = "timm:test_vit", patch: int = 4) -> models.Model:
    return models.load(name, num_classes=10, image_size=32, patch_size=patch)


def test_random_numbers_match_the_cpu() -> None:
    index = torch.arange(7)
    here, there = RandomStreams.of(5, index), RandomStreams.of(5, index.cuda())
    assert torch.equal(here.uniform(3, 4, 5), there.uniform(3, 4, 5).cpu())
    assert torch.equal(here.uniform(9, dtype=torch.float64), there.uniform(9, dtype=torch.float64).cpu())
    torch.testing.assert_close(here.normal(100), there.normal(100).cpu(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_projections_match_the_cpu(threat: Threat) -> None:
    x0 = torch.rand(5, 3, 16, 16)
    x = x0 + torch.randn_like(x0)
    torch.testing.assert_close(threat.project(x.cuda(), x0.cuda()).cpu(), threat.project(x, x0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_verdicts_match_the_cpu(threat: Threat) -> None:
    net = model().double()
    x = torch.rand(16, 3, 32, 32, dtype=torch.float64)
    y = net(x).argmax(1)
    for attack in (FGSM(), PGD(steps=5, restarts=2)):
        here = attack(net.cpu(), x, Untargeted(y), threat, seed=1)
        there = attack(net.cuda(), x.cuda(), Untargeted(y.cuda()), threat, seed=1)
        assert torch.equal(here.success, there.success.cpu())
        assert bool((there.distance.cpu() <= threat.eps * (1 + 1e-5)).all())


@pytest.mark.parametrize(
    ("name", "patch"),
    [
        ("vit_tiny_patch16_224", 4),
        ("cait_xxs24_224", 4),
        ("xcit_nano_12_p16_224", 4),
        ("swin_tiny_patch4_window7_224", 2),
        ("levit_384_s8", 8),
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
    plan = TrainingConfig(
        epochs=2,
        batch_size=64,
        optimizer=AdamW(lr=1e-3),
        precision=Precision.BF16,
        augment=PadCrop(),
        ema=0.9,
        log_every_steps=1,
    )
    objective = Adversarial(PGD(steps=2, step_size=0.05, keep_best=False), Linf(0.1))
    run = Run.claim(tmp_path / "train", "train", {}, device="cuda")
    trained = Trainer(model(), objective, digits.train, plan, run, seed=0).fit()
    assert next(trained.parameters()).is_cuda
    again = Run.claim(tmp_path / "again", "train", {}, device="cuda")
    with pytest.raises(KeyboardInterrupt):
        Trainer(
            model(), objective, digits.train, replace(plan, checkpoint_every_steps=2), again, seed=0, notify=_stop_at(3)
        ).fit()
    resumed = Trainer(model(), objective, digits.train, replace(plan, checkpoint_every_steps=2), again, seed=0).fit()
    for one, other in zip(trained.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-3)
    evaluated = Run.claim(tmp_path / "eval", "evaluate", {}, device="cuda")
    ctx = Context(trained, digits.test, digits, Linf(0.1), engine=Engine(batch_size=50))
    (record,) = evaluate_suite(SUITES["quick"], ctx, evaluated.results)
    assert record.n == 256


def _stop_at(step: int):  # type: ignore[no-untyped-def]
    def stop(what: str, done: int, total: int, numbers: object) -> None:
        if done == step:
            raise KeyboardInterrupt

    return stop


SEARCHES: dict[str, IterativeAttack] = {
    "pgd": PGD(steps=10, restarts=2),
    "apgd": APGD(steps=20),
    "apgd-t": APGD(steps=20, targets=3),
    "fab": FAB(steps=5),
    "fab-t": FAB(steps=20, targets=3),
    "square": Square(queries=150),
    "gama": GAMA(steps=20),
    "scaled": RescaledIterativeAttack(APGD(steps=20), Factors((0.3,) * 6)),
}


def run_engine(
    attack: IterativeAttack, engine: Engine, net: torch.nn.Module, x: torch.Tensor, threat: Threat
) -> list[bool]:
    device = x.device
    with torch.no_grad():
        z = net(x)
    y = z.argmax(1)
    ranked, loss = top_other_classes(z, y, 9), margin if isinstance(attack, Square) else cross_entropy

    def fetch(at: torch.Tensor) -> tuple[torch.Tensor, Untargeted, torch.Tensor]:
        at = at.to(device)
        return x[at], Untargeted(y[at], loss), ranked[at][:, : attack.num_branches(10)]

    pool = WorkQueue(RandomStreams.of(3, torch.arange(len(x), device=device)), 10, fetch)
    broken = [False] * len(x)
    for results in engine.run(attack, Oracle(net), pool, threat, Oracle(net)):
        for result in results:
            broken[result.index] = result.success
    return broken


@pytest.mark.parametrize("threat", [Linf(1 / 255), L2(0.08), L1(1.5)], ids=str)
@pytest.mark.parametrize("name", SEARCHES)
def test_captured_steps_give_the_verdicts_of_the_cpu(name: str, threat: Threat) -> None:
    net = model().double().requires_grad_(False)
    x = torch.rand(24, 3, 32, 32, dtype=torch.float64)
    here = run_engine(SEARCHES[name], Engine(batch_size=64, precision="float32"), net.cpu(), x, threat)
    net = net.cuda()
    for engine in (Engine(batch_size=24, cuda_graph=True), Engine(batch_size=64, sync_interval=5, cuda_graph=False)):
        assert run_engine(SEARCHES[name], engine, net, x.cuda(), threat) == here


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_only_reports_what_float32_confirms(precision: str) -> None:
    net = model().cuda()
    x = torch.rand(64, 3, 32, 32)
    with torch.no_grad():
        y = net(x.cuda()).argmax(1).cpu()
    entries = (NamedAttack("apgd", APGD(steps=20)), NamedAttack("square", Square(queries=50), margin))
    half = robustness(net, x, y, Linf(1 / 255), entries, engine=Engine(precision=precision))
    full = robustness(net, x, y, Linf(1 / 255), entries, engine=Engine(precision="float32"))
    with torch.no_grad():
        predictions = net(half.x_adv.cuda()).argmax(1).cpu()
    assert [int(prediction) for prediction in predictions[[to != "" for to in half.broken_by]]] == [
        prediction for prediction, to in zip(half.prediction, half.broken_by, strict=True) if to != ""
    ]
    assert abs(half.robust.correct - full.robust.correct) <= 3
    assert float((half.x_adv - x).abs().max()) <= 1 / 255 + 1e-7


def test_a_batch_that_does_not_fit_is_halved() -> None:
    """The model refuses more than 20 images, as a full device would."""

    class Full(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > 20:
                raise torch.OutOfMemoryError("full")
            logits: torch.Tensor = self.net(x)
            return logits

    net = Full().cuda().requires_grad_(False)
    x = torch.rand(50, 3, 32, 32, device="cuda")
    y = torch.cat([net(part).argmax(1) for part in x.split(10)])
    small = robustness(net, x, y, Linf(1 / 255), (NamedAttack("apgd", APGD(steps=10)),), engine=Engine(batch_size=64))
    large = robustness(
        net.net, x, y, Linf(1 / 255), (NamedAttack("apgd", APGD(steps=10)),), engine=Engine(batch_size=64)
    )
    assert abs(small.robust.correct - large.robust.correct) <= 1


def test_a_model_that_synchronizes_runs_without_capture_and_is_flagged() -> None:
    class SynchronizingModel(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.net(x)
            return logits if bool(logits.isfinite().all()) else logits * 0

    net = SynchronizingModel().cuda()
    x = torch.rand(8, 3, 32, 32)
    with torch.no_grad():
        y = net(x.cuda()).argmax(1).cpu()
    result = robustness(net, x, y, Linf(1e-4), (NamedAttack("apgd", APGD(steps=60)),))
    assert [flag.code for flag in result.flags] == ["search-fallback"]
    assert "could not be captured as a CUDA graph" in result.flags[0].sentence
    # the failed capture leaves the device's random generator unchanged
    torch.cuda.manual_seed(3)
    first = torch.rand(4, device="cuda")
    torch.cuda.manual_seed(3)
    assert torch.equal(first, torch.rand(4, device="cuda"))


def test_compiled_models_give_the_same_logits() -> None:
    net = model().cuda().requires_grad_(False).eval()
    x = torch.rand(16, 3, 32, 32, device="cuda")
    fast, _, flags = search_model(net, x, "float32", compile=True)
    assert flags == ()
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x), rtol=1e-3, atol=1e-4)


# ------------------------------------------------------------------ training


def digits(count: int = 64) -> Split:
    split = data.load(f"digits[:{count}]", preprocess=Squash(32)).train
    assert split is not None
    return split


def test_images_on_the_device_match_the_host() -> None:
    split = digits().load_into_memory()
    picks = list(Sampler(len(split), 16, seed=0).batches(range(6)))
    here = list(Loader(split, None, torch.device("cpu")).batches(picks))
    there = list(Loader(split, None, torch.device("cuda")).batches(picks))
    for (_, x, y), (_, x_gpu, y_gpu) in zip(here, there, strict=True):
        assert torch.equal(x, x_gpu.cpu())
        assert torch.equal(y, y_gpu.cpu())


@pytest.mark.parametrize(
    "augment",
    [PadCrop(4), ResizedCrop(), ColorJitter(hue=0.1), Erase(1.0), Rotate(5.0), Chain((Flip(), Erase(0.5)))],
    ids=lambda one: type(one).__name__,
)
def test_augmentations_match_the_cpu(augment: Augment) -> None:
    x, index = torch.rand(12, 3, 32, 32), torch.arange(12)
    here = augment(x, RandomStreams.of(3, index))
    there = augment(x.cuda(), RandomStreams.of(3, index.cuda())).cpu()
    # a rounding error may move a sampled pixel, not many
    assert float(((here - there).abs() > 1e-3).float().mean()) < 0.01


@pytest.mark.parametrize("attack_model", [False, True])
@pytest.mark.parametrize("compiled", [Compile.OFF, Compile.BLOCKS, Compile.FAST])
def test_fast_training_matches_plain_training(tmp_path: Path, compiled: Compile, attack_model: bool) -> None:
    objective = TRADES(PGD(steps=2, step_size=2 / 255, keep_best=False), Linf(8 / 255))
    plan = TrainingConfig(
        epochs=2, batch_size=16, optimizer=SGD(lr=0.05), ema=0.9, precision=Precision.BF16, log_every_steps=1
    )
    losses = []
    for name, fast in (("plain", False), ("fast", True)):
        run = Run.claim(tmp_path / name, "train", {}, device="cuda")
        chosen = replace(plan, compile=compiled, attack_model=attack_model) if fast else plan
        Trainer(model(), objective, digits(), chosen, run, seed=0).fit()
        losses.append([float(str(entry["loss"])) for entry in run.read_log("step")])
        assert {"memory_mib", "device_hours"} <= run.read_log("step")[0].values.keys()
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@pytest.mark.parametrize("output", list(Output))
def test_fast_training_of_adapters_matches_plain_training(tmp_path: Path, output: Output) -> None:
    attack = PGD(steps=2, step_size=2 / 255, keep_best=False)
    objective = TORATraining(attack, Linf(8 / 255), weight=0.5, phase1_attack=output, phase2_loss=output)
    plan = TrainingConfig(epochs=2, batch_size=16, optimizer=SGD(lr=0.05), precision=Precision.BF16, log_every_steps=1)
    losses = []
    for name, compiled in (("plain", Compile.OFF), ("fast", Compile.BLOCKS)):
        run = Run.claim(tmp_path / name, "train", {}, device="cuda")
        chosen = replace(plan, compile=compiled, attack_model=compiled is not Compile.OFF)
        adapted = models.tora(model("timm:vit_tiny_patch16_224"), AdapterConfig(), num_classes=10, seed=0)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "passes could not be captured")
            Trainer(adapted, objective, digits(), chosen, run, seed=0).fit()
        losses.append([float(str(entry["loss"])) for entry in run.read_log("step")])
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@pytest.mark.parametrize("name", ["test_vit", "xcit_nano_12_p16_224"])
def test_a_captured_loss_gives_the_same_gradients(name: str) -> None:
    """Also its logged numbers and the running statistics; a batch of another size runs eagerly."""
    objective, one = TRADES(None, Linf(8 / 255)), model(f"timm:{name}").cuda().train()
    other = copy.deepcopy(one)

    def backward(net: torch.nn.Module) -> Callable[..., dict[str, torch.Tensor]]:
        def compute(*tensors: torch.Tensor) -> dict[str, torch.Tensor]:
            step = objective.loss(net, Examples(*tensors))
            step.loss.backward()
            return {"loss": step.loss.detach(), **step.logs}

        return compute

    plain, recorded = backward(one), GraphedBackward(other, backward(other))
    for size in (8, 8, 5, 8):
        one.zero_grad()
        other.zero_grad()
        x = torch.rand(size, 3, 32, 32, device="cuda")
        tensors = x, torch.arange(size, device="cuda"), (x + 0.03).clamp(max=1)
        logs, logs_captured = plain(*tensors), recorded(*tensors)
        assert {key: float(value) for key, value in logs_captured.items()} == pytest.approx(
            {key: float(value) for key, value in logs.items()}, rel=1e-4
        )
        for (key, mine), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-3, atol=1e-5, msg=key)
        for kept, kept_too in zip(one.buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(kept_too, kept, rtol=1e-4, atol=1e-6)


def test_captured_logits_have_the_same_gradients() -> None:
    net = model().cuda().requires_grad_(False).eval()
    recorded = GraphedForward(net)
    for size in (8, 8, 5, 8):
        x = torch.rand(size, 3, 32, 32, device="cuda", requires_grad=True)
        (gradient,) = torch.autograd.grad(net(x)[:, 0].sum(), x)
        z = recorded(x)
        (again,) = torch.autograd.grad(z[:, 0].sum(), x)
        torch.testing.assert_close(again, gradient, rtol=1e-4, atol=1e-6)
        with torch.no_grad():
            torch.testing.assert_close(recorded(x), net(x), rtol=1e-4, atol=1e-6)


def test_losses_that_cannot_be_captured_run_eagerly_and_are_reported() -> None:
    def synchronizes(pixels: torch.Tensor) -> torch.Tensor:
        return pixels.flatten(1) * float(pixels.mean())

    x = torch.rand(4, 3, 8, 8, device="cuda", requires_grad=True)
    recorded = GraphedForward(synchronizes)
    with pytest.warns(UserWarning, match="could not be captured"):
        first = recorded(x)
    torch.testing.assert_close(first, synchronizes(x))
    torch.testing.assert_close(recorded(x), synchronizes(x))
    torch.rand(2, device="cuda")  # the device's random generator is still there


@pytest.mark.parametrize(("patches", "channels"), [(64, 64), (64, 32), (16, 16)])
def test_class_attention_matches_general_attention(patches: int, channels: int) -> None:
    """Against attention in float64: no further off than rounding to half precision between the products."""
    from vitadel.models.kernels.class_attention import class_attention

    qkv = torch.randn(3, patches + 1, 3, 2, channels, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    exact = qkv.detach().double().requires_grad_()
    q, k, v = exact.permute(2, 0, 3, 1, 4).unbind(0)
    weights = (q @ k.mT * 0.3).softmax(-1)
    wanted = (weights @ v).transpose(1, 2)
    got = class_attention(qkv, 0.3)
    assert _distance(got, wanted) < 5e-3
    gradient = torch.randn_like(got)
    (back,), (wanted_back,) = (
        torch.autograd.grad(got, qkv, gradient),
        torch.autograd.grad(wanted, exact, gradient.double()),
    )
    assert _distance(back, wanted_back) < 1e-2


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other).norm() / other.norm())


@pytest.mark.parametrize(
    ("name", "part", "packed"),
    [
        ("timm:vit_tiny_patch16_224", "attn", "PackedAttention"),
        ("timm:xcit_nano_12_p16_224", "attn", "PackedChannelAttention"),
    ],
)
def test_fused_kernels_give_the_same_logits(name: str, part: str, packed: str) -> None:
    plain = model(name).cuda().bfloat16().eval()
    quick = copy.deepcopy(plain)
    family_of(quick.net).use_fused_kernels(quick.net)
    assert {type(block.get_submodule(part)).__name__ for block in quick.net.blocks} == {packed}  # type: ignore[union-attr]
    assert quick.net.state_dict().keys() == plain.net.state_dict().keys()
    pixels = torch.randn(256, 3, 32, 32, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        logits = quick.net(pixels), plain.net(pixels)
        exact = plain.net.double()(pixels.double())
    # both are off by what bf16 loses in twelve blocks, and by different roundings
    assert _distance(logits[0], exact) < 1.5 * _distance(logits[1], exact)


def test_awp_under_autocast_uses_the_perturbed_weights() -> None:
    net = model().cuda().train()
    x, y = torch.rand(8, 3, 32, 32, device="cuda"), torch.arange(8, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        before = Standard()(net, x, y, seed=0).loss
    with torch.autocast("cuda", torch.bfloat16):
        step = AWP(Standard(), gamma=0.5)(net, x, y, seed=0)
    step.undo()
    assert float((step.loss - before).detach()) > 0.01


def test_validation_scores_every_head_on_the_gpu() -> None:
    net = models.tora(models.load("timm:test_vit", num_classes=10, image_size=32, patch_size=4)).cuda()
    split = data.load("digits", preprocess=Squash(32)).test.take(torch.arange(20))
    scores = validation_scores(net, split, PGD(steps=2, step_size=2 / 255), Linf(4 / 255), seed=0)
    assert scores.keys() == {"clean", "fgsm", "robust", "rob_clean", "rob_fgsm"}


def test_the_gpu_reports_its_energy() -> None:
    meter = Meter(torch.device("cuda"))
    ones = torch.ones(4096, 4096, device="cuda")
    for _ in range(200):
        ones @ ones
    torch.cuda.synchronize()
    reading = meter.read()
    assert reading["seconds"] > 0
    assert reading["gpu_hours"] == pytest.approx(reading["seconds"] / 3600)
    assert reading["memory_mib"] >= 64
    assert reading.get("energy_joules", 1.0) > 0
    assert peak_flops(torch.cuda.get_device_name()) is None or peak_flops(torch.cuda.get_device_name()) > 1e13  # type: ignore[operator]
