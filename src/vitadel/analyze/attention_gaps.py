"""The gap between the two largest scores of each row of attention.

The softmax gives the second largest score at most exp(-gap) times the weight of the largest. If that underflows in a
floating-point format, the row is exactly one-hot, and no gradient passes through its scores.

Shape letters: B images, H heads, N rows of attention, M scores per row.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from vitadel.analyze.base import map_chunks
from vitadel.attacks.isolation import eval_without_weight_gradients
from vitadel.core.oom import in_batches
from vitadel.evaluate.context import Context
from vitadel.models import Model

# the gap beyond which exp(-gap) is smaller than the smallest normal number of a format, and than its smallest number
LINES: dict[str, float] = {
    "float16, normal": 14 * math.log(2),
    "float16, subnormal": 24 * math.log(2),
    "float32 and bfloat16, normal": 126 * math.log(2),
    "float32, subnormal": 149 * math.log(2),
}
# twenty bins per decade from 1e-8 to 1e8, one below (for ties, too), one above
_LEAST, _DECADES, _PER_DECADE = 1e-8, 16, 20
EDGES: tuple[float, ...] = tuple(_LEAST * 10 ** (k / _PER_DECADE) for k in range(_DECADES * _PER_DECADE + 1))
_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class GapCounts:
    """Counts of one attention layer per head: rows per bin, rows beyond each line, and the largest gap."""

    bins_HC: Tensor
    beyond_HL: Tensor
    largest_H: Tensor

    def __add__(self, other: "GapCounts") -> "GapCounts":
        largest_H = self.largest_H.maximum(other.largest_H)
        return GapCounts(self.bins_HC + other.bins_HC, self.beyond_HL + other.beyond_HL, largest_H)

    def to_json(self) -> dict[str, object]:
        """The counts of all heads together, and of each head."""
        heads = zip(self.bins_HC, self.beyond_HL, self.largest_H.tolist(), strict=True)
        return {
            "all": _described(self.bins_HC.sum(0), self.beyond_HL.sum(0), float(self.largest_H.max())),
            "heads": [_described(bins, beyond, largest) for bins, beyond, largest in heads],
        }


def _described(bins_C: Tensor, beyond_L: Tensor, largest: float) -> dict[str, object]:
    return {
        "rows": int(bins_C.sum()),
        "counts": bins_C.tolist(),
        "beyond": beyond_L.tolist(),
        "median": binned_median(bins_C.tolist(), largest),
        "max": largest,
    }


def measure_gaps(ctx: Context, table: str, factors: Sequence[float] | None = None) -> list[dict[str, Any]]:
    """Counts of gaps for every attention and head, as JSON values.

    Args:
        ctx: The context; its model has taps.
        table: The table of the counts, with a row per 64 images.
        factors: A factor for the scores of each attention layer.
    """
    model = ctx.model
    assert isinstance(model, Model)

    def work(index: Tensor) -> dict[str, object]:
        parts = in_batches(index, min(64, ctx.batch_size), lambda part: _count(model, ctx.images.images(part), factors))
        counts = _sums(part for _, part in parts)
        columns = {
            field.name: [getattr(one, field.name).tolist() for one in counts.values()] for field in fields(GapCounts)
        }
        return {"attention": list(counts), **columns}

    map_chunks(ctx, table, work)
    rows = ctx.table(table)
    types = {"bins_HC": torch.int64, "beyond_HL": torch.int64, "largest_H": torch.float64}
    with rows.understood():
        sums = _sums(
            {
                attention: GapCounts(
                    **{name: torch.tensor(rows[name][row][place], dtype=types[name]) for name in types}
                )
                for place, attention in enumerate(names)
            }
            for row, names in enumerate(rows["attention"])
        )
    return [{"name": name, **one.to_json()} for name, one in sums.items()]


def _sums(parts: Iterable[Mapping[str, GapCounts]]) -> dict[str, GapCounts]:
    sums: dict[str, GapCounts] = {}
    for part in parts:
        sums.update({name: sums[name] + counts if name in sums else counts for name, counts in part.items()})
    return sums


@torch.no_grad()
def _count(model: Model, x: Tensor, factors: Sequence[float] | None) -> dict[str, GapCounts]:
    """The counts of a batch; only one layer's scores are in memory at a time."""
    by_layer: dict[str, GapCounts] = {}

    def count(name: str) -> Callable[[Tensor], Tensor]:
        def edit(scores: Tensor) -> Tensor:
            by_layer[name] = count_gaps(scores)
            return scores

        return edit

    device = next(model.parameters()).device
    with ExitStack() as stack:
        stack.enter_context(eval_without_weight_gradients(model))
        stack.enter_context(model.taps.scale(factors) if factors is not None else nullcontext())
        for name in model.taps.attentions():
            # an edit that changes nothing, since a read would keep the scores of all layers in memory
            stack.enter_context(model.taps.edit(f"{name}.logits", count(name)))
        model(x.to(device))
    return by_layer


def count_gaps(scores_BHNM: Tensor) -> GapCounts:
    """Count the gaps of scores; rows with a single score are not counted."""
    if scores_BHNM.ndim < 4:
        scores_BHNM = scores_BHNM.unsqueeze(1)
    if scores_BHNM.shape[-1] < 2:
        scores_BHNM = scores_BHNM.new_zeros(0, scores_BHNM.shape[1], 1, 2)
    top = scores_BHNM.topk(2).values.double()
    # scores of minus infinity are masked out: their gap is beyond every line
    gap_HN = (top[..., 0] - top[..., 1]).transpose(0, 1).flatten(1).clamp_max(_LARGEST).contiguous()
    heads, bins = len(gap_HN), len(EDGES) + 1
    edges = torch.tensor(EDGES, dtype=torch.float64, device=gap_HN.device)
    bin_HN = torch.bucketize(gap_HN, edges, right=True)
    bin_HN = bin_HN + bins * torch.arange(heads, device=gap_HN.device)[:, None]
    lines = torch.tensor(list(LINES.values()), dtype=torch.float64, device=gap_HN.device)
    none = torch.zeros(heads, 1, dtype=torch.float64, device=gap_HN.device)
    return GapCounts(
        torch.bincount(bin_HN.flatten(), minlength=heads * bins).view(heads, bins).cpu(),
        (gap_HN[:, :, None] > lines).sum(1).cpu(),
        torch.cat([gap_HN, none], 1).amax(1).cpu(),
    )


def binned_median(counts: Sequence[int], largest: float) -> float:
    """The median from the counts of bins, which are 12% wide; inside a bin, gaps are even on the logarithmic scale."""
    half, before = sum(counts) / 2, 0
    for number, count in enumerate(counts):
        if count and before + count >= half:
            inside = (half - before) / count
            if number == 0:
                return EDGES[0] * inside
            if number == len(EDGES):
                return largest
            return min(largest, EDGES[number - 1] * (EDGES[number] / EDGES[number - 1]) ** inside)
        before += count
    return 0.0
