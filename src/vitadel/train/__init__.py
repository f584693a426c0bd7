"""Loop, optimiser, schedules, averaging, checkpointing, distribution."""

from vitadel.train.augment import Augment, PadCrop
from vitadel.train.loop import Check, fit
from vitadel.train.optimisers import SGD, AdamW, Lion, OptimiserChoice
from vitadel.train.plan import Plan, Precision, learning_rate

__all__ = [
    "SGD",
    "AdamW",
    "Augment",
    "Check",
    "Lion",
    "OptimiserChoice",
    "PadCrop",
    "Plan",
    "Precision",
    "fit",
    "learning_rate",
]
