"""Pictures of augmentation: they are what a training sees, and each transform alone is what it should be."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import vitadel as vd
from vitadel.data import Split
from vitadel.objectives import Examples, LossOutput, Objective
from vitadel.recipes import RECIPES
from vitadel.runs import Run
from vitadel.train import (
    Chain,
    ColorJitter,
    Erase,
    Flip,
    Mixing,
    PadCrop,
    PILAugment,
    Trainer,
    TrainingConfig,
    preview_batches,
    single_transform_configs,
)

PLAN = replace(RECIPES["digits-standard"]().plan, epochs=1, batch_size=8, warmup_epochs=0)
PIL = PILAugment(resized_crop=False, erase=0.5)


@pytest.fixture(scope="module")
def split() -> Split:
    return vd.load_data("digits[:8]").split("train")


class Noting(Objective):
    """Notes the images of each update, and trains nothing."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        assert index_B is not None
        self.seen.append((x.clone(), y.clone(), index_B.clone()))
        return Examples(x, y, x)

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        return LossOutput(model(examples.x).sum() * 0)

    @property
    def loss_passes(self) -> float:
        return 3.0


@pytest.mark.parametrize("plan", [replace(PLAN, pil_augment=PIL), replace(PLAN, augment=Chain((PadCrop(2), Erase())))])
def test_they_are_what_a_training_sees(plan: TrainingConfig, split: Split, tmp_path: Path) -> None:
    """The first update of a training with the same seed, image by image; its order is another."""
    model = vd.load_model("timm:test_vit", num_classes=10, image_size=8, patch_size=2)
    run = Run.claim(tmp_path / "run", "train", {"seed": 3}, device="cpu")
    objective = Noting()
    Trainer(model, objective, split, plan, run, seed=3).fit()
    x, y, index_B = objective.seen[0]
    ((shown, labels),) = preview_batches(split, plan, len(x), 10, steps=1, seed=3)
    torch.testing.assert_close(shown[index_B], x)
    assert torch.equal(labels[index_B], y)
    assert not torch.equal(shown, split.images(torch.arange(len(shown))))


def test_updates_differ_and_are_the_same_again(split: Split) -> None:
    plan = replace(PLAN, pil_augment=PIL)
    first, second = preview_batches(split, plan, 4, 10, steps=2)
    assert not torch.equal(first[0], second[0])
    assert torch.equal(list(preview_batches(split, plan, 4, 10, steps=2))[1][0], second[0])


def test_each_transform_alone() -> None:
    steps = (PadCrop(), Flip(), ColorJitter(), Erase(0.1))
    whole = replace(
        PLAN, pil_augment=PILAugment(rand_augment="rand-m9", erase=0.25), augment=Chain(steps), mixing=Mixing(0.8, 1.0)
    )
    alone = single_transform_configs(whole)
    pil = ["resized crop", "flip", "color jitter", "RandAugment", "random erasing"]
    assert list(alone) == [*pil, "PadCrop", "Flip", "ColorJitter", "Erase", "MixUp", "CutMix"]
    off = PILAugment(resized_crop=False, flip=False, color_jitter=0.0)
    assert alone["RandAugment"].pil_augment == replace(off, rand_augment="rand-m9")
    assert alone["random erasing"].pil_augment == replace(off, erase=1.0)
    assert alone["resized crop"].pil_augment == replace(off, resized_crop=True)
    assert alone["Erase"].augment == Erase(1.0)
    assert alone["Flip"].augment == Flip(1.0)
    assert (alone["MixUp"].mixing, alone["CutMix"].mixing) == (Mixing(mixup=0.8), Mixing(cutmix=1.0))
    for one in alone.values():
        assert sum(part is not None for part in (one.pil_augment, one.augment, one.mixing)) == 1
    assert single_transform_configs(PLAN) == {}


def test_a_flip_is_the_mirror_image_and_a_mixture_a_blend(split: Split) -> None:
    x = split.images(torch.arange(4))
    ((flipped, _),) = preview_batches(split, replace(PLAN, augment=Flip(1.0)), 4, 10, steps=1)
    assert torch.equal(flipped, x.flip(-1))
    ((mixed, shares_BK),) = preview_batches(split, replace(PLAN, mixing=Mixing(mixup=1.0)), 4, 10, steps=1)
    labels = split.labels[:4]
    assert labels[0] != labels[2]
    share = float(shares_BK[0, labels[0]])
    torch.testing.assert_close(mixed[0], share * x[0] + (1 - share) * x[2])
