r"""Whom do the gates of a TORA model listen to? The share of each adapter, patch by patch and block by block.

After every block a gate weighs what the accuracy and the robustness adapter found (`vitadel.models.tora`). With
:math:`G^a_{hij}` the weight of adapter a for query i and key j in head h, the share of an adapter for patch j is

.. math:: s^a_j = \frac{1}{H N} \sum_{h, i} \frac{G^a_{hij}}{\sum_b G^b_{hij}},

the mean over all heads and all N queries, the class token and other prefix tokens among them. A gate per token
(AdapterFusion) has no queries: there it is the mean over heads. Shares of prefix tokens are dropped. An entry that is
zero for all adapters, as a softmax over tokens may give, is shared evenly. The shares of a patch sum to one.

The gate after the last block is there and shown, but no head reads what it fuses, so that nothing has trained it.

Shape letters: A adapters, B images, H heads, N tokens, P patches, L blocks.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitadel.analyze import attacked_images
from vitadel.analyze.study import Bench
from vitadel.attacks import isolated
from vitadel.core.device import device_of
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, CountOrZero, check_ranges
from vitadel.core.oom import in_batches
from vitadel.core.progress import Notify
from vitadel.models import Adapted, Model, family_of
from vitadel.runs import describe
from vitadel.runs.exhibits import Exhibit, Line, Lines, Picture, Pictures, Table, findings

_ADAPTERS = {"acc": "accuracy", "rob": "robustness"}
_COLUMNS = 12  # blocks that the pictures show if nobody chose any
_ROWS = 64


@dataclass(frozen=True, slots=True)
class TORAGates:
    """Maps of what the gates of a TORA model give each adapter, on the first images, and their means on all images.

    `images` counts the images whose maps are shown, `blocks` are the numbers of the blocks that are; () shows all, of
    deep networks twelve. Means are of all blocks and all images.
    """

    about: ClassVar[str] = "whom do the gates of a TORA model listen to? Maps of shares, means per block"
    needs_threat: ClassVar[bool] = False

    images: Count = 8
    blocks: tuple[CountOrZero, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)

    def refuse(self, model: nn.Module) -> None:
        self._columns(len(_gated(model).fusions))

    def carry_out(self, bench: Bench) -> dict[str, object]:
        """The shares on all images, and maps of the first; `threat` is not looked at."""
        images, parts = bench.images, bench.parts
        if len(images) == 0:
            raise UsageError("there are no images to study. Choose a longer slice of the data.")
        net, rows = _gated(bench.model), bench.batch or _ROWS
        columns, names = self._columns(len(net.fusions)), net.tuning.names

        def look(at: Tensor) -> Tensor:
            return _shares_of(bench.model, images.images(at), bench.seed)

        told = _per_block(parts.once("shares", lambda: _each_image(look, len(images), rows, bench.notify)))
        shown = torch.arange(min(self.images, len(images)))
        maps_BLAhw = torch.cat([made for _, made in in_batches(shown, rows, look)])[:, columns]
        x, labels = images.images(shown), images.labels[shown].tolist()
        over = "heads" if net.tuning.gate == "per-token" else "heads and queries"
        exhibits: list[Exhibit] = [
            *(_maps(x, labels, maps_BLAhw[:, :, a], columns, name, over) for a, name in enumerate(names)),
            _curve(told, names, len(images)),
            _table(told, names, len(images)),
        ]
        numbers = {
            "n": len(images),
            "settings": describe(self),
            "gate": net.tuning.gate,
            "softmax": net.tuning.softmax,
            "shares": {name: {key: told[key][a] for key in told} for a, name in enumerate(names)},
            "seconds": parts.seconds,
        }
        result = findings("gates", "Gates of the adapters", _summary(told, names, len(images)), exhibits, numbers)
        parts.close(result)
        return result

    def _columns(self, depth: int) -> list[int]:
        if far := [block for block in self.blocks if block >= depth]:
            raise UsageError(f"the model has {depth} blocks, counted from 0; TORAGates.blocks asks for {far[0]}.")
        if self.blocks:
            return list(self.blocks)
        count = min(depth, _COLUMNS)
        return [round(place * (depth - 1) / max(1, count - 1)) for place in range(count)]


def shares(g: Tensor, patches: int) -> Tensor:
    """[A, B, P]: the share of each adapter for each patch, from gates [A, B, H, N, N] or [A, B, H, N]."""
    g = g.float() if g.dtype in (torch.float16, torch.bfloat16) else g
    sum_ = g.sum(0, keepdim=True)
    share = torch.where(sum_ > 0, g / sum_, 1 / len(g))
    # heads and queries, or heads alone; sums are exact to float64 where a copy of all gates in it would be large
    return share.mean(tuple(range(2, g.ndim - 1)), dtype=torch.float64)[..., -patches:]


def _gated(model: nn.Module) -> Adapted:
    net = model.net if isinstance(model, Model) else model
    if not isinstance(model, Model) or not isinstance(net, Adapted):
        raise UsageError(
            f"this study looks at the gates of a TORA model, and {type(net).__name__} has none. "
            "Train one with a TORA recipe, or make one with vitadel.models.tora."
        )
    if not net.fusions:
        raise UsageError(
            f"a gate weighs two adapters, and this model has none: it was made with tuning={net.tuning.tuning!r}. "
            "Choose a model with tuning='tora'."
        )
    return net


def _shares_of(model: nn.Module, x: Tensor, seed: int) -> Tensor:
    """[B, L, A, h, w]: the shares of some images, on the CPU."""
    net, device = _gated(model), device_of(model)
    height, width = family_of(net).grid(net, x.shape[-1]) or (0, 0)
    with isolated(model, seed, device), torch.no_grad(), _watched(net, height * width) as seen:
        model(x.to(device))
    if len(seen) < len(net.fusions):
        raise UsageError("the gates were never seen: compiled code does not see hooks. Study the model itself.")
    stacked = torch.stack([seen[block] for block in range(len(seen))])
    return stacked.permute(2, 0, 1, 3).unflatten(-1, (height, width)).cpu()


@contextmanager
def _watched(net: Adapted, patches: int) -> Iterator[dict[int, Tensor]]:
    """Inside, the shares of every gate by the number of its block, from the latest forward pass."""
    seen: dict[int, Tensor] = {}

    def at(block: int) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def look(module: nn.Module, args: tuple[Tensor, ...], gates: Tensor) -> None:
            # at once, as all gates together may not fit into memory
            seen[block] = shares(gates, patches)

        return look

    handles = [
        fusion.get_submodule("gates").register_forward_hook(at(block)) for block, fusion in enumerate(net.fusions)
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _each_image(look: Callable[[Tensor], Tensor], n: int, rows: int, notify: Notify) -> dict[str, object]:
    """Of every image, block and adapter the mean share over patches, and the deviation from patch to patch."""
    mean: list[object] = []
    spread: list[object] = []
    for at, found in in_batches(torch.arange(n), rows, look):
        flat_BLAP = found.flatten(-2)
        mean += flat_BLAP.mean(-1).tolist()
        spread += flat_BLAP.std(-1, correction=0).tolist()
        notify("gates", int(at[-1]) + 1, n, {})
    return {"mean": mean, "spread": spread}


def _per_block(found: Mapping[str, object]) -> dict[str, list[list[float]]]:
    """Over all images, adapter by adapter and block by block."""
    mean_nLA = torch.tensor(found["mean"], dtype=torch.float64)
    spread_nLA = torch.tensor(found["spread"], dtype=torch.float64)
    told = {
        "mean": mean_nLA.mean(0),
        "deviation": mean_nLA.std(0, correction=0),
        "least": mean_nLA.amin(0),
        "greatest": mean_nLA.amax(0),
        "over_patches": spread_nLA.mean(0),
    }
    return {key: value_LA.T.tolist() for key, value_LA in told.items()}


def _maps(
    x: Tensor, labels: Sequence[int], maps_BLhw: Tensor, columns: Sequence[int], name: str, over: str
) -> Pictures:
    small = [attacked_images.small(one) for one in x.cpu()]
    reach, word = _reach(maps_BLhw), _ADAPTERS[name]
    return Pictures(
        f"Share of the {word} adapter",
        f"What the gate after each block gives the {word} adapter for each patch: its weight divided by the sum over "
        f"the adapters, mean over {over}. White is a half, red more, blue less; the image shows through as a shade. No "
        "head reads what the gate after the last block fuses: nothing has trained it.",
        [
            [Picture.of(image), *(Picture.of(image.mean(0, keepdim=True), one) for one in maps)]
            for image, maps in zip(small, maps_BLhw, strict=True)
        ],
        rows=[f"label {label}" for label in labels],
        columns=["image", *(f"block {block}" for block in columns)],
        scale_label=f"share of {name}",
        low=0.5 - reach,
        high=0.5 + reach,
    )


def _reach(maps: Tensor) -> float:
    """How far from a half the scale must go: the greatest distance there is, rounded up to one digit."""
    most = float((maps - 0.5).abs().max())
    digit = 10.0 ** math.floor(math.log10(max(most, 1e-3)))
    return min(0.5, max(1e-3, math.ceil(most / digit - 1e-9) * digit))


def _curve(told: Mapping[str, list[list[float]]], names: Sequence[str], n: int) -> Lines:
    return Lines(
        "Mean share per block",
        f"The share of each adapter, mean over all patches and {n} images; bands are one standard deviation from image "
        "to image. The gate after the last block is untrained.",
        [
            Line(
                f"{_ADAPTERS[name]} adapter",
                list(range(len(mean))),
                mean,
                [m - d for m, d in zip(mean, deviation, strict=True)],
                [m + d for m, d in zip(mean, deviation, strict=True)],
            )
            for name, mean, deviation in zip(names, told["mean"], told["deviation"], strict=True)
        ],
        x_label="block",
        y_label="share",
        references=[("a half", 0.5)],
    )


def _table(told: Mapping[str, list[list[float]]], names: Sequence[str], n: int) -> Table:
    last, means = names[-1], told["mean"]
    rest = [told[key][-1] for key in ("deviation", "least", "greatest", "over_patches")]
    return Table(
        "Shares in numbers",
        f"The mean over all patches and {n} images; and, for {last}, of the means of single images the standard "
        "deviation, the least and the greatest, and the standard deviation from patch to patch within an image.",
        ["block", *(f"share of {name}" for name in names), "std, images", "least", "greatest", "std, patches"],
        [[block, *numbers] for block, numbers in enumerate(zip(*means, *rest, strict=True))],
        digits=4,
    )


def _summary(told: Mapping[str, list[list[float]]], names: Sequence[str], n: int) -> str:
    mean = told["mean"][-1][:-1] or told["mean"][-1]  # that of the last block is untrained
    low, high = min(range(len(mean)), key=mean.__getitem__), max(range(len(mean)), key=mean.__getitem__)
    overall = sum(mean) / len(mean)
    return (
        f"On {n} images the gates give the {_ADAPTERS[names[-1]]} adapter {overall:.3f} of the weight on average over "
        f"all blocks but the last, from {mean[low]:.3f} after block {low} to {mean[high]:.3f} after block {high}."
    )
