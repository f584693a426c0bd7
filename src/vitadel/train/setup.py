"""Set-up of a training: whether model, objective, data and configuration are compatible, and the order of images."""

from dataclasses import dataclass

import torch

from vitadel.core.errors import UsageError
from vitadel.core.numeric import check_ranges, check_seed
from vitadel.data import Shards, Split, check_not_empty
from vitadel.models import Model, attention_scales
from vitadel.objectives import AWP, Objective
from vitadel.train.config import Compile, TrainingConfig
from vitadel.train.distributed import process_state
from vitadel.train.input.sampler import Sampler, Share


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Synthetic images, and their share of every batch."""

    images: Shards
    share: Share

    def __post_init__(self) -> None:
        check_ranges(self)


def set_up(
    model: Model,
    objective: Objective,
    train: Split,
    config: TrainingConfig,
    synthetic: Synthetic | None,
    *,
    seed: int,
    world_size: int | None = None,
) -> Sampler:
    """Check that all parts of a training are compatible, and prepare the model.

    Called before a run folder is created, so that errors leave no folder behind, and again by the `Trainer`; the second
    call has no further effect.

    Args:
        model: The model; buffers that the objective needs are added.
        objective: The objective to minimize.
        train: The training images.
        config: All other settings.
        synthetic: Synthetic images for every batch.
        seed: The seed of the run.
        world_size: The number of processes; by default that of this launch.

    Returns:
        The order of the images.

    Raises:
        UsageError: If something is incompatible; the message says which setting to change.
    """
    check_seed(seed)
    if config.shard and isinstance(objective, AWP):
        raise UsageError("AWP perturbs whole weight tensors, and plan.shard shards them. Set plan.shard=false.")
    if config.shard and objective.trains_subsets:
        raise UsageError(
            f"{type(objective).__name__} trains different weights at every update, and plan.shard shards all of them. "
            "Set plan.shard=false."
        )
    sampler = make_sampler(
        train, synthetic, config, seed, process_state().num_processes if world_size is None else world_size
    )
    objective.prepare_model(model)
    _check_attention_visible(config, model, objective)
    if config.grad_checkpointing:
        _checkpoint_activations(model)
    return sampler


def make_sampler(
    train: Split, synthetic: Synthetic | None, config: TrainingConfig, seed: int, world_size: int
) -> Sampler:
    """The order of the images, for batches that are divided among `world_size` processes."""
    check_not_empty(train, "the training split", "train on")
    size = min(config.batch_size, len(train)) if synthetic is None else config.batch_size
    if size % (world_size * config.grad_accum_steps) and (world_size > 1 or size == config.batch_size):
        raise UsageError(
            f"a batch of {size} cannot be divided evenly among {world_size} processes in {config.grad_accum_steps} "
            f"parts. Set plan.batch_size to a multiple of {world_size * config.grad_accum_steps}."
        )
    if config.mixing is not None and world_size > 1 and config.batch_size % (2 * world_size):
        raise UsageError(
            f"plan.mixing pairs images within a process, got plan.batch_size={config.batch_size}. "
            f"Set plan.batch_size to a multiple of {2 * world_size}."
        )
    if synthetic is None:
        return Sampler(len(train), size, seed, repeats=config.repeats)
    if config.pil_augment is not None:
        raise UsageError("synthetic images are augmented on the device. Set plan.augment instead of plan.pil_augment.")
    side, synthetic_side = train.pixels.read(torch.tensor([0])).shape[-1], synthetic.images.image_size
    if synthetic_side != side:
        raise UsageError(
            f"the synthetic images have {synthetic_side} x {synthetic_side} pixels, the real ones {side} x {side}. "
            "Convert an archive of the right resolution, or change the recipe's preprocess."
        )
    return Sampler(len(train), config.batch_size, seed, len(synthetic.images), synthetic.share)


def _check_attention_visible(config: TrainingConfig, model: Model, objective: Objective) -> None:
    """Attention scaling and some objectives use taps, which compiled, sharded or recomputed layers do not call."""
    scaled = attention_scales.has_factors(model.net)
    if not (scaled or objective.uses_taps):
        return
    hidden = {
        "plan.compile=off": config.compile is not Compile.OFF,
        "plan.shard=false": config.shard,
        "plan.grad_checkpointing=false": config.grad_checkpointing,
    }
    why = "the attention of this model is scaled" if scaled else "the objective changes gradients of the attention"
    if settings := [setting for setting, hides in hidden.items() if hides]:
        raise UsageError(
            f"{why}; this does not work with compiled code, sharded weights or gradient checkpointing. "
            f"Set {' and '.join(settings)}."
        )


def _checkpoint_activations(model: Model) -> None:
    switch = getattr(model.net, "set_grad_checkpointing", None)
    if not callable(switch):
        raise UsageError(
            f"{type(model.net).__name__} does not support gradient checkpointing. Set plan.grad_checkpointing=false."
        )
    switch(True)
