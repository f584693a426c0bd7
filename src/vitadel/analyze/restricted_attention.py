r"""Restricted attention: accuracy when patches may attend only to nearby patches.

Bhojanapalli et al. (2021, arXiv:2103.14586, section 4) mask, in a trained model, attention between patches that are
more than d rows or columns apart, :math:`\max(|\Delta r|, |\Delta c|) > d` on the grid of patches; the class token and
other prefix tokens attend to and are attended by all. The control is a mask of the same density that ignores distance:
the entries of the first mask in a random order, the same for all distances. Patches may then have different numbers of
keys, even none; `rows` shuffles each row separately instead, so that each query keeps its number of keys. On a grid of
g x g patches,

.. math:: \text{density} = \left( \frac{g (2d + 1) - d (d + 1)}{g^2} \right)^2 .

Finally, patches attend only to the class token and themselves, in the first k blocks or in the last k.

Shape letters: N tokens, P patches.
"""

import enum
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from vitadel.analyze.layers import layers_of
from vitadel.analyze.prefix_cache import LayerChange, Variant, count_correct, map_variants, variant
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, CountOrZero, Range, check_ranges
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.core.stats import Accuracy
from vitadel.evaluate.context import Context
from vitadel.models import Layer, Model, family_of
from vitadel.runs.exhibits import Exhibit, Line, Lines, Table
from vitadel.runs.schema import StudyRecord

_TABLE = "restrictions"
_USUAL = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_ENDS = ("first", "last")
_NEVER_ALONE = "This model has no class token in these blocks, so attention is not restricted to it."


class Shuffle(enum.Enum):
    """How the random mask is made from the mask by distance."""

    ENTRIES = "entries"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class RestrictedAttention:
    """Accuracy with attention restricted to near patches, to random ones, and to the class token.

    Args:
        distances: Largest distances in patches; () for a selection up to the whole grid.
        shuffle: How random masks are made.
        draws: Random masks for each distance; 0 leaves them out.
        ends: Numbers of first or last blocks in which patches attend only to the class token; () for all numbers.
        itself: Whether patches then attend to themselves, too.
    """

    title: ClassVar[str] = "Restricted attention"
    about: ClassVar[str] = "accuracy with attention limited by distance, at random, or to the class token"
    needs_threat: ClassVar[bool] = False

    distances: tuple[CountOrZero, ...] = ()
    shuffle: Shuffle = Shuffle.ENTRIES
    draws: Annotated[int, Range(ge=0, top=1000, hint="0 leaves random masks out.")] = 1
    ends: tuple[Count, ...] = ()
    itself: bool = True

    def __post_init__(self) -> None:
        check_ranges(self)

    def check(self, model: nn.Module) -> None:
        loaded, layers = layers_of(model)
        attentive = _restrictable_blocks(loaded, layers)
        if beyond := [count for count in self.ends if count > len(attentive)]:
            raise UsageError(
                f"the model has {len(attentive)} such blocks; RestrictedAttention.ends asks for {beyond[0]}. "
                f"Write at most {len(attentive)}."
            )
        if self.ends and not _has_class_token(layers):
            raise UsageError(
                "this model has no class token in these blocks, so attention cannot be restricted to it. "
                "Leave RestrictedAttention.ends out."
            )
        if loaded.spec is not None:
            self._distances(_grid(loaded, loaded.spec.image_size))

    def run(self, ctx: Context) -> None:
        map_variants(ctx, _TABLE, *_variants(ctx, self._restrictions(ctx)))

    def summarize(self, ctx: Context) -> StudyRecord:
        restrictions = self._restrictions(ctx)
        variants, _ = _variants(ctx, restrictions)
        counts = count_correct(ctx, _TABLE, variants)
        clean = counts.accuracy(variant(layers_of(ctx.model)[1]))
        result = _Result(self, clean, list(zip(restrictions, map(counts.accuracy, variants), strict=True)))
        forwards = {"forwards": counts.forwards, "forwards_one_by_one": len(counts.correct)}
        numbers = {
            "n": counts.n,
            "grid": list(_grid(layers_of(ctx.model)[0], ctx.image_size[1])),
            "clean": asdict(clean),
            "near": [{"distance": one.size, "density": one.density, **asdict(a)} for one, a in result.of("near")],
            "random": [
                {"distance": one.size, "density": one.density, "draw": one.draw, "opened": one.opened, **asdict(a)}
                for one, a in result.of("random")
            ],
            "class_only": [{"end": end, "blocks": one.size, **asdict(a)} for end in _ENDS for one, a in result.of(end)],
            "absent": result.absent,
            "cost": {"layers_run": counts.layers_run, **forwards},
        }
        return StudyRecord("restricted-attention", self.title, result.summary(), result.exhibits(), numbers)

    def _restrictions(self, ctx: Context) -> list["Restriction"]:
        """In the order of their masks: near patches, random ones draw by draw, only the class token."""
        model, layers = layers_of(ctx.model)
        blocks, grid = _restrictable_blocks(model, layers), _grid(model, ctx.image_size[1])
        prefix, patches = layers[blocks[0]].prefix or 0, grid[0] * grid[1]
        masks = {distance: near_mask(grid, distance) for distance in self._distances(grid)}
        near = [Restriction("near", distance, blocks, mask) for distance, mask in masks.items()]
        random = []
        for draw in range(self.draws):
            order = random_order(patches, self.shuffle, fold_seed(ctx.seed, draw))
            for one in near:
                shuffled = shuffle_mask(one.mask_PP, order)
                # a query without any key attends to itself; if there are prefix tokens, these are always keys
                without_keys_P = ~shuffled.any(1) & (prefix == 0)
                mask, opened = shuffled | torch.diag(without_keys_P), int(without_keys_P.sum())
                random.append(Restriction("random", one.size, blocks, mask, draw, opened))
        alone = torch.eye(patches, dtype=torch.bool) & self.itself
        counts = (self.ends or range(1, len(blocks) + 1)) if _has_class_token(layers) else ()
        first = [Restriction("first", count, blocks[:count], alone) for count in counts]
        last = [Restriction("last", count, blocks[-count:], alone) for count in counts]
        return [*near, *random, *first, *last]

    def _distances(self, grid: tuple[int, int]) -> tuple[int, ...]:
        largest = max(grid) - 1
        if beyond := [distance for distance in self.distances if distance > largest]:
            raise UsageError(
                f"the model has {grid[0]} x {grid[1]} patches, so that none are farther apart than {largest}; "
                f"RestrictedAttention.distances asks for {beyond[0]}. Write at most {largest}."
            )
        return self.distances or (*_USUAL[: bisect_left(_USUAL, largest)], largest)


@dataclass(frozen=True, slots=True, eq=False)
class Restriction:
    """A restriction of attention in some blocks.

    Args:
        group: `near` or `random` patches, or only the class token in the `first` or `last` blocks.
        size: The largest distance in patches, or the number of blocks.
        blocks: The numbers of the layers.
        mask_PP: Which patch may attend to which.
        draw: The number of the random mask.
        opened: Number of patches without keys in the random mask, which may attend to themselves.
    """

    group: str
    size: int
    blocks: Sequence[int]
    mask_PP: Tensor
    draw: int = 0
    opened: int = 0

    @property
    def density(self) -> float:
        """The share of pairs of patches that may attend to each other, without `opened` ones."""
        return (int(self.mask_PP.sum()) - self.opened) / self.mask_PP.numel()


def _variants(ctx: Context, restrictions: Sequence[Restriction]) -> tuple[list[Variant], list[Tensor]]:
    """The variant of every restriction, and the masks of all tokens, without duplicates."""
    _, layers = layers_of(ctx.model)
    masks = {id(one.mask_PP): one.mask_PP for one in restrictions}
    number = {key: LayerChange.MASK + position for position, key in enumerate(masks)}
    prefix = layers[restrictions[0].blocks[0]].prefix or 0
    # prefix tokens attend to and are attended by all
    padded = [nn.functional.pad(mask, (prefix, 0, prefix, 0), value=True) for mask in masks.values()]
    return [variant(layers, one.blocks, number[id(one.mask_PP)]) for one in restrictions], padded


def near_mask(grid: tuple[int, int], distance: int) -> Tensor:
    """[P, P] bool: whether patches are at most `distance` rows and columns apart."""
    height, width = grid
    row_P = torch.arange(height).repeat_interleave(width)
    column_P = torch.arange(width).repeat(height)
    apart_PP = torch.maximum((row_P[:, None] - row_P).abs(), (column_P[:, None] - column_P).abs())
    return apart_PP <= distance


def random_order(patches: int, shuffle: Shuffle, seed: int) -> Tensor:
    """The order of a random mask's entries: [1, P * P] over the whole mask, or [P, P] within each row."""
    rows, entries = (1, patches * patches) if shuffle is Shuffle.ENTRIES else (patches, patches)
    return RandomStreams.of(seed, torch.arange(rows)).uniform(entries, dtype=torch.float64).argsort(1)


def shuffle_mask(mask_PP: Tensor, order: Tensor) -> Tensor:
    """A mask with its entries in a `random_order`."""
    return mask_PP.view(len(order), -1).gather(1, order).view_as(mask_PP)


def _restrictable_blocks(model: Model, layers: Sequence[Layer]) -> list[int]:
    """The layers in which all patches may attend to all others."""
    if blocks := [number for number, layer in enumerate(layers) if layer.all_to_all]:
        return blocks
    why = {
        "xcit": "attention relates channels, and patches meet in convolutions",
        "swin": "attention stays in windows already, which shift from block to block",
        "levit": "patches become fewer from stage to stage",
    }.get(family_of(model.net).name, "there is no attention between patches")
    raise UsageError(f"{type(model.net).__name__} cannot be restricted by distance: {why}. Choose a ViT, DeiT or CaiT.")


def _has_class_token(layers: Sequence[Layer]) -> bool:
    """Whether a block in which patches attend to each other has a class token."""
    return any(layer.all_to_all and layer.class_token for layer in layers)


def _grid(model: Model, image_size: int) -> tuple[int, int]:
    grid = family_of(model.net).grid(model.net, image_size)
    assert grid is not None, "a network whose patches attend to each other has patches"
    return grid


@dataclass(frozen=True, slots=True, eq=False)
class _Result:
    """The accuracy without restrictions, and under each."""

    settings: RestrictedAttention
    clean: Accuracy
    restricted: Sequence[tuple[Restriction, Accuracy]]

    def of(self, group: str) -> list[tuple[Restriction, Accuracy]]:
        return [(one, accuracy) for one, accuracy in self.restricted if one.group == group]

    @property
    def absent(self) -> str:
        return "" if self.of("first") else _NEVER_ALONE

    def random(self) -> list[list[float]]:
        """For every distance, the accuracies of all draws; empty without any."""
        sizes = dict.fromkeys(one.size for one, _ in self.of("random"))
        return [[result.accuracy for one, result in self.of("random") if one.size == size] for size in sizes]

    def exhibits(self) -> list[Exhibit]:
        ends: list[Exhibit] = [] if self.absent else [self._end_figure(), self._end_table()]
        return [self._distance_figure(), self._distance_table(), *ends]

    def _figure(self, title: str, caption: str, lines: list[Line], x_label: str) -> Lines:
        whole = [("unrestricted", self.clean.accuracy)]
        return Lines(title, caption, lines, x_label, "accuracy", y_range=(0.0, 1.0), references=whole)

    def _distance_figure(self) -> Lines:
        x, draws, how = [one.size for one, _ in self.of("near")], self.settings.draws, ""
        lines = [Line.of("near patches", x, [result for _, result in self.of("near")])]
        if result := self.random():
            low, high = ([end(one) for one in result] if draws > 1 else () for end in (min, max))
            lines.append(Line("as many random ones", x, list(map(statistics.fmean, result)), low, high, dashed=True))
            what = "its entries" if self.settings.shuffle is Shuffle.ENTRIES else "every row of it on its own"
            often = "the same order for all distances" if draws == 1 else f"mean and range over {draws} orders"
            how = f"Dashed: the same mask with {what} in a random order; {often}. "
        caption = (
            f"Accuracy on {self.clean.n} images when a patch may attend only to patches at most this many rows and "
            f"columns away, in all blocks; the band is Wilson's 95% interval. {how}Tokens before the "
            "patches, such as the class token, see all and are seen by all. Dotted: nothing forbidden. "
        )
        title = "Attention to near patches only"
        return self._figure(title, (caption + self.absent).strip(), lines, "largest distance, in patches")

    def _distance_table(self) -> Table:
        opened = max((one.opened for one, _ in self.of("random")), default=0)
        extra = f" Up to {opened} patches to which a random mask left nothing may see themselves." if opened else ""
        random = {"random": list(map(statistics.fmean, self.random()))} if self.settings.draws else {}
        columns = ["distance", "share of pairs", "near", *random]
        near = ([one.size, one.density, result.accuracy] for one, result in self.of("near"))
        return Table(
            "Attention by distance (table)",
            f"Accuracy on {self.clean.n} images, and the share of pairs of patches that may see each other; "
            f"{self.clean.accuracy:.3f} with nothing forbidden.{extra}",
            columns,
            [[*row, *(means[number] for means in random.values())] for number, row in enumerate(near)],
        )

    def _end_figure(self) -> Lines:
        themselves = "and themselves" if self.settings.itself else "not even themselves"
        ends = {f"in the {end} blocks": self.of(end) for end in _ENDS}
        return self._figure(
            "Attention to the class token only",
            f"Accuracy on {self.clean.n} images when patches attend to prefix tokens such as the class token, "
            f"{themselves}, but to no other patches, in the first or the last blocks. Dotted: no restriction.",
            [Line(end, [one.size for one, _ in each], [a.accuracy for _, a in each]) for end, each in ends.items()],
            "number of blocks",
        )

    def _end_table(self) -> Table:
        pairs = zip(self.of("first"), self.of("last"), strict=True)
        return Table(
            "Attention to the class token only (table)",
            f"Accuracy on {self.clean.n} images; {self.clean.accuracy:.3f} with nothing forbidden.",
            ["blocks", "first", "last"],
            [[one.size, first.accuracy, last.accuracy] for (one, first), (_, last) in pairs],
        )

    def summary(self) -> str:
        near, ends = self.of("near"), list(zip(self.of("first"), self.of("last"), strict=True))
        one, result = near[len(near) // 2]
        control = [f", with as many random ones {statistics.fmean(each):.1%}" for each in self.random()]
        sentences = [
            f"Unrestricted, the model classifies {self.clean.accuracy:.1%} of {self.clean.n} images correctly.",
            f"With patches at most {one.size} away ({one.density:.0%} of all pairs) it has {result.accuracy:.1%}"
            f"{control[len(near) // 2] if control else ''}.",
        ]
        if ends:
            (one, first), (_, last) = ends[(len(ends) - 1) // 2]
            sentences.append(
                f"With patches that see only the class token in the first {one.size} blocks it has "
                f"{first.accuracy:.1%}, in the last {one.size} {last.accuracy:.1%}."
            )
        return " ".join([*sentences, self.absent]).strip()
