"""Training: the loop, its configuration, input, optimizers, checkpoints, log, and the processes that share it."""

from vitadel.train.config import Compile, LRScaling, Precision, TrainingConfig, ema_decay, learning_rate
from vitadel.train.distributed import launch_ranks
from vitadel.train.input.augment import Augment, Chain, ColorJitter, Erase, Flip, PadCrop, ResizedCrop, Rotate
from vitadel.train.input.augmentation_preview import preview_batches, single_transform_configs
from vitadel.train.input.mixing import Mixing
from vitadel.train.input.pil_augment import PILAugment
from vitadel.train.input.sampler import BatchIndex, Sampler
from vitadel.train.loop import Trainer, Validate
from vitadel.train.monitor.hardware import achieved_flops, forward_flops, peak_flops
from vitadel.train.monitor.training_log import overfitting_flags
from vitadel.train.optim import SGD, AdamW, Decay, Lion, OptimizerConfig
from vitadel.train.setup import Synthetic, set_up

__all__ = [
    "SGD",
    "AdamW",
    "Augment",
    "BatchIndex",
    "Chain",
    "ColorJitter",
    "Compile",
    "Decay",
    "Erase",
    "Flip",
    "LRScaling",
    "Lion",
    "Mixing",
    "OptimizerConfig",
    "PILAugment",
    "PadCrop",
    "Precision",
    "ResizedCrop",
    "Rotate",
    "Sampler",
    "Synthetic",
    "Trainer",
    "TrainingConfig",
    "Validate",
    "achieved_flops",
    "ema_decay",
    "forward_flops",
    "launch_ranks",
    "learning_rate",
    "overfitting_flags",
    "peak_flops",
    "preview_batches",
    "set_up",
    "single_transform_configs",
]
