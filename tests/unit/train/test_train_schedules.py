"""Learning rates against timm's scheduler, averages and decay against their definitions."""

import math

import pytest
import timm
import torch
from timm.scheduler import CosineLRScheduler
from torch import nn

from vitadel.core.errors import UsageError
from vitadel.objectives import ScheduleUnit
from vitadel.train import SGD, AdamW, Decay, Lion, LRScaling, TrainingConfig, ema_decay, learning_rate


def plan(**values: object) -> TrainingConfig:
    return TrainingConfig(**{"epochs": 100, "batch_size": 512, "optimizer": AdamW(lr=5e-4), **values})  # type: ignore[arg-type]


AUTHORS = {
    "warmup_epochs": 10,
    "warmup_lr": 1e-6,
    "min_lr": 1e-5,
    "cooldown_epochs": 10,
    "lr_unit": ScheduleUnit.EPOCH,
    "cosine_from_start": True,
}


@pytest.mark.parametrize("prefix", [False, True])
def test_per_epoch_it_matches_the_cosine_of_timm(prefix: bool) -> None:
    chosen = plan(**{**AUTHORS, "cosine_from_start": not prefix})
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=5e-4)
    # timm counts the warm-up before the cosine, which then ends so much later
    timms = CosineLRScheduler(
        optimizer, 90 if prefix else 100, lr_min=1e-5, warmup_t=10, warmup_lr_init=1e-6, warmup_prefix=prefix
    )
    for epoch in range(110):
        timms.step(epoch)
        for step in (epoch * 4, epoch * 4 + 3):
            assert learning_rate(chosen, step, 4) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9), epoch


def test_the_learning_rate_of_the_authors_never_reaches_its_peak() -> None:
    rates = [learning_rate(plan(**AUTHORS), epoch, 1) for epoch in range(110)]
    assert rates[0] == 1e-6
    assert rates[9:11] == pytest.approx([4.50e-4, 4.88e-4], rel=1e-2)
    assert max(rates) < 5e-4
    assert rates[100:] == [1e-5] * 10


def test_step_decay() -> None:
    chosen = plan(decay_epochs=30, lr_unit=ScheduleUnit.EPOCH, optimizer=SGD(lr=0.1))
    assert [learning_rate(chosen, epoch, 1) for epoch in (0, 29, 30, 60, 99)] == pytest.approx(
        [0.1, 0.1, 0.01, 0.001, 1e-4]
    )


def test_the_peak_scales_with_the_batch() -> None:
    assert plan(batch_size=1024, lr_scaling=LRScaling.LINEAR).peak_lr == pytest.approx(1e-3)
    root = plan(batch_size=1024, lr_scaling=LRScaling.ROOT, optimizer=AdamW(lr=2e-4))
    assert root.peak_lr == pytest.approx(2.83e-4, rel=1e-3)
    assert plan(batch_size=1024).peak_lr == 5e-4
    assert learning_rate(root, 0, 10) == root.peak_lr


def test_weight_averages_match_their_formulas() -> None:
    assert [
        ema_decay(plan(ema=0.9999, ema_batch_size=1024, batch_size=b), 5, 10) for b in (1024, 2048, 4096)
    ] == pytest.approx([0.9999, 0.9998, 0.9996])
    warm = plan(ema=0.995, ema_warmup=True, ema_after=0.025)
    assert [ema_decay(warm, step, 1000) for step in (0, 24, 25, 100_000)] == pytest.approx([0, 0, 26 / 35, 0.995])
    assert ema_decay(plan(ema=0.9), 0, 10) == 0.9
    with pytest.raises(
        UsageError, match=r"TrainingConfig.ema of 0.9 for a batch of 8 is -5.4 for one of 512, outside of \(0, 1\)"
    ):
        plan(ema=0.9, ema_batch_size=8)  # a batch of 512 would keep less than nothing


def decayed(choice: AdamW | Lion | SGD, net: nn.Module) -> set[str]:
    names = {id(one): name for name, one in net.named_parameters()}
    groups = choice.build(net).param_groups
    assert sum(len(group["params"]) for group in groups) == len(names)
    return {names[id(one)] for group in groups if group["weight_decay"] > 0 for one in group["params"]}


def test_weights_with_weight_decay() -> None:
    net = timm.create_model("xcit_nano_12_p16_224", depth=1, cls_attn_layers=1, num_classes=3)
    everything = {name for name, _ in net.named_parameters()}
    usual = decayed(AdamW(lr=1, weight_decay=0.5), net)
    # the temperatures have shape (heads, 1, 1): timm's rule decays them, as the thesis's runs did
    assert "blocks.0.attn.temperature" in usual
    assert "cls_token" not in usual
    assert usual == {n for n, p in net.named_parameters() if p.ndim > 1 and n not in net.no_weight_decay()}
    spared = decayed(AdamW(lr=1, weight_decay=0.5, exempt=("*.temperature",)), net)
    assert usual - spared == {name for name in usual if name.endswith("temperature")}
    assert decayed(SGD(lr=1, decay=Decay.ALL), net) == everything
    vit = timm.create_model("vit_tiny_patch16_224", depth=1, init_values=1e-4, num_classes=3)
    kernels = decayed(Lion(lr=1, decay=Decay.KERNELS), vit)
    assert kernels == {
        *(f"blocks.0.{part}.weight" for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")),
        "patch_embed.proj.weight",
        "head.weight",
    }


def test_the_cosine_starts_after_the_warm_up_by_default() -> None:
    chosen = plan(epochs=10, warmup_epochs=2, min_lr=1e-4, optimizer=AdamW(lr=1e-3))
    assert learning_rate(chosen, 30, 5) == pytest.approx(1e-4 + 9e-4 * (1 + math.cos(math.pi * 20 / 40)) / 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"grad_accum_steps": 3}, "TrainingConfig.batch_size of 512 cannot be divided into 3 equal parts"),
        ({"decay_epochs": 0.0}, "TrainingConfig.decay_epochs must be positive"),
        ({"cooldown_epochs": -1}, "TrainingConfig.cooldown_epochs must not be negative"),
        ({"ema": 0.9, "ema_after": 1.0}, r"TrainingConfig.ema_after must lie in \[0, 1\)"),
        ({"repeats": 0}, "TrainingConfig.repeats must be at least 1"),
    ],
)
def test_invalid_plans_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(**values)
