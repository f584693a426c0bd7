"""Loop, optimiser, schedules, averaging, checkpointing, distribution."""

from vitadel.train.augment import Augment, PadCrop
from vitadel.train.loop import Check, fit
from vitadel.train.optimisers import SGD, AdamW, Lion, OptimiserChoice
from vitadel.train.plan import Plan, Precision, learning_rate
from vitadel.train.ranks import claim_together

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
    "claim_together",
    "fit",
    "learning_rate",
]
