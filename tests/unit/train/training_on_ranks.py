"""One training, to be started by a launcher: python training_on_ranks.py FOLDER KIND [LAST_STEP]."""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from vitadel import data, models
from vitadel.attacks import PGD, Scaling
from vitadel.objectives import (
    AWP,
    TRADES,
    Adversarial,
    AttentionScaling,
    Examples,
    LossOutput,
    Objective,
    Standard,
    TORATraining,
)
from vitadel.runs import Run
from vitadel.threats import Linf
from vitadel.train import SGD, Mixing, PadCrop, Trainer, TrainingConfig, launch_ranks


class BrokenOnce(Standard):
    """NaN at the fifth call, in the last process alone."""

    calls = 0

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        type(self).calls += 1
        step = Standard.loss(self, model, examples)
        ranks = distributed.get_world_size() if distributed.is_initialized() else 1
        mine = ranks == 1 or distributed.get_rank() == ranks - 1
        return replace(step, loss=step.loss * (float("nan") if mine and self.calls == 5 else 1.0))


ATTACK = PGD(steps=2, step_size=0.05, keep_best=False)
# plain SGD, whose updates are no larger than rounding errors where gradients are
PLAN = TrainingConfig(
    epochs=3,
    batch_size=16,
    optimizer=SGD(lr=0.05),
    ema=0.9,
    clip_grad=1.0,
    augment=PadCrop(1),
    mixing=Mixing(mixup=0.8, cutmix=1.0),
    checkpoint_every_steps=2,
)
KINDS: dict[str, tuple[Objective, TrainingConfig]] = {
    "trades": (TRADES(ATTACK, Linf(0.1), smoothing=0.1), PLAN),
    "awp": (AWP(Adversarial(ATTACK, Linf(0.1)), gamma=0.05), replace(PLAN, grad_accum_steps=2)),
    "shard": (TRADES(ATTACK, Linf(0.1), smoothing=0.1), replace(PLAN, shard=True)),
    "steps-1": (Adversarial(replace(ATTACK, steps=1), Linf(0.1)), replace(PLAN, epochs=1)),
    "steps-4": (Adversarial(replace(ATTACK, steps=4), Linf(0.1)), replace(PLAN, epochs=1)),
    "scaling": (
        # cut into candidates of 4 images: two for each of two ranks and of two parts
        AttentionScaling(AWP(TRADES(ATTACK, Linf(0.1))), 1, scaling=replace(Scaling.paper(), batches=1, batch_size=4)),
        replace(PLAN, grad_accum_steps=2),
    ),
    "scaling-literal": (
        # a chain of candidates, each measured from the one before it
        AttentionScaling(TRADES(ATTACK, Linf(0.1)), 1, scaling=replace(Scaling.literal(), batches=1, batch_size=4)),
        replace(PLAN, grad_accum_steps=2),
    ),
    "tradeoff": (TORATraining(ATTACK, Linf(0.1)), replace(PLAN, grad_accum_steps=2)),
    "tradeoff-awp": (AWP(TORATraining(ATTACK, Linf(0.1)), gamma=0.05), PLAN),
    "tora-standard": (Standard(), PLAN),
    "broken": (BrokenOnce(), replace(PLAN, log_every_steps=1)),
    "parts-2": (Adversarial(ATTACK, Linf(0.1)), replace(PLAN, epochs=1, grad_accum_steps=2)),
}


class Interruption(BaseException):
    """Simulates an interruption."""


def count_exchanges(folder: Path) -> None:
    """Record the number of gradient reductions after each."""
    build, exchanges = DistributedDataParallel.__init__, 0

    def hook(state: object, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        nonlocal exchanges
        exchanges += 1
        (folder / f"exchanges-{distributed.get_rank()}").write_text(str(exchanges))
        return allreduce_hook(distributed.distributed_c10d._get_default_group(), bucket)

    def counted(self: DistributedDataParallel, *args: object, **values: object) -> None:
        build(self, *args, **values)  # type: ignore[arg-type]
        self.register_comm_hook(None, hook)

    DistributedDataParallel.__init__ = counted  # type: ignore[method-assign]


def main() -> None:
    torch.set_num_threads(1)
    folder, kind, *last = sys.argv[1:]
    objective, plan = KINDS[kind]
    split = data.load("digits[:80]", preprocess=data.Squash(8)).train
    assert split is not None
    options = {"depth": 2, "embed_dim": 32, "num_heads": 2}
    model = models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=options)

    if kind.startswith(("tradeoff", "tora")):
        model = models.tora(model)

    def interrupt(what: str, done: int, total: int, numbers: object) -> None:
        if last and done == int(last[0]):
            raise Interruption

    count_exchanges(Path(folder).parent)
    run = Run.claim(Path(folder), "train", {"seed": 0}, device="cpu", ranks=launch_ranks())
    try:
        Trainer(model, objective, split, plan, run, seed=5, validate=lambda net: {"clean": 0.0}, notify=interrupt).fit()
    except Interruption:
        sys.exit(9)


if __name__ == "__main__":
    main()
