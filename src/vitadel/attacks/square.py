"""The square attack: random search with squares, no gradients.

Shape letters: B items, C channels, H rows and W columns of pixels.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from vitadel.attacks.engine.iterative import IterativeAttack, Query, State, StepContext
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, Range, check_ranges
from vitadel.core.rng import RandomStreams
from vitadel.losses import Loss, margin
from vitadel.threats import L1, L2, Linf, Threat, per_image, project_l1

# after so many queries the share of the image that a square covers is halved
_HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
# tiles per side of the first pattern in L2 and L1
_TILES = 5
# how steeply the pattern inside a window falls off from its two centers
_FALL_OFF = {"l2": 2, "l1": 4}


@dataclass(frozen=True, slots=True)
class Square(IterativeAttack):
    """Square Attack (Andriushchenko et al. 2020, arXiv:1912.00049) with the schedule that AutoAttack made standard.

    Every query changes a random window of the best point so far, and is kept if the goal's gain rises. `share` is the
    part of the image that the first windows cover. Windows and signs are drawn per image, and reach every pixel: in
    AutoAttack's code one window serves a whole batch and never touches the last row and column.
    """

    default_loss: ClassVar[Loss] = staticmethod(margin)

    queries: Count = 5000
    share: Annotated[float, Range(gt=0, le=1, hint="It is a part of the image.")] = 0.8
    restarts: Count = 1

    def __post_init__(self) -> None:
        check_ranges(self)

    def num_steps(self, threat: Threat) -> int:
        return self.queries + 1  # the start is a question too

    @property
    def num_restarts(self) -> int:
        return self.restarts

    def start(self, model: Oracle, items: StepContext) -> State:
        x0, threat = items.x0, items.threat
        if x0.ndim != 4:
            raise UsageError(f"the square attack wants images [batch, channels, rows, columns], got {list(x0.shape)}.")
        rng = items.rng.fold(torch.zeros_like(items.step_B))
        if isinstance(threat, Linf):
            stripes = rng.signs(x0.shape[1], 1, x0.shape[3], dtype=x0.dtype)
            x = (x0 + threat.eps * stripes).clamp(0, 1)
        else:
            x = _of_length_eps(x0 + _tiles(x0, rng, _norm_name(threat)), x0, threat)
        worst_B = torch.full((len(x0),), -torch.inf, device=x0.device, dtype=x0.dtype)
        return {"x": x, "best": x, "gain_best": worst_B}

    def step(self, model: Oracle, items: StepContext, state: State) -> tuple[Query, State]:
        x, x0, threat = state["x"], items.x0, items.threat
        z_BK = model(x)
        objective_B = items.goal.objective(z_BK).to(x.dtype)
        better_B = objective_B > state["gain_best"]
        best = torch.where(per_image(better_B, x), x, state["best"])
        rng = items.rng.fold(items.step_B + 1)
        if isinstance(threat, Linf):
            side_B = _sides(self.share, self.queries, x.shape[2], x.shape[3], 1, x.device)[items.step_B]
            chance = rng.uniform(
                2 + x.shape[1], dtype=x.dtype
            )  # one draw for place and signs: a query is made of little
            inside = _window(chance[:, :2], side_B, x)
            signs = torch.where(chance[:, 2:, None, None] < 0.5, -1.0, 1.0).to(x.dtype)
            ahead = torch.where(inside, (x0 + threat.eps * signs).clamp(0, 1), best)
        else:
            side_B = _sides(self.share, self.queries, x.shape[2], x.shape[3], 3, x.device)[items.step_B]
            ahead = _of_length_eps(_move_mass(best, x0, side_B, rng, threat), x0, threat)
        moved = {"x": ahead, "best": best, "gain_best": objective_B.maximum(state["gain_best"])}
        return Query(x, z_BK), moved


@lru_cache(maxsize=64)
def _sides(share: float, queries: int, height: int, width: int, least: int, device: torch.device) -> Tensor:
    """The side of the window of every query; odd ones of at least 3 pixels where a pattern has to fit in."""
    sides = []
    for query in range(queries + 1):
        part = share / 2 ** sum(query > after for after in _HALVED_AFTER)
        side = max(round(math.sqrt(part * height * width)), least)
        side += least == 3 and side % 2 == 0
        sides.append(min(side, height, width))
    return torch.tensor(sides, device=device)


def _window(chance_B2: Tensor, side_B: Tensor, like: Tensor) -> Tensor:
    """[B, 1, H, W] truth values: a square at the place that two numbers in [0, 1) stand for."""
    rows, columns = _corner(chance_B2, side_B, like)
    return (rows >= 0) & (rows < _wide(side_B)) & (columns >= 0) & (columns < _wide(side_B))


def _corner(chance_B2: Tensor, side_B: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column numbers [B, 1, H, 1] and [B, 1, 1, W] counted from the corner of a window."""
    height, width = like.shape[2:]
    # in float64, since a number just below 1 times the number of places could round up to it
    top_B, left_B = (
        (chance_B.double() * (places - side_B + 1)).long()
        for chance_B, places in zip(chance_B2.unbind(1), (height, width), strict=True)
    )
    rows = torch.arange(height, device=like.device).view(1, 1, -1, 1) - _wide(top_B)
    return rows, torch.arange(width, device=like.device).view(1, 1, 1, -1) - _wide(left_B)


def _wide(v_B: Tensor) -> Tensor:
    return v_B.view(-1, 1, 1, 1)


# ---------------------------------------------------------------- L2 and L1


def _norm_name(threat: Threat) -> str:
    if isinstance(threat, (L2, L1)):
        return "l2" if isinstance(threat, L2) else "l1"
    raise UsageError(f"the square attack knows the norms linf, l2 and l1, got {type(threat).__name__}.")


def _move_mass(best: Tensor, x0: Tensor, side_B: Tensor, rng: RandomStreams, threat: Threat) -> Tensor:
    """Clear one window and give what was there, and what the radius still allows, to another one."""
    norm, channels = _norm_name(threat), x0.shape[1]
    delta = best - x0
    rows, columns = _corner(rng.fold(0).uniform(2), side_B, x0)
    side = _wide(side_B)
    inside = (rows >= 0) & (rows < side) & (columns >= 0) & (columns < side)
    cleared = _window(rng.fold(1).uniform(2), side_B, x0)
    pattern = _pattern_at(rows, columns, side_B, rng.fold(2), norm, x0)
    signs = rng.fold(3).signs(channels, 1, 1, dtype=x0.dtype)
    here = delta * inside
    fresh = (pattern * signs + here / (1e-12 + _length(here, norm))) * inside
    used = _length(delta * (inside | cleared), norm)
    whole = _length(delta, norm, over=(1, 2, 3))
    if norm == "l2":
        budget = ((threat.eps**2 - whole**2).clamp_min(0) / channels + used**2).sqrt()
    else:
        budget = (threat.eps - whole).clamp_min(0) + used * channels
    fresh = fresh / (1e-12 + _length(fresh, norm)) * budget
    return x0 + torch.where(inside, fresh, delta.masked_fill(cleared, 0))


def _of_length_eps(x: Tensor, x0: Tensor, threat: Threat) -> Tensor:
    """Stretched to the edge of the ball in L2, pulled back to it in L1, and cut off at the box."""
    if isinstance(threat, L1):
        return project_l1(x, x0, threat.eps)
    delta = x - x0
    return (x0 + delta * (threat.eps / _length(delta, "l2", over=(1, 2, 3)).clamp_min(1e-12))).clamp(0, 1)


def _length(delta: Tensor, norm: str, over: tuple[int, ...] = (2, 3)) -> Tensor:
    """Norms per channel, or over the whole image."""
    if norm == "l2":
        return delta.square().sum(over, keepdim=True).sqrt()
    return delta.abs().sum(over, keepdim=True)


def _pattern_at(rows: Tensor, columns: Tensor, side_B: Tensor, rng: RandomStreams, norm: str, like: Tensor) -> Tensor:
    """[B, 1, H, W]: the pattern of each window at its place, lying on its side for every other window."""
    table = _patterns(min(like.shape[2:]), norm, like.dtype, like.device)
    turned = _wide(rng.uniform() < 0.5)
    first, second = torch.where(turned, columns, rows), torch.where(turned, rows, columns)
    last = table.shape[1] - 1
    return table[_wide(side_B), first.clamp(0, last), second.clamp(0, last)]


@lru_cache(maxsize=16)
def _patterns(largest: int, norm: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[side, largest, largest]: for every side the pattern of a window, zero beyond it, of length 1."""
    table = torch.zeros(largest + 1, largest, largest, dtype=torch.float64)
    for side in range(1, largest + 1):
        half = side // 2
        table[side, :half, :side] = _hill(half, side, _FALL_OFF[norm])
        table[side, half:side, :side] = -_hill(side - half, side, _FALL_OFF[norm])
        table[side] /= _length(table[side][None, None], norm).squeeze().clamp_min(1e-12)
    return table.to(dtype).to(device)


def _hill(height: int, width: int, fall_off: int) -> Tensor:
    r"""A rectangle whose ring number r from its center holds :math:`\sum_{k > r} k^{-p}`, cut off at its edge."""
    rows = (torch.arange(height) - height // 2).abs()[:, None]
    columns = (torch.arange(width) - width // 2).abs()[None, :]
    rings = max(height, width) // 2 + 1
    heights = (1.0 / torch.arange(1, rings + 1, dtype=torch.float64) ** fall_off).flip(0).cumsum(0).flip(0)
    hill = heights[rows.maximum(columns).clamp_max(rings - 1)]
    return hill / (hill.square().sum().sqrt() if fall_off == _FALL_OFF["l2"] else hill.sum()).clamp_min(1e-12)


def _tiles(x0: Tensor, rng: RandomStreams, norm: str) -> Tensor:
    """The first pattern: tiles with random signs per channel, each upright or on its side."""
    height, width = x0.shape[2:]
    side = max(min(height, width) // _TILES, 1)
    margin = max((height - side * _TILES) // 2, 0)
    down, across = height // side, width // side
    rows, columns = (torch.arange(length, device=x0.device) - margin for length in (height, width))
    pattern = _patterns(min(height, width), norm, x0.dtype, x0.device)[side, :side, :side]
    upright = pattern[rows.remainder(side)[:, None], columns.remainder(side)[None, :].clamp_max(side - 1)]
    on_side = pattern.T[rows.remainder(side)[:, None], columns.remainder(side)[None, :].clamp_max(side - 1)]
    at_row, at_column = rows.div(side, rounding_mode="floor"), columns.div(side, rounding_mode="floor")
    within = ((at_row >= 0) & (at_row < down))[:, None] & ((at_column >= 0) & (at_column < across))[None, :]
    tile = at_row.clamp(0, down - 1)[:, None] * across + at_column.clamp(0, across - 1)[None, :]
    turned = (rng.fold(0).uniform(down * across) < 0.5)[:, tile][:, None]
    signs = rng.fold(1).signs(x0.shape[1], down * across, dtype=x0.dtype)[:, :, tile]
    return torch.where(turned, on_side, upright) * signs * within
