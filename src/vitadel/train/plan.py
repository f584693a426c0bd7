"""How long, how fast, and how carefully to train."""

import enum
import math
from dataclasses import dataclass

from vitadel.errors import UsageError
from vitadel.train.augment import Augment
from vitadel.train.optimisers import OptimiserChoice


class Precision(enum.Enum):
    """What the forward and backward passes compute in; weights and perturbations are float32 in both."""

    FLOAT32 = "float32"
    BF16 = "bf16"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about training but what is minimised and on what.

    `batch` counts the images of all devices together. The learning rate rises linearly over `warmup_epochs`, then
    falls along a cosine to `min_lr`, both per step. `ema` is the share of the average that one step keeps.
    """

    epochs: int
    batch: int
    optimiser: OptimiserChoice
    warmup_epochs: float = 0.0
    min_lr: float = 0.0
    clip_norm: float | None = None
    ema: float | None = None
    precision: Precision = Precision.FLOAT32
    augment: Augment | None = None
    check_every_epochs: int = 1
    checkpoint_every_steps: int = 500
    log_every_steps: int = 20

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "check_every_epochs", "checkpoint_every_steps", "log_every_steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"Plan.{name} must be at least 1, got {getattr(self, name)}.")
        if not 0 <= self.warmup_epochs < self.epochs:
            raise UsageError(
                f"Plan.warmup_epochs must lie in [0, epochs), got {self.warmup_epochs:g} of {self.epochs}."
            )
        if self.ema is not None and not 0 < self.ema < 1:
            raise UsageError(f"Plan.ema must lie in (0, 1), got {self.ema:g}. Write for example 0.9999.")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise UsageError(f"Plan.clip_norm must be positive, got {self.clip_norm:g}. Write null for none.")


def learning_rate(plan: Plan, step: int, steps_per_epoch: int) -> float:
    """The rate of update number `step`, counted from 0: a pure function, so nothing about it has to be saved."""
    warmup = round(plan.warmup_epochs * steps_per_epoch)
    total = plan.epochs * steps_per_epoch
    if step < warmup:
        return plan.optimiser.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return plan.min_lr + (plan.optimiser.lr - plan.min_lr) * (1 + math.cos(math.pi * progress)) / 2
