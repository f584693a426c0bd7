r"""Alignment of a pattern with the grid of patches: differences at borders of patches compared with those inside.

Let :math:`E_p` be the mean squared difference of neighboring pixels whose border is p pixels after one between patches
(p = 0 is that border itself), horizontal and vertical neighbors weighted equally. The alignment of the pattern with the
grid is

.. math:: a = \frac{E_0 - \bar E}{E_0 + \bar E}, \qquad \bar E = \frac{1}{P - 1} \sum_{p \ne 0} E_p,

1 if a pattern changes only at borders, -1 if it changes everywhere else, around 0 if it is independent of the grid. The
alignments with grids shifted by (p, q) pixels give its distribution by chance: `rank` is the share of the :math:`P^2`
grids, including the true one, that are aligned at least as well. For an independent pattern, all ranks are equally
likely.

Shape letters: B images, P positions in a patch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitadel.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Alignment:
    """For each image: the alignment with the true grid, and the share of grids that are aligned at least as well.

    `jumps_BP` are the energies by position, divided by their mean over positions.
    """

    true_B: Tensor
    rank_B: Tensor
    jumps_BP: Tensor


def alignment(pattern: Tensor, patch: int) -> Alignment:
    """The alignment of patterns [B, C, H, W] with a grid of patches of this size; 0 for constant patterns."""
    check_patch(patch, pattern.shape[-2], pattern.shape[-1])
    down_BP, across_BP = _jumps(pattern, patch, -2), _jumps(pattern, patch, -1)
    shifted_BPP = (down_BP[:, :, None] + across_BP[:, None]) / 2
    mean_B11 = shifted_BPP.mean((1, 2), keepdim=True)
    # inside: at all other positions, for each direction separately
    inside_BPP = (patch * mean_B11 - shifted_BPP) / (patch - 1)
    inside_BPP = inside_BPP.clamp_min(0)  # a difference of sums may be slightly negative
    every_BPP = (shifted_BPP - inside_BPP) / (shifted_BPP + inside_BPP).clamp_min(torch.finfo(torch.float64).tiny)
    true_B = every_BPP[:, 0, 0]
    as_good_B = (every_BPP >= true_B[:, None, None] - 1e-12).sum((1, 2))
    jumps_BP = (down_BP + across_BP) / 2
    jumps_BP = jumps_BP / jumps_BP.mean(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return Alignment(true_B, as_good_B / patch**2, jumps_BP)


def expected_rank(patch: int) -> float:
    """The mean share of grids that are aligned at least as well where every rank is equally likely."""
    return (patch**2 + 1) / (2 * patch**2)


def check_patch(patch: int, height: int, width: int) -> None:
    """Refuse a grid that an image has no border of, or nothing but its borders."""
    if patch < 2 or 2 * patch > min(height, width):
        raise UsageError(
            f"a grid of patches of {patch} pixels cannot be distinguished from others on images of {height} x {width}. "
            f"Choose patch from 2 to {min(height, width) // 2}."
        )


def _jumps(pattern: Tensor, patch: int, side: int) -> Tensor:
    """[B, P] in float64: the mean squared difference along one side, by the later pixel's position in its patch."""
    squared = pattern.double().diff(dim=side).square()
    per_line = squared.mean((1, -1 if side == -2 else -2))
    position = (torch.arange(per_line.shape[1], device=pattern.device) + 1) % patch
    sums = torch.zeros(len(pattern), patch, dtype=torch.float64, device=pattern.device).index_add_(
        1, position, per_line
    )
    return sums / torch.bincount(position, minlength=patch)
