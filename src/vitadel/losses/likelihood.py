"""Losses that read logits as the logarithm of a distribution."""

import torch.nn.functional as F
from torch import Tensor


def cross_entropy(z_BK: Tensor, y: Tensor) -> Tensor:
    """Minus the log-likelihood of the label; `y` is [B] class numbers or [B, K] shares of the classes."""
    return F.cross_entropy(z_BK, y if y.ndim == 1 else y.to(z_BK.dtype), reduction="none")


def kl_divergence(z_BK: Tensor, reference_BK: Tensor) -> Tensor:
    r"""How far the distribution of `z_BK` has moved from the one of `reference_BK`; zero where they agree.

    .. math:: \mathrm{KL}\big(\mathrm{softmax}(r) \,\|\, \mathrm{softmax}(z)\big)

    Both arguments are logits, and gradients flow into both.
    """
    log_q, log_p = z_BK.log_softmax(1), reference_BK.log_softmax(1)
    return (log_p.exp() * (log_p - log_q)).sum(1)
