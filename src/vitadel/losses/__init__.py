"""Pure functions of logits [B, K] and labels [B], one value per image; larger is always worse for the label.

Shape letters: B images, K classes.
"""

from collections.abc import Callable

from torch import Tensor

from vitadel.losses.likelihood import cross_entropy, kl_divergence
from vitadel.losses.margin import dlr, logit_difference, margin, targeted_dlr

Loss = Callable[[Tensor, Tensor], Tensor]
# (logits, labels, targets): larger means nearer to the target
TargetLoss = Callable[[Tensor, Tensor, Tensor], Tensor]

LOSSES: dict[str, Loss] = {"ce": cross_entropy, "margin": margin, "dlr": dlr}
TARGET_LOSSES: dict[str, TargetLoss] = {"logit_difference": logit_difference, "dlr": targeted_dlr}

__all__ = [
    "LOSSES",
    "TARGET_LOSSES",
    "Loss",
    "TargetLoss",
    "cross_entropy",
    "dlr",
    "kl_divergence",
    "logit_difference",
    "margin",
    "targeted_dlr",
]
