"""Loop, optimiser, schedules, averaging, checkpointing, distribution."""

from vitadel.train.alarms import Alarm, alarms
from vitadel.train.augment import Augment, Chain, ColourJitter, Erase, Flip, PadCrop, ResizedCrop, Rotate
from vitadel.train.host import HostAugment
from vitadel.train.loop import Check, fit
from vitadel.train.meters import achieved_flops, forward_flops, peak_flops
from vitadel.train.mixing import Mixing
from vitadel.train.optimisers import SGD, AdamW, Decay, Lion, OptimiserChoice
from vitadel.train.order import Order
from vitadel.train.plan import Compile, Plan, Precision, Rule, ema_decay, learning_rate
from vitadel.train.preparation import Synthetic, begin_training
from vitadel.train.ranks import claim_together

__all__ = [
    "SGD",
    "AdamW",
    "Alarm",
    "Augment",
    "Chain",
    "Check",
    "ColourJitter",
    "Compile",
    "Decay",
    "Erase",
    "Flip",
    "HostAugment",
    "Lion",
    "Mixing",
    "OptimiserChoice",
    "Order",
    "PadCrop",
    "Plan",
    "Precision",
    "ResizedCrop",
    "Rotate",
    "Rule",
    "Synthetic",
    "achieved_flops",
    "alarms",
    "begin_training",
    "claim_together",
    "ema_decay",
    "fit",
    "forward_flops",
    "learning_rate",
    "peak_flops",
]
