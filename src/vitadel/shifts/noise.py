"""Noise: every pixel value on its own.

Choices are made by multiplying with 0 or 1 (`lt_` on floats gives floats): torch takes ten times as long with masks.
"""

from functools import cache

import torch
from torch import Tensor

from vitadel.core.rng import RandomStreams
from vitadel.shifts.fast_rng import normal, uniform
from vitadel.shifts.filters import divide


def gaussian_noise(x: Tensor, rng: RandomStreams, sigma: float) -> Tensor:
    return normal(rng, *x.shape[1:]).to(x.dtype).mul_(sigma).add_(x)


def speckle_noise(x: Tensor, rng: RandomStreams, sigma: float) -> Tensor:
    return normal(rng, *x.shape[1:]).to(x.dtype).mul_(sigma).mul_(x).add_(x)


def impulse_noise(x: Tensor, rng: RandomStreams, amount: float) -> Tensor:
    """Salt and pepper in equal shares; the three channels of a pixel are hit independently."""
    u = uniform(rng, *x.shape[1:])
    salt = u.clone().lt_(amount / 2)
    return u.ge_(amount).mul_(x).add_(salt)


def shot_noise(x: Tensor, rng: RandomStreams, count: float) -> Tensor:
    """Poisson(count x) / count, exact in distribution: one draw from a table per gray level.

    An 8-bit image has 256 rates, and a count above `count` is white whatever it is, so 256 finite distributions
    cover everything. Walker's alias method (1977) draws from each with one uniform number: its leading part picks a
    column, the rest decides between the column's own count and its alias.
    """
    own, alias = alias_tables(int(count), x.device)
    columns = int(count) + 1
    u = uniform(rng, x[0].numel()).mul_(columns).flatten()
    column = u.floor()
    place = (x * 255).round_().flatten().mul_(columns).add_(column).int()
    other = alias.index_select(0, place)
    itself = u.sub_(column).lt_(own.index_select(0, place))
    return divide(column.sub_(other).mul_(itself).add_(other), count).view_as(x)


@cache
def alias_tables(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each gray level: the share of a column that is its own count's, and the count that has the rest."""
    left = truncated_poisson(torch.arange(256, dtype=torch.float64) * count / 255, count) * (count + 1)
    own, alias = torch.ones_like(left), torch.arange(count + 1.0).repeat(256, 1)
    done, level = torch.zeros_like(left, dtype=torch.bool), torch.arange(256)
    for _ in range(count):  # the column with least left is filled up by the one with most
        small = left.masked_fill(done, torch.inf).argmin(1)
        large = left.masked_fill(done, -torch.inf).argmax(1)
        own[level, small] = left[level, small].clamp(0, 1)
        alias[level, small] = large.float()
        left[level, large] -= 1 - left[level, small]
        done[level, small] = True
    return own.float().flatten().to(device), alias.flatten().to(device)


def truncated_poisson(rate: Tensor, most: int) -> Tensor:
    """[*rate, most + 1] probabilities of 0 ... most, the last one of `most` or more."""
    counts = torch.arange(most + 1, dtype=torch.float64)
    logs = torch.special.xlogy(counts, rate[:, None]) - rate[:, None] - torch.lgamma(counts + 1)
    below = logs.exp()[:, :most]
    return torch.cat([below, (1 - below.sum(1, keepdim=True)).clamp_min(0)], 1)
