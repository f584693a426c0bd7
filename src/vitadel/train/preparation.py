"""What has to be settled before the first update: whether all parts of a run fit together."""

from dataclasses import dataclass

import torch
from accelerate import PartialState
from accelerate.utils import convert_outputs_to_fp32

from vitadel.core.distributed import Ranks, set_launch_environment
from vitadel.core.errors import UsageError
from vitadel.core.numeric import check_ranges, check_seed
from vitadel.data import Shards, Split
from vitadel.models import Model, attention_scales
from vitadel.objectives import AWP, Objective
from vitadel.train.config import Compile, Plan
from vitadel.train.input.sampler import Order, Share


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Images from a generator, and the share of every batch they make up."""

    images: Shards
    share: Share

    def __post_init__(self) -> None:
        check_ranges(self)


def launch_ranks() -> Ranks:
    """The processes of this launch, on the process group that accelerate sets up for training."""
    set_launch_environment()
    PartialState()
    return Ranks.of_launch()


def order_of(train: Split, synthetic: Synthetic | None, plan: Plan, seed: int, world: int) -> Order:
    if len(train) == 0:
        raise UsageError("the training split is empty. Choose another data set or a longer slice.")
    batch = min(plan.batch, len(train)) if synthetic is None else plan.batch
    if batch % (world * plan.accumulate) and (world > 1 or batch == plan.batch):
        raise UsageError(f"a batch of {batch} cannot be shared evenly by {world} processes in {plan.accumulate} parts.")
    if plan.mixing is not None and world > 1 and plan.batch % (2 * world):
        raise UsageError(f"plan.mixing pairs images within a process: plan.batch must be a multiple of {2 * world}.")
    if synthetic is None:
        return Order(len(train), batch, seed, repeats=plan.repeats)
    if plan.host is not None:
        raise UsageError("synthetic images are augmented on the device. Set plan.augment instead of plan.host.")
    size = train.pixels.read(torch.tensor([0])).shape[-1]
    if synthetic.images.image_size != size:
        made = synthetic.images.image_size
        raise UsageError(
            f"the synthetic images have {made} x {made} pixels, the real ones {size} x {size}. "
            "Convert an archive of the right resolution, or change the recipe's preprocess."
        )
    return Order(len(train), plan.batch, seed, len(synthetic.images), synthetic.share)


def begin_training(
    model: Model,
    objective: Objective,
    train: Split,
    plan: Plan,
    synthetic: Synthetic | None,
    *,
    seed: int,
    world: int | None = None,
) -> Order:
    """The order of the images, once all parts are known to go together; the model then holds what `objective` needs.

    Called before a run folder is taken, so that a mistake leaves none behind, and again by `fit`; the second call
    changes nothing.

    Args:
        world: How many processes share the work; by default those of this launch.
    """
    check_seed(seed)
    refuse_what_cannot_be_cut(plan, objective)
    order = order_of(train, synthetic, plan, seed, PartialState().num_processes if world is None else world)
    objective.begin(model)
    refuse_what_hides_attention(plan, model)
    if plan.checkpoint_activations:
        checkpoint_activations(model)
    return order


def refuse_what_cannot_be_cut(plan: Plan, objective: Objective) -> None:
    if plan.shard and isinstance(objective, AWP):
        raise UsageError("AWP moves whole weights, and plan.shard cuts them. Set plan.shard=false.")
    if plan.shard and objective.selective:
        raise UsageError(
            f"{type(objective).__name__} trains other weights at every update, and plan.shard cuts all of them alike. "
            "Set plan.shard=false."
        )


def refuse_what_hides_attention(plan: Plan, model: Model) -> None:
    """Factors for the attention work through taps, which not every way of computing a network sees."""
    if not attention_scales.has_factors(model.net):
        return
    hidden = {
        "plan.compile=off": plan.compile is not Compile.OFF,
        "plan.shard=false": plan.shard,
        "plan.checkpoint_activations=false": plan.checkpoint_activations,
    }
    if wanted := [setting for setting, hides in hidden.items() if hides]:
        raise UsageError(
            "the attention of this model is scaled, and neither compiled code nor cut weights nor recomputed "
            f"activations go with that. Set {' and '.join(wanted)}."
        )


def is_recordable(plan: Plan, device: torch.device) -> bool:
    """Whether passes may be recorded: who lets a network be compiled says that it is a function of tensors alone."""
    plain = plan.accumulate == 1 and not plan.checkpoint_activations and not plan.shard
    return device.type == "cuda" and plan.compile is not Compile.OFF and plain


def checkpoint_activations(model: Model) -> None:
    switch = getattr(model.net, "set_grad_checkpointing", None)
    if not callable(switch):
        raise UsageError(
            f"{type(model.net).__name__} cannot recompute activations. Set plan.checkpoint_activations=false."
        )
    switch(True)


def answer_as_asked(model: Model) -> None:
    """Take bf16 out of the model itself, where accelerate put it: updates ask for it, hold-out and AAS must not get it.

    What accelerate does beside is kept: answers are float32 numbers, in whatever they were computed.
    """
    plain = model.__dict__.pop("_original_forward", None)
    if plain is not None:
        model.forward = convert_outputs_to_fp32(plain)  # type: ignore[method-assign]
