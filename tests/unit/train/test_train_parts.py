"""The parts of training that have a closed form."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.data import InMemory, Split
from vitadel.models import read_tensors, write_tensors
from vitadel.train import (
    SGD,
    AdamW,
    Lion,
    LRScaling,
    Mixing,
    OptimizerConfig,
    PadCrop,
    TrainingConfig,
    learning_rate,
)
from vitadel.train.checkpoint import Checkpoints, TrainState
from vitadel.train.setup import make_sampler


def plan(**values: object) -> TrainingConfig:
    return TrainingConfig(**{"epochs": 10, "batch_size": 8, "optimizer": AdamW(lr=1e-3), **values})  # type: ignore[arg-type]


def test_the_learning_rate_has_linear_warm_up_and_cosine_decay() -> None:
    chosen = plan(warmup_epochs=2, min_lr=1e-4)
    rates = [learning_rate(chosen, step, 5) for step in range(50)]
    assert rates[:10] == pytest.approx([1e-3 * (i + 1) / 10 for i in range(10)])
    assert rates[10] == pytest.approx(1e-3)
    assert rates[30] == pytest.approx(1e-4 + 9e-4 * (1 + math.cos(math.pi * 20 / 40)) / 2)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert learning_rate(chosen, 50, 5) == pytest.approx(1e-4)


def test_without_warm_up_the_first_learning_rate_is_the_peak() -> None:
    assert learning_rate(plan(), 0, 5) == pytest.approx(1e-3)


@pytest.mark.parametrize("choice", [AdamW(lr=0.1, weight_decay=0.5), Lion(lr=0.1, weight_decay=0.5), SGD(lr=0.1)])
def test_biases_and_norms_have_no_weight_decay(choice: OptimizerConfig) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    decay = {id(p): group["weight_decay"] for group in choice.build(net).param_groups for p in group["params"]}
    linear, norm = net[0], net[1]
    assert decay[id(linear.weight)] > 0
    assert [decay[id(p)] for p in (linear.bias, norm.weight, norm.bias)] == [0, 0, 0]


def one_step(choice: OptimizerConfig, steps: int = 1) -> float:
    weight = nn.Parameter(torch.full((1, 1), 2.0))
    net = nn.Module()
    net.weight = weight
    optimizer = choice.build(net)
    for _ in range(steps):
        weight.grad = torch.full((1, 1), 0.5)
        optimizer.step()
    return float(weight.detach())


def test_first_steps_match_their_formulas() -> None:
    # decoupled decay shrinks by lr * wd; then Adam's and Lion's first step have length lr
    assert one_step(AdamW(lr=0.1, weight_decay=0.5)) == pytest.approx(2 * (1 - 0.05) - 0.1, abs=1e-6)
    assert one_step(Lion(lr=0.1, weight_decay=0.5)) == pytest.approx(2 * (1 - 0.05) - 0.1, abs=1e-6)
    # Nesterov: gradient g = 0.5 + wd * 2, step lr * (g + momentum * g)
    assert one_step(SGD(lr=0.1, weight_decay=0.1)) == pytest.approx(2 - 0.1 * 0.7 * 1.9, abs=1e-6)
    assert one_step(SGD(lr=0.1, weight_decay=0.0, nesterov=False), steps=2) == pytest.approx(
        2 - 0.05 - 0.1 * 0.95, abs=1e-6
    )


def test_pad_crop_is_a_crop_of_the_padded_image() -> None:
    x = torch.arange(2 * 3 * 5 * 7, dtype=torch.float32).view(2, 3, 5, 7) / 210
    framed = nn.functional.pad(x, [2] * 4, value=0.5)
    seen = set()
    for seed in range(40):
        out = PadCrop(pad=2, fill=0.5, flip=True)(x, RandomStreams.of(seed, torch.arange(2)))
        windows = {
            (top, left, flip): running_means.flip(-1) if flip else running_means
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
            for running_means in (framed[0, :, top : top + 5, left : left + 7],)
        }
        seen |= {place for place, running_means in windows.items() if torch.equal(running_means, out[0])}
    assert len({(top, left) for top, left, _ in seen}) > 15
    assert {flip for *_, flip in seen} == {False, True}


def test_pad_crop_is_the_same_for_an_image_in_every_batch() -> None:
    x = torch.rand(5, 3, 6, 6)
    whole = PadCrop(pad=2)(x, RandomStreams.of(3, torch.arange(5)))
    part = PadCrop(pad=2)(x[2:4], RandomStreams.of(3, torch.tensor([2, 3])))
    assert torch.equal(whole[2:4], part)
    assert torch.equal(PadCrop(pad=0, flip=False)(x, RandomStreams.of(0, torch.arange(5))), x)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, "TrainingConfig.epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "TrainingConfig.batch_size must be at least 1"),
        ({"warmup_epochs": 10}, r"TrainingConfig.warmup_epochs must lie in \[0"),
        ({"ema": 1.0}, r"TrainingConfig.ema must lie in \(0, 1\), got 1"),
        ({"ema": 0.0}, r"TrainingConfig.ema must lie in \(0, 1\), got 0"),
        # for the batch it is meant for; for this one it would lie between 0 and 1
        ({"ema": 0.0, "ema_batch_size": 1024, "batch_size": 512}, r"TrainingConfig.ema must lie in \(0, 1\), got 0"),
        # twice the batch keeps nothing
        (
            {"ema": 0.5, "ema_batch_size": 256, "batch_size": 512},
            "TrainingConfig.ema of 0.5 for a batch of 256 is 0 for one of 512",
        ),
        ({"clip_grad": 0.0}, "TrainingConfig.clip_grad must be positive"),
    ],
)
def test_invalid_plans_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(**values)


def test_invalid_learning_rates_are_refused() -> None:
    with pytest.raises(UsageError, match="Lion.lr must be positive, got 0"):
        Lion(lr=0)
    with pytest.raises(UsageError, match="SGD.weight_decay must not be negative"):
        SGD(lr=1, weight_decay=-1)


@pytest.mark.parametrize("kind", [AdamW, Lion, SGD])
def test_the_largest_rates_fit_into_float32(kind: Any) -> None:
    """However they are scaled, torch takes them: the loss diverges, and the trainer can say so."""
    largest = kind(lr=1e10, weight_decay=1e10, **({} if kind is SGD else {"betas": (1 - 2**-53, 0.0)}))
    config = plan(optimizer=largest, batch_size=2**31 - 1, lr_batch_size=1, lr_scaling=LRScaling.LINEAR)
    net = nn.Linear(2, 2)
    optimizer = largest.build(net)
    for group in optimizer.param_groups:
        group["lr"] = config.peak_lr
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert bool(net.weight.abs().max() > 1e10)


@pytest.mark.parametrize(
    ("values", "world_size", "message"),
    [
        ({"batch_size": 8}, 2, None),
        ({"batch_size": 8}, 3, "a batch of 8 cannot be divided evenly among 3 processes in 1 parts"),
        ({"batch_size": 12, "grad_accum_steps": 3}, 2, None),
        (
            {"batch_size": 12, "grad_accum_steps": 4},
            2,
            "a batch of 12 cannot be divided evenly among 2 processes in 4 parts",
        ),
        ({"batch_size": 8, "mixing": Mixing()}, 2, None),
        (
            {"batch_size": 6, "mixing": Mixing()},
            2,
            r"pairs images within a process, got .* Set plan.batch_size to a multiple of 4",
        ),
        ({"batch_size": 6, "mixing": Mixing()}, 1, None),
        ({"batch_size": 6}, 2, None),
        ({"batch_size": 60}, 1, None),  # fewer images than a batch are one
        ({"batch_size": 30, "grad_accum_steps": 3}, 1, None),
    ],
)
def test_a_batch_is_divided_evenly(values: dict[str, object], world_size: int, message: str | None) -> None:
    pixels = InMemory(torch.zeros(20, 3, 2, 2, dtype=torch.uint8))
    train = Split("train", tuple(map(str, range(20))), torch.zeros(20, dtype=torch.int64), pixels)
    chosen = plan(**values)
    if message is None:
        assert make_sampler(train, None, chosen, 0, world_size).batch_size == min(chosen.batch_size, 20)
        return
    with pytest.raises(UsageError, match=message):
        make_sampler(train, None, chosen, 0, world_size)


def test_the_two_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    checkpoints = Checkpoints(tmp_path, {"model": net}, SGD(lr=0.1).build(net), writes=True)
    for step in (1, 2, 30, 4):
        with torch.no_grad():
            net.weight.fill_(step)
        checkpoints.save(TrainState(step=step, best=0.5))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-000000004.safetensors",
        "step-000000030.safetensors",
    ]
    assert checkpoints.load(30) == TrainState(step=30, best=0.5)
    assert net.weight.unique().tolist() == [30]


def test_a_process_that_does_not_write_leaves_checkpoints_alone(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    checkpoints = Checkpoints(tmp_path, {"model": net}, SGD(lr=0.1).build(net), writes=False)
    checkpoints.save(TrainState(step=1))
    assert not list(tmp_path.iterdir())
    assert checkpoints.load(1) is None


FORGED: dict[str, object] = {
    "step": 10**9,
    "best": float("nan"),
    "robust": 1.5,
    "rollbacks": -1,
    "real": 2.5,
    "synthetic": 2**60,
    "device_hours": float("inf"),
    "joules": "1",
    "unlogged": {"loss": [1.0, 0]},
}


def forge(path: Path, progress: dict[str, object], tensors: dict[str, torch.Tensor | None]) -> None:
    """Change a checkpoint, with a hash that matches; a tensor of None is left out."""
    values, about = read_tensors(path)
    header = json.loads(about["vitadel.training"])
    kept = {name: value for name, value in {**values, **tensors}.items() if value is not None}
    write_tensors(path, kept, {"vitadel.training": json.dumps({"progress": header["progress"] | progress})})


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Checkpoints, Path]:
    """A checkpoint after two of four updates, with the state of AdamW."""
    net = nn.Linear(2, 2)
    optimizer = AdamW(lr=0.1).build(net)
    for _ in range(2):
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    checkpoints = Checkpoints(tmp_path, {"model": net}, optimizer, writes=True)
    checkpoints.save(TrainState(step=2, unlogged={"loss": (3.0, 2)}))
    return checkpoints, tmp_path / "step-000000002.safetensors"


@pytest.mark.parametrize(
    "progress",
    [
        *({name: value} for name, value in FORGED.items()),
        {"step": -1},
        {"step": 2.0},
        {"step": True},
        {"step": None},
        {"step": 3},  # not that of its name
        {"best": "0.5"},
        {"best": [0.5]},
        {"real": -1},
        {"joules": -1.0},
        {"unlogged": [1.0, 1]},
        {"unlogged": {"loss": 1.0}},
        {"unlogged": {"loss": [1.0, 3]}},
        {"unlogged": {"loss": [float("nan"), 1]}},
        {"unlogged": {"loss": [1e300, 1]}},
    ],
    ids=str,
)
def test_a_forged_progress_is_damage(checkpoint: tuple[Checkpoints, Path], progress: dict[str, object]) -> None:
    checkpoints, path = checkpoint
    state = TrainState(step=2, unlogged={"loss": (3.0, 2)})
    assert checkpoints.load(4) == state
    forge(path, {}, {})
    assert checkpoints.load(4) == state
    forge(path, progress, {})
    with pytest.raises(UsageError, match=rf"{path.name} is damaged \(.*{next(iter(progress))}.*Delete it") as refused:
        checkpoints.load(4)
    assert len(str(refused.value)) < 400


def test_a_checkpoint_beyond_the_end_of_the_training_is_damage(checkpoint: tuple[Checkpoints, Path]) -> None:
    with pytest.raises(UsageError, match=r"is damaged \(its step must lie in \[0, 1\], got 2"):
        checkpoint[0].load(1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("optimizer.0.exp_avg", None),
        ("optimizer.0.exp_avg", torch.ones(3)),
        ("optimizer.0.exp_avg", torch.tensor(1.0)),
        ("optimizer.0.exp_avg", torch.ones(2, dtype=torch.int64)),
        ("optimizer.0.step", torch.tensor(-1.0)),
        ("optimizer.0.step", torch.tensor(3.0)),
        ("optimizer.0.step", torch.tensor(float("nan"))),
        ("optimizer.0.step", torch.ones(2)),
        ("optimizer.0.momentum", torch.ones(2)),
        ("optimizer.-1.step", torch.tensor(1.0)),
        ("optimizer.9.step", torch.tensor(1.0)),
        ("optimizer.first.step", torch.tensor(1.0)),
        ("model.weight", torch.ones(3, 3)),
        ("model.weight", None),
    ],
    ids=str,
)
def test_a_forged_tensor_is_damage(checkpoint: tuple[Checkpoints, Path], name: str, value: torch.Tensor | None) -> None:
    checkpoints, path = checkpoint
    forge(path, {}, {name: value})
    with pytest.raises(UsageError, match=rf"{path.name} is damaged \(.*\)\. Delete it"):
        checkpoints.load(4)
