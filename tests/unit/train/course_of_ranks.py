"""One training, to be started by a launcher: python course_of_ranks.py FOLDER KIND [LAST_STEP]."""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from vitadel import data, models
from vitadel.attacks import PGD
from vitadel.objectives import AWP, Adversarial, Objective, Trades
from vitadel.threat import Linf
from vitadel.train import SGD, Mixing, PadCrop, Plan, claim_together, fit

ATTACK = PGD(steps=2, step_size=0.05, keep_best=False)
# plain SGD, whose updates are no larger than rounding errors where gradients are
PLAN = Plan(
    epochs=3,
    batch=16,
    optimiser=SGD(lr=0.05),
    ema=0.9,
    clip_norm=1.0,
    augment=PadCrop(1),
    mixing=Mixing(mixup=0.8, cutmix=1.0),
    checkpoint_every_steps=2,
)
KINDS: dict[str, tuple[Objective, Plan]] = {
    "trades": (Trades(ATTACK, Linf(0.1), smoothing=0.1), PLAN),
    "awp": (AWP(Adversarial(ATTACK, Linf(0.1)), gamma=0.05), replace(PLAN, accumulate=2)),
    "shard": (Trades(ATTACK, Linf(0.1), smoothing=0.1), replace(PLAN, shard=True)),
}


class Enough(BaseException):
    """Stands for a kill."""


def main() -> None:
    torch.set_num_threads(1)
    folder, kind, *last = sys.argv[1:]
    objective, plan = KINDS[kind]
    split = data.load("digits[:80]", preprocess=data.Squash(8)).train
    assert split is not None
    options = {"depth": 2, "embed_dim": 32, "num_heads": 2}
    model = models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=options)

    def kill(what: str, done: int, total: int, numbers: object) -> None:
        if last and done == int(last[0]):
            raise Enough

    run = claim_together(Path(folder), "train", {"seed": 0}, device="cpu")
    try:
        fit(model, objective, split, plan, run, seed=5, check=lambda net: {"clean": 0.0}, notify=kill)
    except Enough:
        sys.exit(9)


if __name__ == "__main__":
    main()
