"""Pure functions of logits [B, K] and labels [B], one value per image; larger is always worse for the label.

Shape letters: B images, K classes.
"""

from collections.abc import Callable

from torch import Tensor

from vitadel.losses.likelihood import cross_entropy, kl_divergence
from vitadel.losses.margin import dlr, margin

Loss = Callable[[Tensor, Tensor], Tensor]

LOSSES: dict[str, Loss] = {"ce": cross_entropy, "margin": margin, "dlr": dlr}

__all__ = ["LOSSES", "Loss", "cross_entropy", "dlr", "kl_divergence", "margin"]
