"""Losses: functions of logits [B, K] and labels [B] with a value per image; larger means a worse prediction.

Shape letters: B images, K classes.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from vitadel.core.errors import UsageError

Loss = Callable[[Tensor, Tensor], Tensor]
# (logits, labels, targets) -> [B]; larger means that the target is nearer to being predicted
TargetLoss = Callable[[Tensor, Tensor, Tensor], Tensor]


def cross_entropy(z_BK: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy; `y` holds [B] labels or [B, K] probabilities of the classes."""
    return F.cross_entropy(z_BK, y if y.ndim == 1 else y.to(z_BK.dtype), reduction="none")


def kl_divergence(z_BK: Tensor, reference_BK: Tensor) -> Tensor:
    r"""KL divergence between the softmax distributions of reference logits and logits; zero where they agree.

    .. math:: \mathrm{KL}\big(\mathrm{softmax}(r) \,\|\, \mathrm{softmax}(z)\big)

    Both arguments are logits, and both receive gradients.
    """
    log_q, log_p = z_BK.log_softmax(1), reference_BK.log_softmax(1)
    return (log_p.exp() * (log_p - log_q)).sum(1)


def margin(z_BK: Tensor, y_B: Tensor) -> Tensor:
    r"""The largest other logit minus the label's; positive exactly where the image is misclassified.

    Carlini & Wagner 2017 (arXiv:1608.04644), their :math:`f_6` without the clamp:

    .. math:: \max_{i \neq y} z_i - z_y
    """
    if z_BK.shape[1] < 2:
        raise UsageError(
            f"margin needs at least 2 classes, got {z_BK.shape[1]}. Write a model with one logit z as [-z, z]."
        )
    label_B = z_BK.gather(1, y_B[:, None]).squeeze(1)
    return z_BK.scatter(1, y_B[:, None], float("-inf")).amax(1) - label_B


def dlr(z_BK: Tensor, y_B: Tensor) -> Tensor:
    r"""Difference-of-logits ratio: the margin, divided by the difference of the first and the third logit.

    Croce & Hein 2020 (arXiv:2003.01690), with :math:`\pi` the order of descending logits:

    .. math:: \mathrm{DLR}(z, y) = -\frac{z_y - \max_{i \neq y} z_i}{z_{\pi_1} - z_{\pi_3}}

    =============  ===================  =========================
    paper          here                 note
    =============  ===================  =========================
    :math:`z`      ``z_BK``             logits, not probabilities
    :math:`\pi_3`  ``top3_B3[:, 2]``    so K >= 3
    =============  ===================  =========================

    Invariant to ``z -> a*z + b`` for ``a > 0`` (tests/unit/losses/test_losses.py).
    """
    if z_BK.shape[1] < 3:
        raise UsageError(f"dlr needs at least 3 classes, got {z_BK.shape[1]}. Use `margin` for a two-class model.")
    top3_B3 = z_BK.topk(3, dim=1).values
    return margin(z_BK, y_B) / (top3_B3[:, 0] - top3_B3[:, 2] + 1e-12)


def logit_difference(z_BK: Tensor, y_B: Tensor, target_B: Tensor) -> Tensor:
    r"""The target's logit minus the label's, :math:`z_t - z_y`."""
    return (z_BK.gather(1, target_B[:, None]) - z_BK.gather(1, y_B[:, None])).squeeze(1)


def targeted_dlr(z_BK: Tensor, y_B: Tensor, target_B: Tensor) -> Tensor:
    r"""Targeted difference-of-logits ratio, invariant to shift and positive scaling of the logits.

    Croce & Hein 2020 (arXiv:2003.01690), with :math:`\pi` the order of descending logits:

    .. math:: \frac{z_t - z_y}{z_{\pi_1} - (z_{\pi_3} + z_{\pi_4}) / 2}
    """
    if z_BK.shape[1] < 4:
        raise UsageError(
            f"targeted_dlr needs at least 4 classes, got {z_BK.shape[1]}. Use `logit_difference` for a smaller model."
        )
    top4_B4 = z_BK.topk(4, dim=1).values
    return logit_difference(z_BK, y_B, target_B) / (top4_B4[:, 0] - top4_B4[:, 2:].mean(1) + 1e-12)


LOSSES: dict[str, Loss] = {"ce": cross_entropy, "margin": margin, "dlr": dlr}

__all__ = [
    "LOSSES",
    "Loss",
    "TargetLoss",
    "cross_entropy",
    "dlr",
    "kl_divergence",
    "logit_difference",
    "margin",
    "targeted_dlr",
]
