"""When an update takes place, and warm-ups that depend on it."""

import enum
import math
from dataclasses import dataclass


class ScheduleUnit(enum.Enum):
    """How often a schedule changes its value."""

    STEP = "every update"
    EPOCH = "every epoch"


@dataclass(frozen=True, slots=True)
class TrainingTime:
    """When an update takes place.

    Args:
        epoch: Epochs done once the update is made, a fraction.
        epochs: Epochs in all.
        updates: Updates per epoch.
    """

    epoch: float
    epochs: float
    updates: int = 1

    @property
    def epoch_index(self) -> int:
        """The running epoch, counted from 0."""
        return math.ceil(self.epoch) - 1

    @property
    def update_in_epoch(self) -> int:
        """The update within the running epoch, counted from 0."""
        return round((self.epoch - self.epoch_index) * self.updates) - 1

    def warmup(self, share: float, unit: ScheduleUnit) -> float:
        """A factor from 0 to 1 over the first `share` of training: linear, or constant in each epoch from 0 on."""
        until = share * self.epochs
        now = self.epoch if unit is ScheduleUnit.STEP else self.epoch_index
        return min(1.0, now / until) if until > 0 else 1.0
