r"""Gates of a TORA model: the share of each adapter, per patch and block.

After every block a gate weights the outputs of the accuracy and the robustness adapter (`vitadel.models.tora`). With
:math:`G^a_{hij}` the weight of adapter a for query i and key j in head h, the share of an adapter for patch j is

.. math:: s^a_j = \frac{1}{H N} \sum_{h, i} \frac{G^a_{hij}}{\sum_b G^b_{hij}},

the mean over all heads and all N queries, including the class token and other prefix tokens. A gate per token
(AdapterFusion) has no queries: there it is the mean over heads. Shares of prefix tokens are dropped. If all weights are
zero, as a softmax over tokens may give, the shares are equal. The shares of a patch sum to one.

The gate after the last block is shown as well, but no head uses its output, so it is untrained.

Shape letters: A adapters, B images, H heads, N tokens, P patches, L blocks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitadel.analyze.layers import outputs_of
from vitadel.attacks.isolation import isolated
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, CountOrZero, check_ranges
from vitadel.evaluate.context import Batch, Context
from vitadel.evaluate.images import thumbnail
from vitadel.models import AdaptedViT, Model, family_of
from vitadel.runs.exhibits import Exhibit, Line, Lines, Picture, Pictures, Table
from vitadel.runs.schema import StudyRecord

_ADAPTERS = {"acc": "accuracy", "rob": "robustness"}
_COLUMNS = 12  # blocks that the pictures show by default
_BATCH = 64
_SHARES, _MAPS = "gates", "maps"
# numbers over images by name, adapter by adapter and block by block
PerBlock = Mapping[str, Sequence[Sequence[float]]]


@dataclass(frozen=True, slots=True)
class TORAGates:
    """Maps of the share that the gates of a TORA model give each adapter, and mean shares per block.

    Args:
        images: Number of images whose maps are shown, the first ones; means are over all images.
        blocks: Numbers of the blocks that are shown; () for all, up to twelve. Means are of all blocks.
    """

    title: ClassVar[str] = "Gates of the adapters"
    about: ClassVar[str] = "weights that the gates of a TORA model give its adapters: maps, means per block"
    needs_threat: ClassVar[bool] = False

    images: Count = 8
    blocks: tuple[CountOrZero, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)

    def check(self, model: nn.Module) -> None:
        depth = len(_gated(model).fusions)
        if beyond := [block for block in self.blocks if block >= depth]:
            raise UsageError(
                f"the model has {depth} blocks, counted from 0; TORAGates.blocks asks for {beyond[0]}. "
                f"Choose from 0 to {depth - 1}."
            )

    def run(self, ctx: Context) -> None:
        blocks, size = self._shown_blocks(ctx), ctx.engine.batch_size or _BATCH

        def means(batch: Batch) -> dict[str, object]:
            flat_BLAP = _shares_of(ctx, batch.x).flatten(-2)
            return {"mean": flat_BLAP.mean(-1), "spread": flat_BLAP.std(-1, correction=0)}

        ctx.map(_SHARES, means, batch_size=size)
        shown = range(min(self.images, len(ctx.images)))
        ctx.map(_MAPS, lambda batch: {"shares": _shares_of(ctx, batch.x)[:, blocks]}, index=shown, batch_size=size)

    def summarize(self, ctx: Context) -> StudyRecord:
        tuning, n, rows, maps = _gated(ctx.model).tuning, len(ctx.images), ctx.table(_SHARES), ctx.table(_MAPS)
        shown, shares_BLAhw = ctx.batch(maps.index), torch.tensor(maps["shares"], dtype=torch.float64)
        mean_nLA, spread_nLA = (torch.tensor(rows[name], dtype=torch.float64) for name in ("mean", "spread"))
        by_name = {
            "mean": mean_nLA.mean(0),
            "deviation": mean_nLA.std(0, correction=0),
            "least": mean_nLA.amin(0),
            "greatest": mean_nLA.amax(0),
            "over_patches": spread_nLA.mean(0),
        }
        statistics = {name: value_LA.T.tolist() for name, value_LA in by_name.items()}
        over, blocks = "heads" if tuning.gate == "per-token" else "heads and queries", self._shown_blocks(ctx)
        exhibits: list[Exhibit] = [
            *(_maps(shown, shares_BLAhw[:, :, number], blocks, name, over) for number, name in enumerate(tuning.names)),
            _curve(statistics, tuning.names, n),
            _table(statistics, tuning.names, n),
        ]
        numbers = {
            "n": n,
            "gate": tuning.gate,
            "softmax": tuning.softmax,
            "shares": {
                adapter: {name: value[number] for name, value in statistics.items()}
                for number, adapter in enumerate(tuning.names)
            },
        }
        return StudyRecord("tora-gates", self.title, _summary(statistics, tuning.names, n), exhibits, numbers)

    def _shown_blocks(self, ctx: Context) -> list[int]:
        depth = len(_gated(ctx.model).fusions)
        count = min(depth, _COLUMNS)
        return list(self.blocks) or [round(number * (depth - 1) / max(1, count - 1)) for number in range(count)]


def shares(g: Tensor, patches: int) -> Tensor:
    """[A, B, P]: the share of each adapter for each patch, from gates [A, B, H, N, N] or [A, B, H, N]."""
    g = g.float() if g.dtype in (torch.float16, torch.bfloat16) else g
    sum_ = g.sum(0, keepdim=True)
    share = torch.where(sum_ > 0, g / sum_, 1 / len(g))
    # over heads and queries, or heads; `dtype` sums in float64 without a copy of all gates
    return share.mean(tuple(range(2, g.ndim - 1)), dtype=torch.float64)[..., -patches:]


def _gated(model: nn.Module) -> AdaptedViT:
    net = model.net if isinstance(model, Model) else model
    if not isinstance(model, Model) or not isinstance(net, AdaptedViT):
        raise UsageError(
            f"this study reads the gates of a TORA model, and {type(net).__name__} has none. "
            "Train one with a TORA recipe, or make one with vitadel.models.tora."
        )
    if not net.fusions:
        raise UsageError(
            f"a gate weights two adapters, and this model has no gates: it was made with tuning={net.tuning.tuning!r}. "
            "Choose a model with tuning='tora'."
        )
    return net


def _shares_of(ctx: Context, x: Tensor) -> Tensor:
    """[B, L, A, h, w]: the shares of some images, on the CPU."""
    net = _gated(ctx.model)
    height, width = family_of(net).grid(net, x.shape[-1]) or (0, 0)
    gates = [fusion.get_submodule("gates") for fusion in net.fusions]
    # averaged in the hook, as the gates of all blocks may not fit into memory
    read = outputs_of(gates, lambda block, g: shares(g, height * width))
    with isolated(ctx.model, ctx.seed, ctx.device), torch.no_grad(), read as result:
        ctx.model(x)
    if len(result) < len(gates):
        raise UsageError("the hooks on the gates never fired: compiled code does not see them. Study the model itself.")
    shares_LABP = torch.stack([result[block] for block in range(len(gates))])
    return shares_LABP.permute(2, 0, 1, 3).unflatten(-1, (height, width)).cpu()


def _maps(shown: Batch, shares_BLhw: Tensor, blocks: Sequence[int], name: str, over: str) -> Pictures:
    images = [thumbnail(x) for x in shown.x.cpu()]
    half_range, word = _half_range(shares_BLhw), _ADAPTERS[name]
    return Pictures(
        f"Share of the {word} adapter",
        f"The share of the {word} adapter in the gate after each block, for each patch: its weight divided by the sum "
        f"over the adapters, mean over {over}. White is 0.5, red more, blue less; the image is visible as a shade. The "
        "gate after the last block is untrained, as no head uses its output.",
        [
            [Picture.of(image), *(Picture.of(image.mean(0, keepdim=True), one) for one in maps_Lhw)]
            for image, maps_Lhw in zip(images, shares_BLhw, strict=True)
        ],
        rows=[f"label {label}" for label in shown.y.tolist()],
        columns=["image", *(f"block {block}" for block in blocks)],
        scale_label=f"share of {name}",
        low=0.5 - half_range,
        high=0.5 + half_range,
    )


def _half_range(maps: Tensor) -> float:
    """Half the range of the scale around 0.5: the largest distance from 0.5, rounded up to one digit."""
    largest = float((maps - 0.5).abs().max())
    digit = 10.0 ** math.floor(math.log10(max(largest, 1e-3)))
    return min(0.5, max(1e-3, math.ceil(largest / digit - 1e-9) * digit))


def _curve(statistics: PerBlock, names: Sequence[str], n: int) -> Lines:
    lines = []
    for name, mean, deviation in zip(names, statistics["mean"], statistics["deviation"], strict=True):
        low, high = ([m + sign * d for m, d in zip(mean, deviation, strict=True)] for sign in (-1, 1))
        lines.append(Line(f"{_ADAPTERS[name]} adapter", list(range(len(mean))), mean, low, high))
    return Lines(
        "Mean share per block",
        f"The share of each adapter, mean over all patches and {n} images; bands are one standard deviation over "
        "images. The gate after the last block is untrained.",
        lines,
        x_label="block",
        y_label="share",
        references=[("a half", 0.5)],
    )


def _table(statistics: PerBlock, names: Sequence[str], n: int) -> Table:
    last = [statistics[name][-1] for name in ("deviation", "least", "greatest", "over_patches")]
    return Table(
        "Share per block (table)",
        f"The mean over all patches and {n} images. For {names[-1]} also the standard deviation, minimum and maximum "
        "of the means of single images, and the mean standard deviation over the patches of an image.",
        ["block", *(f"share of {name}" for name in names), "std, images", "min", "max", "std, patches"],
        [[block, *values] for block, values in enumerate(zip(*statistics["mean"], *last, strict=True))],
        digits=4,
    )


def _summary(statistics: PerBlock, names: Sequence[str], n: int) -> str:
    mean = statistics["mean"][-1][:-1] or statistics["mean"][-1]  # without the last block, whose gate is untrained
    low, high = min(range(len(mean)), key=mean.__getitem__), max(range(len(mean)), key=mean.__getitem__)
    return (
        f"On {n} images the gates give the {_ADAPTERS[names[-1]]} adapter {sum(mean) / len(mean):.3f} of the weight on "
        f"average over all blocks but the last, from {mean[low]:.3f} after block {low} to {mean[high]:.3f} after block "
        f"{high}."
    )
