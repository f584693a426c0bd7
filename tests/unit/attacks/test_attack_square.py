"""The square attack: sizes and positions of its windows, the pixels a proposal may change, and how mass moves.

Shape letters: B items, C channels, H rows and W columns of pixels.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from vitadel.attacks import Query, Square, State, StepContext
from vitadel.attacks.oracle import Oracle
from vitadel.attacks.square import window_sides
from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.goals import Untargeted
from vitadel.losses import margin
from vitadel.threats import L1, L2, Linf, Threat
from vitadel.threats.square_proposals import L1_PATTERNS, L2_PATTERNS, window_mask

Array = NDArray[np.float64]
CPU = torch.device("cpu")
PATTERNS = {"l2": L2_PATTERNS, "l1": L1_PATTERNS}
THREATS: dict[str, Threat] = {"linf": Linf(0.1), "l2": L2(0.8), "l1": L1(4.0)}


def images(batch: int, height: int = 12, width: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(batch, 3, height, width, dtype=torch.float64, generator=generator)
    x[:, 0, :2], x[:, 1, 5:7] = 0.0, 1.0
    return x


def irregular_model(x: Tensor) -> Tensor:
    """Two classes with an irregular margin."""
    ramp = torch.arange(x[0].numel(), dtype=x.dtype)
    objective_B = (x.flatten(1) * ((7 * ramp).sin() + (x.flatten(1) * 5).cos())).sum(1) - 1000
    return torch.stack([torch.zeros_like(objective_B), objective_B], 1)


def trace_of(
    threat: Threat, x0: Tensor, queries: int, model: Callable[[Tensor], Tensor] = irregular_model
) -> list[tuple[Query, State]]:
    """The query of the start and of every step, and the states after them."""
    attack, oracle, none_B = Square(queries=queries), Oracle(model), torch.zeros(len(x0), dtype=torch.int64)
    items = StepContext(
        x0, Untargeted(none_B, margin), threat, RandomStreams.of(0, torch.arange(len(x0))), none_B, none_B
    )
    state, trace = attack.start(oracle, items), []
    for step in range(attack.num_steps(threat)):
        query, state = attack.step(oracle, replace(items, step_B=none_B + step), state)
        trace.append((query, state))
    return trace


# ----------------------------------------------------------------- windows


@pytest.mark.parametrize(
    ("size", "expected"), [(32, [29, 20, 14, 10, 7, 5, 4, 3]), (224, [200, 142, 100, 71, 50, 35, 25, 18])]
)
def test_the_schedule_of_window_sides_is_as_published(size: int, expected: list[int]) -> None:
    sides = window_sides(0.8, 5000, size, size, 1, CPU)[:5000].tolist()
    runs = [(side, len(list(queries))) for side, queries in groupby(sides)]
    assert [side for side, _ in runs] == expected
    # queries 0..10 come first, then halvings after 10, 50, 200, 500, 1000, 2000, 4000
    assert [length for _, length in runs] == [11, 40, 150, 300, 500, 1000, 2000, 999]


def test_long_searches_halve_the_side_twice_more() -> None:
    sides = window_sides(0.8, 10_000, 224, 224, 1, CPU)[:10_000].tolist()
    ends = [place + 1 for place, (one, other) in enumerate(pairwise(sides)) if one != other]
    assert ends == [11, 51, 201, 501, 1001, 2001, 4001, 6001, 8001]


def test_patterns_have_odd_sides_of_at_least_three() -> None:
    sides = window_sides(0.8, 5000, 32, 32, 3, CPU).tolist()
    assert [side for side, _ in groupby(sides)] == [29, 21, 15, 11, 7, 5, 3]
    assert set(window_sides(0.8, 5000, 4, 4, 3, CPU).tolist()) == {3, 4}


def test_a_window_fits_into_an_image_that_is_not_square() -> None:
    assert window_sides(1.0, 10, 4, 100, 1, CPU).max().item() == 4
    assert window_sides(0.8, 10, 6, 24, 1, CPU)[0].item() == 6
    assert window_sides(0.1, 10, 9, 10, 1, CPU)[0].item() == 3


def test_window_positions_are_uniform() -> None:
    """Sides of 3 in 6 x 5 pixels: 4 x 3 places, the last row and column among them."""
    rng = RandomStreams.of(5, torch.arange(6000))
    side_B = torch.full((6000,), 3)
    windows = window_mask(rng.uniform(2), side_B, torch.zeros(6000, 1, 6, 5))
    assert windows.shape == (6000, 1, 6, 5)
    assert windows.flatten(1).sum(1).unique().tolist() == [9]
    rows, columns = windows.any(3).int().argmax(2), windows.any(2).int().argmax(2)
    whole = [windows[i, 0, r : r + 3, c : c + 3].all() for i, (r, c) in enumerate(torch.cat([rows, columns], 1))]
    assert all(whole)
    counts = torch.bincount((rows * 3 + columns).flatten(), minlength=12)
    assert len(counts) == 12
    assert 0.001 < stats.chisquare(counts.numpy()).pvalue < 0.999
    assert bool(windows[:, 0, 5, 4].any())


def test_items_have_their_own_window_sides() -> None:
    side_B = torch.arange(1, 8)
    windows = window_mask(RandomStreams.of(0, torch.arange(7)).uniform(2), side_B, torch.zeros(7, 1, 7, 9))
    assert windows.flatten(1).sum(1).tolist() == [side * side for side in range(1, 8)]


# -------------------------------------------------------------------- Linf


def test_it_starts_with_stripes() -> None:
    x0 = images(40)
    x = trace_of(Linf(0.1), x0, 1)[0][0].x
    up, down = (x0 + 0.1).clamp(0, 1), (x0 - 0.1).clamp(0, 1)
    brighter = (x == up) & (up != down)
    assert bool((brighter | (x == down)).all())
    # one sign per image, channel and column, whatever the row; both signs are as frequent
    gray = trace_of(Linf(0.1), torch.full_like(x0, 0.5), 1)[0][0].x
    assert torch.equal(gray, gray[:, :, :1].expand_as(gray))
    share = (gray[:, :, 0] > 0.5).double().mean().item()
    assert share == pytest.approx(0.5, abs=5 * 0.5 / (40 * 3 * 12) ** 0.5)


def test_a_proposal_changes_one_window_to_the_boundary() -> None:
    x0, queries = images(8), 60
    trace = trace_of(Linf(0.1), x0, queries)
    up, down = (x0 + 0.1).clamp(0, 1), (x0 - 0.1).clamp(0, 1)
    sides = window_sides(0.8, queries, 12, 12, 1, CPU)
    for query in range(queries):
        best, x_query = trace[query][1]["best"], trace[query + 1][0].x
        assert bool(((x_query == up) | (x_query == down)).all())
        changed = (x_query != best).any(1)
        for one, before, after, high, low in zip(changed, best, x_query, up, down, strict=True):
            if not one.any():
                continue
            rows, columns = one.any(1).nonzero().flatten(), one.any(0).nonzero().flatten()
            side = int(sides[query])
            assert int(rows[-1] - rows[0]) < side
            assert int(columns[-1] - columns[0]) < side
            # a channel moves in one direction, everywhere in the window
            for channel in range(3):
                moved = after[channel] != before[channel]
                assert bool((after[channel] == high[channel])[moved].all()) or bool(
                    (after[channel] == low[channel])[moved].all()
                )


def test_a_proposal_fills_its_window() -> None:
    """The first query of 12 x 12 pixels covers 11 x 11 of them; where the start had the other sign, all change."""
    x0 = torch.full((200, 1, 12, 12), 0.5, dtype=torch.float64)
    trace = trace_of(Linf(0.1), x0, 2)
    start, x_query = trace[0][1]["best"], trace[1][0].x
    tall = (x_query != start).any(3).sum(2).unique().tolist()
    assert tall == [11]


@pytest.mark.parametrize("norm", THREATS)
def test_the_best_objective_never_decreases(norm: str) -> None:
    x0 = images(5)
    trace = trace_of(THREATS[norm], x0, 60)
    objectives = torch.stack([margin(query.z_BK, torch.zeros(5, dtype=torch.int64)) for query, _ in trace])
    best = torch.stack([state["best_objective"] for _, state in trace])
    assert torch.equal(best, objectives.cummax(0).values)
    assert bool((best[-1] > best[0]).all())
    for row in range(5):
        at = int(objectives[:, row].argmax())
        assert torch.equal(trace[-1][1]["best"][row], trace[at][0].x[row])


@pytest.mark.parametrize("norm", THREATS)
def test_proposals_are_inside_the_threat(norm: str) -> None:
    threat, x0 = THREATS[norm], images(5)
    for query, _ in trace_of(threat, x0, 60):
        assert bool((threat.distance(query.x, x0) <= threat.eps * (1 + 1e-9)).all())
        assert query.x.min() >= 0
        assert query.x.max() <= 1


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_away_from_the_box_proposals_use_the_whole_radius(norm: str) -> None:
    """In L1 a point inside the ball stays there, so only the start and the box keep it from the edge."""
    threat, x0 = THREATS[norm], torch.full((5, 3, 12, 12), 0.5, dtype=torch.float64)
    sizes = torch.stack([threat.distance(query.x, x0) for query, _ in trace_of(threat, x0, 40)])
    torch.testing.assert_close(sizes, torch.full_like(sizes, threat.eps), rtol=1e-6, atol=0)


# --------------------------------------------------------------- L2 and L1


def hill(height: int, width: int, fall_off: int) -> Array:
    """Squares of growing size around the center, each laid on the last with less weight."""
    total = np.zeros((height, width))
    for ring in range(max(height, width) // 2 + 1):
        for row in range(height):
            for column in range(width):
                if abs(row - height // 2) <= ring and abs(column - width // 2) <= ring:
                    total[row, column] += 1 / (ring + 1) ** fall_off
    return total / (np.sqrt((total**2).sum()) if fall_off == 2 else total.sum())


@pytest.mark.parametrize(("norm", "fall_off"), [("l2", 2), ("l1", 4)])
def test_patterns_have_two_halves_of_opposite_sign(norm: str, fall_off: int) -> None:
    table = PATTERNS[norm].table(9, torch.float64, CPU).numpy()
    for side in range(2, 10):
        upper, lower = hill(side // 2, side, fall_off), hill(side - side // 2, side, fall_off)
        whole = np.concatenate([upper, -lower])
        whole /= np.sqrt((whole**2).sum()) if norm == "l2" else np.abs(whole).sum()
        np.testing.assert_allclose(table[side, :side, :side], whole, rtol=1e-12, atol=0)
        assert not table[side, side:].any()
        assert not table[side, :, side:].any()
    assert np.abs(table[1, 0, 0]) == 1


def test_the_first_pattern_consists_of_tiles() -> None:
    """12 pixels hold 6 x 6 tiles of 2, one pixel from the corner: the last row and column of tiles are cut off."""
    x0 = images(30)
    tiles = L2_PATTERNS.tiles(x0, RandomStreams.of(0, torch.arange(30)))
    pattern = L2_PATTERNS.table(12, torch.float64, CPU)[2, :2, :2]
    assert not tiles[:, :, 0].any()
    assert not tiles[:, :, :, 0].any()
    kinds = [pattern, pattern.T, -pattern, -pattern.T]
    seen = set()
    for row, column in ((1, 1), (3, 1), (9, 9), (1, 9)):
        for image in range(30):
            result = []
            for channel in range(3):
                tile = tiles[image, channel, row : row + 2, column : column + 2]
                kind = [number for number, one in enumerate(kinds) if torch.equal(tile, one)]
                assert kind
                result.append(kind[0])
            assert len({kind % 2 for kind in result}) == 1  # lies on its side in all channels or in none
            seen.update(result)
    assert seen == {0, 1, 2, 3}


def test_pixels_beyond_the_last_whole_tile_are_left_alone() -> None:
    # tiles of 2 pixels: 11 rows hold 5, and 25 columns 12
    tiles = L2_PATTERNS.tiles(torch.zeros(4, 3, 11, 25, dtype=torch.float64), RandomStreams.of(0, torch.arange(4)))
    covered = tiles.abs().amax((0, 1)) > 0
    assert torch.equal(covered, (torch.arange(11) < 10)[:, None] & (torch.arange(25) < 24))


def test_mass_moves_between_the_windows() -> None:
    """One window over all of the image: what was there and what the radius allows is shared by the channels.

    The new pattern is the old one plus a fresh one, both of length 1, per channel, and has its length afterwards.
    """
    x0 = torch.full((4, 2, 3, 3), 0.5, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    delta = 0.01 * torch.randn(4, 2, 3, 3, dtype=torch.float64, generator=generator)
    side_B, rng = torch.full((4,), 3), RandomStreams.of(0, torch.arange(4))
    after = L2_PATTERNS.move(x0 + delta, x0, 0.5, side_B, rng) - x0
    lengths = delta.square().sum((2, 3)).sqrt()
    left_B = 0.25 - lengths.square().sum(1)
    expected = (left_B[:, None] / 2 + lengths.square()).sqrt()
    torch.testing.assert_close(after.square().sum((2, 3)).sqrt(), expected)
    # in all, the whole radius
    torch.testing.assert_close(after.flatten(1).norm(dim=1), torch.full((4,), 0.5, dtype=torch.float64))
    pattern = L2_PATTERNS.table(3, torch.float64, CPU)[3]
    for image in range(4):
        for channel in range(2):
            old = delta[image, channel] / lengths[image, channel]
            candidates = [old + sign * one for sign in (1, -1) for one in (pattern, pattern.T)]
            scaled = [one / one.norm() * expected[image, channel] for one in candidates]
            assert any(torch.allclose(after[image, channel], one, rtol=0, atol=1e-9) for one in scaled)


def test_mass_in_l1_moves_with_the_published_weights() -> None:
    """AutoAttack's code gives each channel the free radius plus the channels' number times what it had."""
    x0 = torch.full((4, 2, 3, 3), 0.5, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    delta = 0.01 * torch.randn(4, 2, 3, 3, dtype=torch.float64, generator=generator)
    after = L1_PATTERNS.move(x0 + delta, x0, 2.0, torch.full((4,), 3), RandomStreams.of(0, torch.arange(4))) - x0
    had = delta.abs().sum((2, 3))
    torch.testing.assert_close(after.abs().sum((2, 3)), (2 - had.sum(1, keepdim=True)) + 2 * had)


def test_pixels_outside_both_windows_are_unchanged() -> None:
    """Windows of 3 in 12 x 12: at most 18 pixels change, and one window is left empty unless the two meet."""
    x0 = torch.full((50, 2, 12, 12), 0.5, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    delta = 0.01 * torch.randn(50, 2, 12, 12, dtype=torch.float64, generator=generator)
    after = L2_PATTERNS.move(x0 + delta, x0, 2.0, torch.full((50,), 3), RandomStreams.of(0, torch.arange(50))) - x0
    changed = (after - delta).abs().amax(1) > 1e-12
    cleared = (after == 0).all(1)
    assert 9 <= changed.flatten(1).sum(1).min().item() < changed.flatten(1).sum(1).max().item() == 18
    assert set((changed & ~cleared).flatten(1).sum(1).tolist()) == {9}
    assert cleared.flatten(1).sum(1).max().item() == 9


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Square(queries=0), "Square.queries must be at least 1, got 0"),
        (lambda: Square(restarts=0), "Square.restarts must be at least 1, got 0"),
        (lambda: Square(p_init=0), r"Square.p_init must lie in \(0, 1\], got 0"),
        (lambda: Square(p_init=1.5), r"Square.p_init must lie in \(0, 1\], got 1.5"),
    ],
)
def test_invalid_settings_are_refused(make: Callable[[], Square], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_flattened_images_are_refused() -> None:
    with pytest.raises(UsageError, match="needs images"):
        Square(queries=1)(lambda x: x, torch.rand(2, 5), Untargeted(torch.tensor([0, 1])), Linf(0.1), seed=0)
