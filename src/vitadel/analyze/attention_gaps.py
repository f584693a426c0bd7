"""How far the largest score of a row of attention lies above the second, and what becomes of its softmax.

The softmax of a row gives its second place at most exp(-gap) of what the first gets. Where that is less than a
floating-point format can hold, the row is exactly one-hot there, and no gradient passes through its scores.

Shape letters: B images, H heads, N rows of attention, M scores per row.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from vitadel.attacks import frozen
from vitadel.core.oom import in_batches
from vitadel.core.progress import Notify
from vitadel.evaluate.images import Images
from vitadel.models import Model

# the gap beyond which exp(-gap) leaves a format: from the least normal number down to the least number of all
LINES: dict[str, float] = {
    "float16, normal": 14 * math.log(2),
    "float16, subnormal": 24 * math.log(2),
    "float32 and bfloat16, normal": 126 * math.log(2),
    "float32, subnormal": 149 * math.log(2),
}
# twenty bins per decade from 1e-8 to 1e8, one for all below (ties included), one for all above
_LEAST, _DECADES, _PER_DECADE = 1e-8, 16, 20
EDGES: tuple[float, ...] = tuple(_LEAST * 10 ** (k / _PER_DECADE) for k in range(_DECADES * _PER_DECADE + 1))
_LARGEST = torch.finfo(torch.float32).max


@dataclass(slots=True)
class _Tally:
    """Counts of one attention, head by head."""

    bins_HC: Tensor
    beyond_HL: Tensor
    greatest_H: Tensor

    def add(self, other: "_Tally") -> None:
        self.bins_HC += other.bins_HC
        self.beyond_HL += other.beyond_HL
        self.greatest_H = self.greatest_H.maximum(other.greatest_H)

    def told(self) -> dict[str, object]:
        """All heads together, and each of them."""
        heads = zip(self.bins_HC, self.beyond_HL, self.greatest_H.tolist(), strict=True)
        return {
            "all": _described(self.bins_HC.sum(0), self.beyond_HL.sum(0), float(self.greatest_H.max())),
            "heads": [_described(bins, beyond, greatest) for bins, beyond, greatest in heads],
        }


def _described(bins_C: Tensor, beyond_L: Tensor, greatest: float) -> dict[str, object]:
    return {
        "rows": int(bins_C.sum()),
        "counts": bins_C.tolist(),
        "beyond": beyond_L.tolist(),
        "median": middle(bins_C.tolist(), greatest),
        "max": greatest,
    }


def gaps(
    model: Model, images: Images, factors: Sequence[float] | None, *, batch: int, notify: Notify, what: str
) -> dict[str, object]:
    """Counts of gaps for every attention and head, on the model as it is or with its scores multiplied by `factors`.

    One attention is held in memory at a time.
    """
    tallies: dict[str, _Tally] = {}
    done = 0
    for rows, found in in_batches(
        torch.arange(len(images)), batch, lambda at: _look(model, images.images(at), factors)
    ):
        for name, tally in found.items():
            tallies.setdefault(name, tally) if name not in tallies else tallies[name].add(tally)
        done += len(rows)
        notify(what, done, len(images), {})
    return {"attentions": [{"name": name, **tally.told()} for name, tally in tallies.items()]}


@torch.no_grad()
def _look(model: Model, x: Tensor, factors: Sequence[float] | None) -> dict[str, _Tally]:
    found: dict[str, _Tally] = {}

    def at(name: str) -> Callable[[Tensor], Tensor]:
        def look(scores: Tensor) -> Tensor:
            found[name] = tally(scores)
            return scores

        return look

    device = next(model.parameters()).device
    with ExitStack() as stack:
        stack.enter_context(frozen(model))
        stack.enter_context(model.taps.scale(factors) if factors is not None else nullcontext())
        for name in model.taps.attentions():
            # an edit that changes nothing sees a tensor pass by, where a read would keep them all
            stack.enter_context(model.taps.edit(f"{name}.logits", at(name)))
        model(x.to(device))
    return found


def tally(scores_BHNM: Tensor) -> _Tally:
    """Count the gaps of some scores; a row with a single score has none and is not counted."""
    if scores_BHNM.ndim < 4:
        scores_BHNM = scores_BHNM.unsqueeze(1)
    if scores_BHNM.shape[-1] < 2:
        scores_BHNM = scores_BHNM.new_zeros(0, scores_BHNM.shape[1], 1, 2)
    top = scores_BHNM.topk(2).values.double()
    # scores of minus infinity are masked out: nothing of them is left in any format
    gap_HN = (top[..., 0] - top[..., 1]).transpose(0, 1).flatten(1).clamp_max(_LARGEST).contiguous()
    heads, bins = len(gap_HN), len(EDGES) + 1
    edges = torch.tensor(EDGES, dtype=torch.float64, device=gap_HN.device)
    place_HN = torch.bucketize(gap_HN, edges, right=True)
    place_HN = place_HN + bins * torch.arange(heads, device=gap_HN.device)[:, None]
    lines = torch.tensor(list(LINES.values()), dtype=torch.float64, device=gap_HN.device)
    none = torch.zeros(heads, 1, dtype=torch.float64, device=gap_HN.device)
    return _Tally(
        torch.bincount(place_HN.flatten(), minlength=heads * bins).view(heads, bins).cpu(),
        (gap_HN[:, :, None] > lines).sum(1).cpu(),
        torch.cat([gap_HN, none], 1).amax(1).cpu(),
    )


def middle(counts: Sequence[int], greatest: float) -> float:
    """The median as the bins tell it: a bin is 12% wide, and inside it places are even on the logarithmic scale."""
    half, before = sum(counts) / 2, 0
    for place, count in enumerate(counts):
        if count and before + count >= half:
            inside = (half - before) / count
            if place == 0:
                return EDGES[0] * inside
            if place == len(EDGES):
                return greatest
            return min(greatest, EDGES[place - 1] * (EDGES[place] / EDGES[place - 1]) ** inside)
        before += count
    return 0.0
