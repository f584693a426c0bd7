r"""The power of a pattern by spatial frequency, averaged over directions.

With :math:`\hat\delta(f)` the discrete Fourier transform of a pattern, at frequencies :math:`f = (f_r, f_c)` in cycles
per pixel, ring k holds the frequencies with :math:`|f| \min(H, W)` nearest to k. The density of a ring is the mean of
:math:`|\hat\delta(f)|^2` over the ring, all channels together, divided by its mean over all rings: white noise has
density 1 everywhere. Ring 0, the mean of the pattern, is left out. Corners reach up to :math:`\sqrt{1/2}`.

Shape letters: B images, C channels, H rows, W columns, F rings.
"""

import torch
from torch import Tensor

# beyond a quarter of a cycle per pixel a stripe is less than two pixels wide
FINE = 0.25


def frequencies(height: int, width: int) -> Tensor:
    """[F] cycles per pixel of the rings, from ring 1 on."""
    side = min(height, width)
    return torch.arange(1, int(rings(height, width).max()) + 1, dtype=torch.float64) / side


def densities(pattern: Tensor) -> Tensor:
    """[B, F] power of every ring relative to white noise of the same power; NaN for constant patterns."""
    power_BHW = _power(pattern)
    ring_HW = rings(*pattern.shape[-2:]).to(pattern.device)
    count_F = torch.bincount(ring_HW.flatten()).double()
    sum_BF = torch.zeros(len(pattern), len(count_F), dtype=torch.float64, device=pattern.device)
    sum_BF.index_add_(1, ring_HW.flatten(), power_BHW.flatten(1))
    sum_BF, count_F = sum_BF[:, 1:], count_F[1:]
    return (sum_BF / count_F) / (sum_BF.sum(1, keepdim=True) / count_F.sum())


def fine_share(pattern: Tensor) -> Tensor:
    """[B] share of the power beyond a quarter of a cycle per pixel; NaN for constant patterns."""
    power_BHW = _power(pattern)
    fine_HW = (_lengths(*pattern.shape[-2:]) > FINE).to(pattern.device)
    rest_HW = (rings(*pattern.shape[-2:]) > 0).to(pattern.device)
    return (power_BHW * fine_HW).sum((1, 2)) / (power_BHW * rest_HW).sum((1, 2))


def _power(pattern: Tensor) -> Tensor:
    """[B, H, W], summed over channels, without the mean, whose rounding errors would appear as a pattern."""
    flat = pattern.double()
    flat = flat - flat.mean((-2, -1), keepdim=True)
    return torch.fft.fft2(flat).abs().square().sum(1)


def rings(height: int, width: int) -> Tensor:
    """[H, W] the ring of each frequency of the Fourier transform; 0 is the mean."""
    return (_lengths(height, width) * min(height, width)).round().long()


def _lengths(height: int, width: int) -> Tensor:
    """[H, W] cycles per pixel."""
    rows, columns = (torch.fft.fftfreq(side, dtype=torch.float64) for side in (height, width))
    return (rows[:, None].square() + columns[None].square()).sqrt()
