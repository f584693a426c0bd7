"""The configuration of a training, and its learning rate schedule."""

import enum
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, CountOrZero, NonNegative, Range, check_ranges
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.models import family_of
from vitadel.objectives import ScheduleUnit
from vitadel.train.input.augment import Augment
from vitadel.train.input.mixing import Mixing
from vitadel.train.input.pil_augment import PILAugment, Workers
from vitadel.train.optim import OptimizerConfig, Rate

PositiveOrNull = Annotated[float, Range(gt=0, hint="Write none to leave it unset.")]

# the stream of updates of the seed of a run, and streams of the seed of one update
_UPDATES, _AUGMENT, _MIX = 2, 1, 2


class Precision(enum.Enum):
    """The precision of forward and backward passes; weights and perturbations are float32 in both."""

    FLOAT32 = "float32"
    BF16 = "bf16"


class Compile(enum.Enum):
    """Whether and how the network is compiled with torch.compile."""

    OFF = ""
    # each block separately, once for blocks of the same structure: seconds instead of minutes for a deep network
    BLOCKS = "blocks"
    FAST = "default"
    # autotunes the kernel of every product and fuses the operations after it: minutes to compile, for long runs
    BEST = "max-autotune-no-cudagraphs"

    def apply(self, net: nn.Module) -> None:
        """Compile the network in place."""
        if self is Compile.OFF:
            return
        compile_units = family_of(net).compile_units(net) if self is Compile.BLOCKS else ()
        mode = None if self is Compile.BLOCKS else self.value
        for module in compile_units or (net,):
            module.compile(dynamic=False, mode=mode)


class LRScaling(enum.Enum):
    """How the peak learning rate scales with the batch size."""

    FIXED = "not at all"
    LINEAR = "in proportion"
    ROOT = "with its square root"


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """Everything about training except the objective and the data.

    The learning rate rises from `warmup_lr` over `warmup_epochs`, follows a cosine to `min_lr` until `epochs`, and
    stays there for `cooldown_epochs`.

    Args:
        epochs: Epochs of the schedule.
        batch_size: Images of all devices together.
        optimizer: AdamW, Lion or SGD; its `lr` is the peak, for batches of `lr_batch_size` unless `lr_scaling` is
            fixed.
        lr_scaling: How the peak scales with the batch size.
        lr_batch_size: The batch size that the optimizer's `lr` is for.
        warmup_epochs: Epochs of linear warm-up.
        warmup_lr: The rate that it begins with.
        min_lr: The rate at the end of the cosine.
        cooldown_epochs: Epochs at `min_lr` after that.
        decay_epochs: With a number, the rate is multiplied by `decay_rate` every `decay_epochs` epochs, instead of the
            cosine.
        decay_rate: The factor of `decay_epochs`.
        lr_unit: Whether the rate changes with every update or with every epoch.
        cosine_from_start: Whether the cosine begins at 0 and the warm-up replaces its first part, as in timm, so that
            the peak is never quite reached; otherwise it begins where the warm-up ends.
        clip_grad: The maximum norm of the gradient.
        ema: The decay of the averaged weights, which are then the ones evaluated; for batches of `ema_batch_size`, if
            given.
        ema_batch_size: The batch size that `ema` is for.
        ema_warmup: Whether the decay is at most (1 + n) / (10 + n) at update n.
        ema_after: The share of training in which the average is a copy of the weights.
        precision: The precision of forward and backward passes.
        compile: Whether and how the network is compiled with torch.compile. On a single GPU its passes are then also
            captured as CUDA graphs, unless `grad_accum_steps` or `grad_checkpointing` is set.
        attack_model: Whether attacks in bf16 run on a copy of the model entirely in bf16; otherwise they run on the
            model itself under autocast, with norms and sums in float32.
        grad_accum_steps: The number of parts in which a batch is computed (gradient accumulation).
        grad_checkpointing: Whether the backward pass recomputes activations instead of storing them.
        shard: Whether the weights are sharded over the processes (FSDP) instead of replicated (DDP).
        augment: Augmentation on the device.
        mixing: MixUp and CutMix.
        pil_augment: Augmentation in loader processes, for crops of files at full size and for RandAugment.
        num_workers: Loader processes for `pil_augment`; 0 uses this process.
        repeats: How often each image appears in a row (repeated augmentation); an epoch has fewer distinct images.
        validate_every_epochs: Epochs between validations.
        checkpoint_every_steps: Updates between checkpoints.
        log_every_steps: Updates between lines of the log.

    Raises:
        UsageError: If a value is out of its range, or two are incompatible.

    Example:
        >>> config = TrainingConfig(epochs=10, batch_size=1024, optimizer=AdamW(lr=1e-3), cooldown_epochs=2)
        >>> config.total_epochs
        12
        >>> replace(config, lr_scaling=LRScaling.LINEAR).peak_lr  # the rate is for a batch of 512
        0.002
    """

    former_names: ClassVar[dict[str, str]] = {
        "batch": "batch_size",
        "host": "pil_augment",
        "workers": "num_workers",
        "lr_rule": "lr_scaling",
        "lr_each": "lr_unit",
        "optimiser": "optimizer",
        "understudy": "attack_model",
        "lr_batch": "lr_batch_size",
        "ema_batch": "ema_batch_size",
        "step_every": "decay_epochs",
        "step_factor": "decay_rate",
        "clip_norm": "clip_grad",
        "accumulate": "grad_accum_steps",
        "checkpoint_activations": "grad_checkpointing",
        "check_every_epochs": "validate_every_epochs",
    }

    epochs: Count
    batch_size: Count
    optimizer: OptimizerConfig
    lr_scaling: LRScaling = LRScaling.FIXED
    lr_batch_size: Count = 512
    warmup_epochs: NonNegative = 0.0
    warmup_lr: Rate = 0.0
    min_lr: Rate = 0.0
    cooldown_epochs: CountOrZero = 0
    decay_epochs: PositiveOrNull | None = None
    decay_rate: Annotated[float, Range(gt=0, le=1)] = 0.1
    lr_unit: ScheduleUnit = ScheduleUnit.STEP
    cosine_from_start: bool = False
    clip_grad: PositiveOrNull | None = None
    ema: Annotated[float, Range(gt=0, lt=1, hint="Write for example 0.9999.")] | None = None
    ema_batch_size: Count | None = None
    ema_warmup: bool = False
    ema_after: Annotated[float, Range(ge=0, lt=1, hint="It is a share of training.")] = 0.0
    precision: Precision = Precision.FLOAT32
    compile: Compile = Compile.OFF
    attack_model: bool = False
    grad_accum_steps: Count = 1
    grad_checkpointing: bool = False
    shard: bool = False
    augment: Augment | None = None
    mixing: Mixing | None = None
    pil_augment: PILAugment | None = None
    num_workers: Workers = 0
    repeats: Count = 1
    validate_every_epochs: Count = 1
    checkpoint_every_steps: Count = 500
    log_every_steps: Count = 20

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.warmup_epochs < self.epochs:
            raise UsageError(
                f"TrainingConfig.warmup_epochs must lie in [0, epochs), got {self.warmup_epochs:g} of {self.epochs}. "
                "Lower it."
            )
        if self.ema is not None and not 0 < self.ema_per_update < 1:
            raise UsageError(
                f"TrainingConfig.ema of {self.ema:g} for a batch of {self.ema_batch_size} is {self.ema_per_update:g} "
                f"for one of {self.batch_size}, outside of (0, 1). Choose a larger ema or ema_batch_size."
            )
        if self.batch_size % self.grad_accum_steps:
            raise UsageError(
                f"TrainingConfig.batch_size of {self.batch_size} cannot be divided into {self.grad_accum_steps} equal "
                "parts. Change one of them."
            )

    @property
    def total_epochs(self) -> int:
        """The epochs of the schedule and of the cool-down."""
        return self.epochs + self.cooldown_epochs

    @property
    def ema_per_update(self) -> float:
        """The decay of the averaged weights per update, after any warm-up."""
        assert self.ema is not None
        return self.ema if self.ema_batch_size is None else 1 - (1 - self.ema) * self.batch_size / self.ema_batch_size

    @property
    def peak_lr(self) -> float:
        """The peak learning rate for this batch size."""
        power = {LRScaling.FIXED: 0.0, LRScaling.LINEAR: 1.0, LRScaling.ROOT: 0.5}[self.lr_scaling]
        return self.optimizer.lr * (self.batch_size / self.lr_batch_size) ** power

    def supports_cuda_graphs(self, device: torch.device) -> bool:
        """Whether passes may be captured: a network that can be compiled is a function of tensors only."""
        plain = self.grad_accum_steps == 1 and not self.grad_checkpointing and not self.shard
        return device.type == "cuda" and self.compile is not Compile.OFF and plain

    def augmented(self, x: Tensor, y: Tensor, num_classes: int, *, seed: int, index_B: Tensor) -> tuple[Tensor, Tensor]:
        """The batch as an update trains on it: augmented on its device, then mixed."""
        if self.augment is not None:
            x = self.augment(x, RandomStreams.of(fold_seed(seed, _AUGMENT), index_B))
        return (x, y) if self.mixing is None else self.mixing(x, y, num_classes, seed=fold_seed(seed, _MIX))


def update_seed(seed: int, step: int) -> int:
    """The seed of all random numbers in update `step` of a run."""
    return fold_seed(seed, _UPDATES, step)


def learning_rate(config: TrainingConfig, step: int, steps_per_epoch: int) -> float:
    """The learning rate of update `step`, counted from 0; a pure function, so that checkpoints need no scheduler."""
    peak = config.peak_lr
    # by epoch, the schedule uses the start of the epoch; by update, the start of the update, but in the warm-up its
    # end, because the first rate would be 0 otherwise
    by_epoch = config.lr_unit is ScheduleUnit.EPOCH
    now = step // steps_per_epoch if by_epoch else step / steps_per_epoch
    if now < config.warmup_epochs:
        warmed = now if by_epoch else (step + 1) / steps_per_epoch
        return config.warmup_lr + (peak - config.warmup_lr) * min(1.0, warmed / config.warmup_epochs)
    if config.decay_epochs is not None:
        return peak * config.decay_rate ** math.floor(now / config.decay_epochs)
    begin = 0.0 if config.cosine_from_start else config.warmup_epochs
    progress = min(1.0, (now - begin) / (config.epochs - begin))
    return config.min_lr + (peak - config.min_lr) * (1 + math.cos(math.pi * progress)) / 2


def ema_decay(config: TrainingConfig, step: int, total: int) -> float:
    """The decay of the averaged weights at update `step` of `total`."""
    if step < config.ema_after * total:
        return 0.0
    return min(config.ema_per_update, (1 + step) / (10 + step)) if config.ema_warmup else config.ema_per_update
