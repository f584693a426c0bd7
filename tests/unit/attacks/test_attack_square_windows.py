"""The square attack in L2 and L1 late in its search, and how its first tiles differ."""

from dataclasses import replace

import pytest
import torch

from vitadel.attacks import Square, StepContext
from vitadel.attacks.oracle import Oracle
from vitadel.core.rng import RandomStreams
from vitadel.goals import Untargeted
from vitadel.losses import margin
from vitadel.threats import L1, L2, Threat
from vitadel.threats.square_proposals import L1_PATTERNS

COUNT, SIDE = 40, 12


@pytest.mark.parametrize("threat", [L2(0.05), L1(0.05)], ids=["l2", "l1"])
def test_the_last_queries_move_mass_between_windows_of_three_pixels(threat: Threat) -> None:
    """The smallest pattern has 3 x 3 pixels: a proposal differs from the best at most in two such windows."""
    x0 = torch.full((COUNT, 3, SIDE, SIDE), 0.5, dtype=torch.float64)
    none_B = torch.zeros(COUNT, dtype=torch.int64)
    attack, oracle = Square(queries=6000, p_init=0.01), Oracle(lambda x: torch.zeros(len(x), 2, dtype=x.dtype))
    context = StepContext(
        x0, Untargeted(none_B, margin), threat, RandomStreams.of(0, torch.arange(COUNT)), none_B, none_B
    )
    state = attack.start(oracle, context)
    _, state = attack.step(oracle, context, state)
    _, after = attack.step(oracle, replace(context, step_B=none_B + 5000), state)
    first, second = state["best"] - x0, after["x"] - x0
    # norms are scaled back to eps, so pixels that changed by the common factor did not move
    scale = second.abs().amax((1, 2, 3), keepdim=True)
    assert bool((scale > 0).all())
    ratio = torch.where(first.abs() > 1e-12, second / first, torch.nan)
    common = ratio.flatten(1).nanmedian(1).values[:, None, None, None]
    moved = ((second - first * common).abs() > 1e-9).any(1).flatten(1).sum(1)
    assert 9 < int(moved.max()) <= 18


def test_tiles_of_the_start_have_independent_signs() -> None:
    """Tiles of 2 x 2 pixels, one pixel from the border: of two neighbors, half have the same sign in a channel."""
    tiles = L1_PATTERNS.tiles(torch.zeros(200, 3, SIDE, SIDE), RandomStreams.of(0, torch.arange(200)))
    first = tiles[:, :, 1:11:2, 1:11:2].sign()  # one pixel of each tile, never zero
    assert bool((first != 0).all())
    for other in (first.roll(1, 2), first.roll(1, 3)):
        share = (first == other).double().mean((0, 1))
        assert bool(((share > 0.35) & (share < 0.65)).all()), share
