"""Loop, optimizer, schedules, averaging, checkpointing, distribution."""

from vitadel.train.config import Compile, Plan, Precision, Rule, ema_decay, learning_rate
from vitadel.train.input.augment import Augment, Chain, ColorJitter, Erase, Flip, PadCrop, ResizedCrop, Rotate
from vitadel.train.input.mixing import Mixing
from vitadel.train.input.pil_augment import PILAugment
from vitadel.train.input.sampler import Order
from vitadel.train.loop import Check, fit
from vitadel.train.monitor.alarms import Alarm, alarms
from vitadel.train.monitor.meters import achieved_flops, forward_flops, peak_flops
from vitadel.train.optimizers import SGD, AdamW, Decay, Lion, OptimizerChoice
from vitadel.train.preparation import Synthetic, begin_training, launch_ranks

__all__ = [
    "SGD",
    "AdamW",
    "Alarm",
    "Augment",
    "Chain",
    "Check",
    "ColorJitter",
    "Compile",
    "Decay",
    "Erase",
    "Flip",
    "Lion",
    "Mixing",
    "OptimizerChoice",
    "Order",
    "PILAugment",
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
    "ema_decay",
    "fit",
    "forward_flops",
    "launch_ranks",
    "learning_rate",
    "peak_flops",
]
