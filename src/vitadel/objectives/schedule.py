"""Where training stands, and how a quantity grows from nothing until then."""

import enum
import math
from dataclasses import dataclass


class ScheduleUnit(enum.Enum):
    """How often a schedule moves."""

    STEP = "every update"
    EPOCH = "every epoch"


@dataclass(frozen=True, slots=True)
class TrainingTime:
    """One update of a training: `epoch` is how far it will be, in epochs of `updates` each, when the update is made."""

    epoch: float
    epochs: float
    updates: int = 1

    @property
    def whole_epoch(self) -> int:
        """The number of the running epoch, the first being 0."""
        return math.ceil(self.epoch) - 1

    @property
    def update_in_epoch(self) -> int:
        """The number of the update within the running epoch, the first being 0."""
        return round((self.epoch - self.whole_epoch) * self.updates) - 1

    def grown(self, share: float, each: ScheduleUnit) -> float:
        """From 0 to 1 over the first `share` of training: evenly, or in stairs whose first step is at 0."""
        until = share * self.epochs
        success = self.epoch if each is ScheduleUnit.STEP else self.whole_epoch
        return min(1.0, success / until) if until > 0 else 1.0
