"""Two images in one: MixUp and CutMix.

Shape letters: B images, K classes.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitadel.core.numeric import Probability, Range, check_ranges, check_seed

Box = tuple[int, int, int, int]
Alpha = Annotated[float, Range(ge=0, hint="Write 0 for none, or 0.8.")]


@dataclass(frozen=True, slots=True)
class MixParameters:
    """The parameters of one mixed batch: `lam` is the share of labels and pixels that an image keeps.

    `box` is top, bottom, left and right of what the partner's pixels replace; without one, all pixels are blended.
    """

    lam: float
    box: Box | None = None

    def apply(
        self, x: Tensor, shares_BK: Tensor, partner_x: Tensor, partner_shares_BK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Images and label shares, each mixed with its partner's; the arguments are not modified."""
        # `lerp` cannot round past the larger of its ends, as lam * a + (1 - lam) * b can
        shares_BK = torch.lerp(partner_shares_BK, shares_BK, self.lam)
        if self.box is None:
            return torch.lerp(partner_x, x, self.lam), shares_BK
        top, bottom, left, right = self.box
        mixed = x.clone()
        mixed[..., top:bottom, left:right] = partner_x[..., top:bottom, left:right]
        return mixed, shares_BK


@dataclass(frozen=True, slots=True)
class Mixing:
    r"""MixUp (Zhang et al. 2018) and CutMix (Yun et al. 2019), with one random draw per batch, as timm does by default.

    .. math:: \lambda \sim \mathrm{Beta}(\alpha, \alpha), \qquad
              x' = \lambda x + (1 - \lambda) \tilde x, \qquad y' = \lambda y + (1 - \lambda) \tilde y

    CutMix takes a box of area :math:`1 - \lambda` from the partner instead, centered anywhere; what the image's border
    cuts off goes back to :math:`\lambda`. `mixup` and `cutmix` are the two :math:`\alpha`, 0 for none; with both, a
    batch gets CutMix with probability `switch`. Labels are not smoothed here: the objective does that.

    The parameters depend on the seed only and are the same on every rank. An image's partner is half a batch further
    on; every rank pairs the images it holds. timm pairs the batch with its reverse, which is equivalent in a shuffled
    batch.

    Args:
        mixup: The alpha of MixUp; 0 for none.
        cutmix: The alpha of CutMix; 0 for none.
        probability: The probability that a batch is mixed.
        switch: The probability of CutMix in a batch that is mixed, where there are both.
    """

    mixup: Alpha = 0.0
    cutmix: Alpha = 0.0
    probability: Probability = 1.0
    switch: Probability = 0.5

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def active(self) -> bool:
        """Whether any batch is ever mixed."""
        return self.probability > 0 and (self.mixup > 0 or self.cutmix > 0)

    def parameters(self, seed: int, height: int, width: int) -> MixParameters:
        """The parameters for the update of this seed and images of this size."""
        check_seed(seed)
        rng = np.random.default_rng(seed % 2**64)  # a non-negative seed
        # all are drawn every time, so that changing one setting does not change the other random numbers
        apply, switch, down, right = rng.random(4).tolist()
        if not self.active or apply >= self.probability:
            return MixParameters(1.0)
        cut = self.cutmix > 0 and (self.mixup == 0 or switch < self.switch)
        alpha = self.cutmix if cut else self.mixup
        lam = float(rng.beta(alpha, alpha))
        if not cut:
            return MixParameters(lam)
        top, bottom = _cut(height, lam, down)
        left, right_end = _cut(width, lam, right)
        return MixParameters(1 - (bottom - top) * (right_end - left) / (height * width), (top, bottom, left, right_end))

    def __call__(self, x: Tensor, y_B: Tensor, num_classes: int, *, seed: int) -> tuple[Tensor, Tensor]:
        """A batch mixed with itself: images, and label shares that sum to 1."""
        shares_BK, half = F.one_hot(y_B, num_classes).to(x.dtype), len(x) // 2
        return self.parameters(seed, *x.shape[-2:]).apply(x, shares_BK, x.roll(half, 0), shares_BK.roll(half, 0))


def _cut(side: int, lam: float, uniform: float) -> tuple[int, int]:
    """Where a box of `1 - lam` of the area begins and ends along one side, around a uniform center."""
    length, center = int(side * math.sqrt(1 - lam)), int(uniform * side)
    return max(0, center - length // 2), min(side, center + (length + 1) // 2)
