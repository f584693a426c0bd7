"""How long, how fast, and how carefully to train."""

import enum
import math
from dataclasses import dataclass
from typing import Annotated

from torch import nn

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, CountOrZero, NotNegative, Range, check_ranges
from vitadel.models import family_of
from vitadel.objectives import ScheduleUnit
from vitadel.train.input.augment import Augment
from vitadel.train.input.mixing import Mixing
from vitadel.train.input.pil_augment import PILAugment, Workers
from vitadel.train.optimizers import OptimizerChoice

PositiveOrNull = Annotated[float, Range(gt=0, hint="Write null for none.")]


class Precision(enum.Enum):
    """What the forward and backward passes compute in; weights and perturbations are float32 in both."""

    FLOAT32 = "float32"
    BF16 = "bf16"


class Compile(enum.Enum):
    """Whether the network goes through torch.compile, and how."""

    OFF = ""
    # each block by itself, once for all that are alike: seconds, where a whole deep network takes minutes
    BLOCKS = "blocks"
    FAST = "default"
    # tries many kernels for every product and fuses what follows it: minutes to compile, for long runs
    BEST = "max-autotune-no-cudagraphs"

    def applied(self, net: nn.Module) -> None:
        if self is Compile.OFF:
            return
        compile_units = family_of(net).compile_units(net) if self is Compile.BLOCKS else ()
        mode = None if self is Compile.BLOCKS else self.value
        for module in compile_units or (net,):
            module.compile(dynamic=False, mode=mode)


class Rule(enum.Enum):
    """How the peak learning rate follows the batch."""

    FIXED = "not at all"
    LINEAR = "in proportion"
    ROOT = "with its square root"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about training but what is minimized and on what.

    `batch` counts the images of all devices together; `accumulate` cuts it into so many parts, one after the other.

    The learning rate rises from `warmup_lr` over `warmup_epochs`, falls along a cosine to `min_lr` until `epochs`, and
    stays there for `cooldown_epochs` more. With `step_every` it is multiplied by `step_factor` every so many epochs
    instead. It moves with every update, or with every epoch. The cosine begins where the warm-up ends; with
    `cosine_from_start` it begins at 0 and the warm-up hides its first part, as timm's does, so that the peak is never
    quite reached. The peak is the optimizer's lr, for a batch of `lr_batch` if `lr_rule` is not fixed.

    `compile` sends the network through torch.compile: block by block, fast or best. On a single GPU its passes are then
    also recorded as CUDA graphs, unless `accumulate` or `checkpoint_activations` are set. With `attack_model`, attacks
    in bf16 are crafted on a copy of the model whose every layer is bf16; without, on the model itself, whose norms and
    sums stay float32.

    With `checkpoint_activations` the backward pass computes again what it needs instead of keeping it. With `shard`
    each process keeps a part of the weights (FSDP) instead of all of them (DDP).

    `ema` is the share of the average that one update keeps: for a batch of `ema_batch`, if that is given. With
    `ema_warmup` it is at most (1 + n) / (10 + n) at update n, so that the average follows at first; for the first
    `ema_after` of training the average is a copy.

    `augment` changes images on the device; `host` does it where they are read, which files at full resolution and
    RandAugment need, in `workers` processes. Each image comes `repeats` times in a row, and so fewer of them.
    """

    epochs: Count
    batch: Count
    optimizer: OptimizerChoice
    lr_rule: Rule = Rule.FIXED
    lr_batch: Count = 512
    warmup_epochs: NotNegative = 0.0
    warmup_lr: NotNegative = 0.0
    min_lr: NotNegative = 0.0
    cooldown_epochs: CountOrZero = 0
    step_every: PositiveOrNull | None = None
    step_factor: Annotated[float, Range(gt=0, le=1)] = 0.1
    lr_each: ScheduleUnit = ScheduleUnit.STEP
    cosine_from_start: bool = False
    clip_norm: PositiveOrNull | None = None
    ema: Annotated[float, Range(gt=0, lt=1, hint="Write for example 0.9999.")] | None = None
    ema_batch: Count | None = None
    ema_warmup: bool = False
    ema_after: Annotated[float, Range(ge=0, lt=1, hint="It is a share of training.")] = 0.0
    precision: Precision = Precision.FLOAT32
    compile: Compile = Compile.OFF
    attack_model: bool = False
    accumulate: Count = 1
    checkpoint_activations: bool = False
    shard: bool = False
    augment: Augment | None = None
    mixing: Mixing | None = None
    host: PILAugment | None = None
    workers: Workers = 0
    repeats: Count = 1
    check_every_epochs: Count = 1
    checkpoint_every_steps: Count = 500
    log_every_steps: Count = 20

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.warmup_epochs < self.epochs:
            raise UsageError(
                f"Plan.warmup_epochs must lie in [0, epochs), got {self.warmup_epochs:g} of {self.epochs}."
            )
        if self.ema is not None and not 0 < self.full_ema < 1:
            raise UsageError(
                f"Plan.ema of {self.ema:g} for a batch of {self.ema_batch} is {self.full_ema:g} for one of "
                f"{self.batch}, outside of (0, 1). Choose a larger ema or ema_batch."
            )
        if self.batch % self.accumulate:
            raise UsageError(f"Plan.batch of {self.batch} cannot be cut into {self.accumulate} equal parts.")

    @property
    def all_epochs(self) -> int:
        """Those of the schedule and those of the cool-down."""
        return self.epochs + self.cooldown_epochs

    @property
    def full_ema(self) -> float:
        """What one update keeps of the average once any warm-up is over."""
        assert self.ema is not None
        return self.ema if self.ema_batch is None else 1 - (1 - self.ema) * self.batch / self.ema_batch

    @property
    def peak_lr(self) -> float:
        power = {Rule.FIXED: 0.0, Rule.LINEAR: 1.0, Rule.ROOT: 0.5}[self.lr_rule]
        return self.optimizer.lr * (self.batch / self.lr_batch) ** power


def learning_rate(plan: Plan, step: int, steps_per_epoch: int) -> float:
    """The rate of update number `step`, counted from 0: a pure function, so nothing about it has to be saved."""
    peak = plan.peak_lr
    # an epoch's rate is that of its beginning; of an update's, the warm-up's is that of its end, or the first were 0
    by_epoch = plan.lr_each is ScheduleUnit.EPOCH
    now = step // steps_per_epoch if by_epoch else step / steps_per_epoch
    if now < plan.warmup_epochs:
        success = now if by_epoch else (step + 1) / steps_per_epoch
        return plan.warmup_lr + (peak - plan.warmup_lr) * min(1.0, success / plan.warmup_epochs)
    if plan.step_every is not None:
        return peak * plan.step_factor ** math.floor(now / plan.step_every)
    begin = 0.0 if plan.cosine_from_start else plan.warmup_epochs
    progress = min(1.0, (now - begin) / (plan.epochs - begin))
    return plan.min_lr + (peak - plan.min_lr) * (1 + math.cos(math.pi * progress)) / 2


def ema_decay(plan: Plan, step: int, total: int) -> float:
    """The share of the average that update number `step` of `total` keeps."""
    if step < plan.ema_after * total:
        return 0.0
    return min(plan.full_ema, (1 + step) / (10 + step)) if plan.ema_warmup else plan.full_ema
