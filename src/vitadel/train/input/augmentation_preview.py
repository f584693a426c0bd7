"""Previews of augmentation: images as the updates of a training get them, and with a single transform.

Shape letters: B images, K classes.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from vitadel.data import Split
from vitadel.train.config import TrainingConfig, update_seed
from vitadel.train.input.augment import Augment, Chain, Erase, Flip
from vitadel.train.input.loader import Loader
from vitadel.train.input.mixing import Mixing
from vitadel.train.input.pil_augment import PILAugment
from vitadel.train.input.sampler import BatchIndex

_NONE = PILAugment(resized_crop=False, flip=False, color_jitter=0.0)


def preview_batches(
    split: Split, config: TrainingConfig, count: int, num_classes: int, *, steps: int, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """The first images of a split as the first `steps` updates would get them, if these were the batch of each update.

    Args:
        split: The training images.
        config: The configuration of the training.
        count: The number of images.
        num_classes: The number of classes of the data set.
        steps: The number of updates.
        seed: The seed of the training.

    Returns:
        For each update [B, 3, H, W] pixels in [0, 1], and [B] labels or, for mixed images, [B, K] soft labels.
    """
    row_B = torch.arange(count)
    real_B = torch.zeros(count, dtype=torch.bool)
    loader = Loader(split, None, torch.device("cpu"), config.pil_augment)
    batches = loader.batches((BatchIndex(step, row_B, real_B, row_B) for step in range(steps)), seed=seed)
    for step, (_, x, y) in enumerate(batches):
        yield config.augmented(x, y, num_classes, seed=update_seed(seed, step), index_B=row_B)


def single_transform_configs(config: TrainingConfig) -> dict[str, TrainingConfig]:
    """By name, the configuration with only one of its transforms, which is always applied.

    The flip of `PILAugment` is an exception: its probability is fixed to a half.
    """
    off = replace(config, pil_augment=None, augment=None, mixing=None)
    alone = {name: replace(off, pil_augment=one) for name, one in _of_pil(config.pil_augment).items()}
    steps = config.augment.steps if isinstance(config.augment, Chain) else (config.augment,)
    alone |= {type(one).__name__: replace(off, augment=_always(one)) for one in steps if one is not None}
    mixing = config.mixing or Mixing()
    if mixing.mixup:
        alone["MixUp"] = replace(off, mixing=Mixing(mixup=mixing.mixup))
    if mixing.cutmix:
        alone["CutMix"] = replace(off, mixing=Mixing(cutmix=mixing.cutmix))
    return alone


def _of_pil(augment: PILAugment | None) -> dict[str, PILAugment]:
    if augment is None:
        return {}
    scale, ratio, interpolation = augment.scale, augment.ratio, augment.interpolation
    crop = replace(_NONE, resized_crop=True, scale=scale, ratio=ratio, interpolation=interpolation)
    alone = {
        "resized crop": crop if augment.resized_crop else None,
        "flip": replace(_NONE, flip=True) if augment.flip else None,
        "color jitter": replace(_NONE, color_jitter=augment.color_jitter) if augment.color_jitter else None,
        "RandAugment": replace(_NONE, rand_augment=augment.rand_augment) if augment.rand_augment else None,
        "random erasing": replace(_NONE, erase=1.0) if augment.erase else None,
    }
    return {name: one for name, one in alone.items() if one is not None}


def _always(augment: Augment) -> Augment:
    return replace(augment, probability=1.0) if isinstance(augment, Erase | Flip) else augment
