"""Events of a training: SIGTERM, a NaN loss, a full disk, gradient accumulation, synthetic images."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from trainings import Interrupted, claim, interrupt_at, same, tiny_vit, weights  # type: ignore[import-not-found]

from vitadel import models
from vitadel.attacks import PGD
from vitadel.core.errors import Stopped, UsageError
from vitadel.core.flags import Flag
from vitadel.data import Split, convert
from vitadel.objectives import AWP, TRADES, Adversarial, Examples, LossOutput, Standard
from vitadel.threats import Linf
from vitadel.train import (
    SGD,
    AdamW,
    Compile,
    Mixing,
    PadCrop,
    PILAugment,
    Precision,
    Sampler,
    Synthetic,
    Trainer,
    TrainingConfig,
    overfitting_flags,
)
from vitadel.train.attack_model import AttackModel

PLAN = TrainingConfig(epochs=2, batch_size=16, optimizer=AdamW(lr=2e-3), checkpoint_every_steps=3, log_every_steps=2)
ATTACK = PGD(steps=2, step_size=0.05, keep_best=False)


def assert_close(one: Mapping[str, Tensor], other: Mapping[str, Tensor], atol: float) -> None:
    assert one.keys() == other.keys()
    for key in one:
        torch.testing.assert_close(one[key], other[key], rtol=0, atol=atol)


# ------------------------------------------------------------------ SIGTERM


def test_sigterm_writes_a_checkpoint_and_training_resumes(train: Split, tmp_path: Path) -> None:
    def terminate(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if done == 4:  # between two checkpoints
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    whole, broken = claim(tmp_path / "whole"), claim(tmp_path / "broken")
    plan = replace(PLAN, log_every_steps=100)  # one process does not wait, not even for a line of the log
    Trainer(tiny_vit(), Standard(), train, plan, whole, seed=1).fit()
    with pytest.raises(Stopped, match="stopped at step 4, which is saved"):
        Trainer(tiny_vit(), Standard(), train, plan, broken, seed=1, notify=terminate).fit()
    assert signal.getsignal(signal.SIGTERM) is before
    steps: list[int] = []
    Trainer(tiny_vit(), Standard(), train, plan, broken, seed=1, notify=lambda w, done, t, n: steps.append(done)).fit()
    assert steps[0] == 5
    assert same(weights(whole), weights(broken))


# ----------------------------------------------------------------- precision


def test_only_updates_are_computed_in_bf16(train: Split, tmp_path: Path) -> None:
    """On the hold-out, and when returned, the model is in float32; with averaged weights it always was."""
    model, plan = tiny_vit(), replace(PLAN, precision=Precision.BF16)
    x, kinds = train.images(torch.arange(8)), list[torch.dtype]()
    head = model.net.get_submodule("head")
    head.register_forward_hook(lambda module, args, output: kinds.append(output.dtype))
    seen: list[torch.dtype] = []

    def check(model: nn.Module) -> Mapping[str, float]:
        assert set(kinds) == {torch.bfloat16}
        kinds.clear()
        with torch.no_grad():
            logits = model(x)
        seen.extend((*kinds, logits.dtype))
        kinds.clear()
        return {"clean": 0.5}

    trained = Trainer(model, Standard(), train, plan, claim(tmp_path / "run"), seed=1, validate=check).fit()
    assert seen == [torch.float32] * 4
    with torch.no_grad():
        trained(x)
    assert kinds == [torch.float32]
    assert "forward" not in trained.__dict__
    # and once more, as in fine-tuning
    dtypes: list[torch.dtype] = []

    class RecordingObjective(Standard):
        def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
            dtypes.append(model(examples.x).dtype)
            return Standard.loss(self, model, examples)

    Trainer(model, RecordingObjective(), train, plan, claim(tmp_path / "again"), seed=1).fit()
    assert set(dtypes) == {torch.float32}


# --------------------------------------------------------------- broken loss


class BrokenOnce(Standard):
    """NaN at one call, as with a bad batch."""

    calls = 0

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        type(self).calls += 1
        step = Standard.loss(self, model, examples)
        return replace(step, loss=step.loss * (float("nan") if self.calls == 5 else 1.0))


def test_a_nan_loss_rolls_back_with_other_random_numbers(train: Split, tmp_path: Path) -> None:
    BrokenOnce.calls = 0
    run, seen = claim(tmp_path / "run"), list[str]()
    Trainer(tiny_vit(), BrokenOnce(), train, PLAN, run, seed=1, notify=lambda what, *_: seen.append(what)).fit()
    (alarm,) = run.read_log("alarm")
    assert alarm["code"] == "not-finite"
    assert "the loss is no longer finite at step 6: rolled back to step 3" in str(alarm["sentence"])
    assert any(what.startswith("flag at step 3: the loss is no longer finite") for what in seen)
    assert all(bool(value.isfinite().all()) for value in weights(run).values())
    # not the weights of a run without the NaN: other random numbers came after it
    calm = claim(tmp_path / "calm")
    Trainer(tiny_vit(), Standard(), train, PLAN, calm, seed=1).fit()
    assert not same(weights(run), weights(calm))


def test_a_rollback_keeps_the_best_weights(train: Split, tmp_path: Path) -> None:
    """The hold-out is evaluated after update 4; update 5 gives NaN, and the run rolls back to 3."""
    BrokenOnce.calls = 0
    scores = iter([0.9, 0.5, 0.6])
    run = claim(tmp_path / "run")
    Trainer(tiny_vit(), BrokenOnce(), train, PLAN, run, seed=1, validate=lambda model: {"clean": next(scores)}).fit()
    _, about = models.read_tensors(run.checkpoints / "best.safetensors")
    assert about["vitadel.selected"] == "step 4, hold-out {'clean': 0.9}"
    assert max(float(str(line["clean"])) for line in run.read_log("holdout", every=True)) == 0.9
    assert [line["clean"] for line in run.read_log("holdout")] == [0.5, 0.6]
    assert next(scores, None) is None


def test_a_nan_loss_at_the_start_rolls_back_to_the_initial_weights(train: Split, tmp_path: Path) -> None:
    class AlwaysNan(Standard):
        def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
            step = Standard.loss(self, model, examples)
            return replace(step, loss=step.loss * float("nan"))

    run = claim(tmp_path / "run")
    with pytest.raises(UsageError, match="no longer finite at step 2, for the 4th time. Lower the learning rate"):
        Trainer(tiny_vit(), AlwaysNan(), train, PLAN, run, seed=1).fit()
    state = max(run.checkpoints.glob("step-*"))
    start = tiny_vit().net.state_dict()
    kept = {key.removeprefix("model.net."): value for key, value in models.read_tensors(state)[0].items()}
    assert same(start, {key: kept[key] for key in start})
    assert [alarm["at"] for alarm in run.read_log("alarm")] == [0, 0, 0]


class Steep(Standard):
    """A NaN gradient with a finite loss, at one call: the root of zero."""

    calls = 0

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        type(self).calls += 1
        step = Standard.loss(self, model, examples)
        nothing = (step.loss - step.loss).sqrt() if self.calls == 3 else 0.0
        return replace(step, loss=step.loss + nothing)


def test_nan_weights_are_never_saved(train: Split, tmp_path: Path) -> None:
    Steep.calls = 0
    run = claim(tmp_path / "run")
    Trainer(tiny_vit(), Steep(), train, PLAN, run, seed=1).fit()  # a checkpoint is due after the third update
    (alarm,) = run.read_log("alarm")
    assert alarm["code"] == "not-finite"
    assert alarm["at"] == 0
    assert all(bool(value.isfinite().all()) for value in weights(run).values())


# ----------------------------------------------------------------- full disk


def test_a_full_disk_is_reported_and_the_last_checkpoint_kept(
    train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = models.write_tensors

    def full(path: Path, *rest: object) -> None:
        if "000006" in path.name:
            path.write_bytes(b"half of it")
            raise OSError(28, "No space left on device")
        real(path, *rest)  # type: ignore[arg-type]

    whole, run = claim(tmp_path / "whole"), claim(tmp_path / "run")
    Trainer(tiny_vit(), Standard(), train, PLAN, whole, seed=1).fit()
    with monkeypatch.context() as patch:
        patch.setattr("vitadel.train.checkpoint.write_tensors", full)
        with pytest.raises(UsageError, match="cannot write .*step-000000006.*No space left on device"):
            Trainer(tiny_vit(), Standard(), train, PLAN, run, seed=1).fit()
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        "step-000000000.safetensors",
        "step-000000003.safetensors",
    ]
    Trainer(tiny_vit(), Standard(), train, PLAN, run, seed=1).fit()
    assert same(weights(run), weights(whole))


# -------------------------------------------------------------- batch in parts


@pytest.mark.parametrize(
    "objective",
    [Adversarial(ATTACK, Linf(0.1)), TRADES(ATTACK, Linf(0.1), smoothing=0.1)],
    ids=lambda one: type(one).__name__,
)
def test_gradient_accumulation_matches_the_whole_batch(
    train: Split, tmp_path: Path, objective: Adversarial | TRADES
) -> None:
    # plain SGD: Adam's division would blow up rounding
    plan = replace(PLAN, optimizer=SGD(lr=0.05), mixing=Mixing(mixup=0.8, cutmix=1.0), augment=PadCrop(1))
    runs = []
    for parts in (1, 4):
        run = claim(tmp_path / str(parts))
        Trainer(tiny_vit(), objective, train, replace(plan, grad_accum_steps=parts), run, seed=2).fit()
        runs.append(run)
    assert_close(weights(runs[0]), weights(runs[1]), 2e-5)


def test_recomputed_activations_change_nothing(train: Split, tmp_path: Path) -> None:
    runs = []
    for on in (False, True):
        run = claim(tmp_path / str(on))
        Trainer(tiny_vit(), TRADES(ATTACK, Linf(0.1)), train, replace(PLAN, grad_checkpointing=on), run, seed=2).fit()
        runs.append(run)
    assert_close(weights(runs[0]), weights(runs[1]), 1e-6)


def test_awp_trains_and_resumes_exactly(train: Split, tmp_path: Path) -> None:
    objective = AWP(Adversarial(ATTACK, Linf(0.1)), gamma=0.01, start=1)
    whole, broken, plain = (claim(tmp_path / name) for name in ("whole", "broken", "plain"))
    Trainer(tiny_vit(), objective, train, PLAN, whole, seed=1).fit()
    Trainer(tiny_vit(), objective.inner, train, PLAN, plain, seed=1).fit()

    with pytest.raises(Interrupted):
        Trainer(tiny_vit(), objective, train, PLAN, broken, seed=1, notify=interrupt_at(7)).fit()
    Trainer(tiny_vit(), objective, train, PLAN, broken, seed=1).fit()
    assert same(weights(whole), weights(broken))
    assert not same(weights(whole), weights(plain))


# ------------------------------------------------------------------- what is fed


def test_synthetic_images_are_trained_on_counted_and_resumed(train: Split, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (200, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "made.npz", image=images, label=np.arange(200) % 10)
    shards = convert([tmp_path / "made.npz"], tmp_path / "shards", num_classes=10)
    made = Synthetic(shards, 0.75)
    whole, broken = claim(tmp_path / "whole"), claim(tmp_path / "broken")
    Trainer(tiny_vit(), Standard(), train, PLAN, whole, seed=1, synthetic=made).fit()

    with pytest.raises(Interrupted):
        Trainer(tiny_vit(), Standard(), train, PLAN, broken, seed=1, synthetic=made, notify=interrupt_at(5)).fit()
    Trainer(tiny_vit(), Standard(), train, PLAN, broken, seed=1, synthetic=made).fit()
    assert same(weights(whole), weights(broken))
    newest = max(whole.checkpoints.glob("step-*"))
    about = json.loads(models.read_tensors(newest)[1]["vitadel.training"])["progress"]
    assert (about["real"], about["synthetic"]) == (about["step"] * 4, about["step"] * 12)


def test_synthetic_images_of_another_size_are_refused(train: Split, tmp_path: Path) -> None:
    np.savez(tmp_path / "made.npz", image=np.zeros((20, 16, 16, 3), np.uint8), label=np.arange(20) % 10)
    shards = convert([tmp_path / "made.npz"], tmp_path / "shards")
    with pytest.raises(UsageError, match="synthetic images have 16 x 16 pixels, the real ones 8 x 8"):
        Trainer(
            tiny_vit(), Standard(), train, PLAN, claim(tmp_path / "run"), seed=1, synthetic=Synthetic(shards, 0.5)
        ).fit()


def test_images_augmented_by_the_loader(train: Split, tmp_path: Path) -> None:
    host = PILAugment(rand_augment="rand-m9-mstd0.5-inc1", erase=0.25, color_jitter=0.0)
    plan = replace(PLAN, pil_augment=host, repeats=2)
    runs = [claim(tmp_path / name) for name in ("one", "two")]
    for run in runs:
        Trainer(tiny_vit(), Standard(), train, plan, run, seed=1).fit()
    assert same(weights(runs[0]), weights(runs[1]))


# -------------------------------------------------------------------- watching


def test_the_log_has_its_columns(train: Split, tmp_path: Path) -> None:
    run = claim(tmp_path / "run")
    Trainer(
        tiny_vit(),
        Standard(),
        train,
        PLAN,
        run,
        seed=1,
        validate=lambda model: {"clean": 0.5, "fgsm": 0.9, "robust": 0.1},
    ).fit()
    first, *_, last = run.read_log("step")
    assert {"loss", "lr", "images_per_second", "memory_mib", "device_hours", "clean_accuracy"} <= first.values.keys()
    assert "gradient_norm" not in first.values
    assert float(str(last["device_hours"])) > 0
    assert [(one["at"], one["code"]) for one in run.read_log("alarm")] == [
        (at, code) for at in (4, 8) for code in ("overfitting", "label-leaking")
    ]
    assert list((run.folder / "tensorboard").glob("events.out.tfevents.*"))


def test_checks_compile_nothing(train: Split, tmp_path: Path) -> None:
    """An attack leaves fewer images with every step, and each number of them would be compiled anew."""
    seen: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        seen.append(len(inputs))
        return graph.forward

    compiled = torch.compile(lambda x: x + 1, backend=backend)

    def check(model: nn.Module) -> dict[str, float]:
        return {"clean": float(compiled(torch.zeros(3))[0])}

    Trainer(tiny_vit(), Standard(), train, PLAN, claim(tmp_path / "run"), seed=1, validate=check).fit()
    assert not seen
    assert compiled(torch.zeros(3))[0] == 1
    assert seen == [1]


@pytest.mark.parametrize(
    ("scores", "best", "codes"),
    [
        ({"clean": 0.8, "fgsm": 0.5, "robust": 0.45}, 0.44, []),
        ({"clean": 0.9, "fgsm": 0.8, "robust": 0.05}, 0.4, ["overfitting", "robust-accuracy-drop"]),
        ({"clean": 0.811, "fgsm": 0.45, "robust": 0.381}, 0.465, ["robust-overfitting"]),
        ({"clean": 0.808, "fgsm": 0.469, "robust": 0.407}, 0.465, []),
        ({"clean": 0.6, "fgsm": 0.7, "robust": 0.6}, None, ["label-leaking"]),
        ({"clean": 0.8, "rob_clean": 0.08, "rob_fgsm": 0.47, "fgsm": 0.1, "robust": 0.05}, None, ["head-leaking"]),
        ({"clean": 0.8, "rob_clean": 0.5, "rob_fgsm": 0.47, "fgsm": 0.1, "robust": 0.05}, None, []),
        ({"clean": 0.6}, 0.5, []),
        ({"clean": 0.6, "robust": 0.3}, None, []),
        # 0.2 below the best is not yet more than 0.2 below
        ({"clean": 0.6, "robust": 0.0}, 0.2, ["robust-overfitting"]),
        ({"clean": 0.6, "robust": 0.0}, 0.06, []),
        ({"clean": 0.6, "fgsm": 0.2, "robust": 0.0}, None, []),
        ({"clean": 0.0, "fgsm": 0.03, "rob_clean": 0.0, "rob_fgsm": 0.03}, None, []),
    ],
)
def test_flags_of_training(scores: dict[str, float], best: float | None, codes: list[str]) -> None:
    result: list[Flag] = overfitting_flags(scores, best)
    assert [alarm.code for alarm in result] == codes


# ------------------------------------------------------------- faster, and the same


def test_the_attack_model_follows_the_weights() -> None:
    model = tiny_vit()
    attack_model = AttackModel(model)
    x = torch.rand(4, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(attack_model(x), model(x), rtol=0.02, atol=0.02)
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
        assert float((attack_model(x) - model(x)).abs().max()) > 0.1
        attack_model.copy_weights()
        torch.testing.assert_close(attack_model(x), model(x), rtol=0.02, atol=0.02)
    assert all(weight.dtype is torch.float32 for weight in model.parameters())
    pixels = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(attack_model(pixels).sum(), pixels)
    assert grad.dtype is torch.float32


def test_training_with_an_attack_model_resumes_exactly(train: Split, tmp_path: Path) -> None:
    plan = replace(PLAN, precision=Precision.BF16, attack_model=True, ema=0.9)
    objective = TRADES(ATTACK, Linf(0.1))
    whole, broken = claim(tmp_path / "whole"), claim(tmp_path / "broken")
    Trainer(tiny_vit(), objective, train, plan, whole, seed=1).fit()

    with pytest.raises(Interrupted):
        Trainer(tiny_vit(), objective, train, plan, broken, seed=1, notify=interrupt_at(4)).fit()
    Trainer(tiny_vit(), objective, train, plan, broken, seed=1).fit()
    assert same(weights(whole), weights(broken))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler here")
def test_a_compiled_model_trains_to_the_same_weights(train: Split, tmp_path: Path) -> None:
    plan = replace(PLAN, optimizer=SGD(lr=0.05), ema=0.9)
    runs = []
    for compiled in (Compile.OFF, Compile.BLOCKS, Compile.FAST):
        run = claim(tmp_path / compiled.name)
        Trainer(tiny_vit(), TRADES(ATTACK, Linf(0.1)), train, replace(plan, compile=compiled), run, seed=2).fit()
        runs.append(run)
    assert_close(weights(runs[0]), weights(runs[1]), 1e-4)
    assert_close(weights(runs[0]), weights(runs[2]), 1e-4)


def test_compiled_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **how: seen.append(module))
    net = tiny_vit().net
    convolutional = models.load("timm:resnet18", num_classes=4).net
    xcit = models.load("timm:xcit_nano_12_p16_224", num_classes=4, image_size=32, patch_size=4).net
    parts = [dict(xcit.named_children())[name] for name in ("patch_embed", "blocks", "cls_attn_blocks")]
    for how, given, wanted in (
        (Compile.OFF, net, []),
        (Compile.BLOCKS, net, list(net.get_submodule("blocks").children())),
        (Compile.FAST, net, [net]),
        (Compile.BLOCKS, convolutional, [convolutional]),
        (Compile.BLOCKS, xcit, [parts[0], *parts[1].children(), *parts[2].children()]),
    ):
        seen.clear()
        how.apply(given)
        assert [id(module) for module in seen] == [id(module) for module in wanted]


def test_capturable_parts() -> None:
    gpu, plan = torch.device("cuda"), replace(PLAN, batch_size=8, compile=Compile.BLOCKS)
    assert plan.supports_cuda_graphs(gpu)
    assert not plan.supports_cuda_graphs(torch.device("cpu"))
    for setting in ({"compile": Compile.OFF}, {"grad_accum_steps": 2}, {"grad_checkpointing": True}, {"shard": True}):
        assert not replace(plan, **setting).supports_cuda_graphs(gpu)


@pytest.mark.parametrize("parts", [1, 4])
def test_the_norm_of_the_gradient_is_logged_where_it_is_clipped(train: Split, tmp_path: Path, parts: int) -> None:
    run = claim(tmp_path / "run")
    plan = replace(PLAN, epochs=1, clip_grad=1e-9, log_every_steps=1, grad_accum_steps=parts)
    Trainer(tiny_vit(), Standard(), train, plan, run, seed=1).fit()
    expected, (x, y) = tiny_vit().train(), first_batch(train)
    torch.nn.functional.cross_entropy(expected(x), y).backward()
    norm = torch.nn.utils.get_total_norm([one.grad for one in expected.parameters() if one.grad is not None])
    assert run.read_log("step")[0]["gradient_norm"] == pytest.approx(float(norm), rel=1e-3)


def first_batch(train: Split) -> tuple[Tensor, Tensor]:
    """Of a run with seed 1."""
    (pick,) = Sampler(len(train), PLAN.batch_size, seed=1).batches(range(1))
    return train.images(pick.row_B), train.labels[pick.row_B]
