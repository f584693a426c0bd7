r"""How local is the attention that a ViT needs? Accuracy when patches may attend only to patches nearby.

Bhojanapalli et al. (2021, arXiv:2103.14586, section 4) forbid, in a trained model, attention between patches that lie
more than d rows or columns apart, :math:`\max(|\Delta r|, |\Delta c|) > d` on the grid of patches; the class token and
other tokens before the patches see and are seen by all. The control is a mask of the same density that ignores
distance: the entries of the first in a random order, which is drawn once and kept for all distances. That order may
leave a patch fewer keys than another, even not itself; `rows` shuffles every row on its own instead, so that each query
keeps as many keys as it had. On a grid of g x g patches,

.. math:: \text{density} = \left( \frac{g (2d + 1) - d (d + 1)}{g^2} \right)^2 .

Last, patches see nothing but the class token and themselves, in the first k blocks or in the last k.

Shape letters: N tokens, P patches.
"""

import enum
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from vitadel.analyze.layers import layers_of
from vitadel.analyze.prefix_cache import Change, Variant, count_correct, map_variants, variant
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
_NEVER_ALONE = "Patches have no class token beside them in this model, so they are never left with it alone."


class Shuffle(enum.Enum):
    """How the mask that ignores distance is made from the one that does not."""

    ENTRIES = "entries"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class RestrictedAttention:
    """Accuracy with attention limited to near patches, to random ones, and to the class token.

    Args:
        distances: Largest distances in patches; () chooses some up to the whole grid.
        shuffle: How random masks are made.
        draws: Random masks for each distance; 0 leaves them out.
        ends: Numbers of blocks, first or last, in which patches see only the class token; () is every number.
        itself: Whether patches then see themselves too.
    """

    title: ClassVar[str] = "Restricted attention"
    about: ClassVar[str] = "how far must patches see? Attention limited by distance, at random, to the class token"
    needs_threat: ClassVar[bool] = False

    distances: tuple[CountOrZero, ...] = ()
    shuffle: Shuffle = Shuffle.ENTRIES
    draws: Annotated[int, Range(ge=0, hint="0 leaves random masks out.")] = 1
    ends: tuple[Count, ...] = ()
    itself: bool = True

    def __post_init__(self) -> None:
        check_ranges(self)

    def refuse(self, model: nn.Module) -> None:
        loaded, layers = layers_of(model)
        attentive = _attentive(loaded, layers)
        if beyond := [count for count in self.ends if count > len(attentive)]:
            raise UsageError(
                f"the model has {len(attentive)} such blocks; RestrictedAttention.ends asks for {beyond[0]}."
            )
        if self.ends and not _has_class_token(layers):
            raise UsageError(
                "the patches of this model have no class token beside them, so they cannot see it alone. "
                "Leave RestrictedAttention.ends out."
            )
        if loaded.spec is not None:
            self._distances(_grid(loaded, loaded.spec.image_size))

    def run(self, ctx: Context) -> None:
        restrictions = self._restrictions(ctx)
        map_variants(ctx, _TABLE, restrictions.variants, restrictions.masks)

    def summarize(self, ctx: Context) -> StudyRecord:
        restrictions = self._restrictions(ctx)
        counts = count_correct(ctx, _TABLE, restrictions.variants)
        result = _Accuracies(
            self,
            restrictions,
            counts.accuracy(restrictions.none),
            [counts.accuracy(one) for one in restrictions.near],
            [[counts.accuracy(one) for one in draw] for draw in restrictions.random],
            {
                end: {count: counts.accuracy(one) for count, one in each.items()}
                for end, each in restrictions.ends.items()
            },
        )
        forwards = {"forwards": counts.forwards, "forwards_one_by_one": len(counts.correct)}
        numbers = {
            "n": counts.n,
            "grid": list(restrictions.grid),
            **result.numbers(),
            "absent": "" if restrictions.ends else _NEVER_ALONE,
            "cost": {"layers_run": counts.layers_run, **forwards},
        }
        return StudyRecord("restrict", self.title, result.summary(), result.exhibits(), numbers)

    def _restrictions(self, ctx: Context) -> "_Restrictions":
        model, layers = layers_of(ctx.model)
        attentive, grid = _attentive(model, layers), _grid(model, ctx.image_size[1])
        distances, prefix, patches = self._distances(grid), layers[attentive[0]].prefix or 0, grid[0] * grid[1]
        near = [within(grid, distance) for distance in distances]
        orders = [random_order(patches, self.shuffle, fold_seed(ctx.seed, draw)) for draw in range(self.draws)]
        shuffled = [shuffle_mask(mask, order) for order in orders for mask in near]
        opened = [_opened(mask, prefix) for mask in shuffled]
        masks = [*near, *opened, torch.eye(patches, dtype=torch.bool) & self.itself]
        # the first and last attentive blocks, in which patches see only the class token
        counts = (self.ends or range(1, len(attentive) + 1)) if _has_class_token(layers) else ()
        alone, size = Change.MASK + len(masks) - 1, len(distances)
        first = {count: variant(layers, attentive[:count], alone) for count in counts}
        last = {count: variant(layers, attentive[-count:], alone) for count in counts}
        everywhere = [variant(layers, attentive, Change.MASK + number) for number in range(len(masks) - 1)]
        added = [int((after & ~before).sum()) for before, after in zip(shuffled, opened, strict=True)]
        return _Restrictions(
            grid=grid,
            distances=distances,
            density=[float(mask.double().mean()) for mask in near],
            opened=_split(added, size),
            # the tokens before the patches see all and are seen by all
            masks=[nn.functional.pad(mask, (prefix, 0, prefix, 0), value=True) for mask in masks],
            none=variant(layers),
            near=everywhere[:size],
            random=_split(everywhere[size:], size),
            ends={"first": first, "last": last} if counts else {},
        )

    def _distances(self, grid: tuple[int, int]) -> tuple[int, ...]:
        most = max(grid) - 1
        if beyond := [distance for distance in self.distances if distance > most]:
            raise UsageError(
                f"the model has {grid[0]} x {grid[1]} patches, so that none are farther apart than {most}; "
                f"RestrictedAttention.distances asks for {beyond[0]}."
            )
        return self.distances or (*(distance for distance in _USUAL if distance < most), most)


@dataclass(frozen=True, slots=True, eq=False)
class _Restrictions:
    """The masks over all tokens, and the variants that use them.

    `near` has one variant per distance and `random` as many for every draw, in which `opened` patches were allowed to
    see themselves; `ends` has one per end and number of blocks.
    """

    grid: tuple[int, int]
    distances: Sequence[int]
    density: Sequence[float]
    opened: Sequence[Sequence[int]]
    masks: Sequence[Tensor]
    none: Variant
    near: Sequence[Variant]
    random: Sequence[Sequence[Variant]]
    ends: Mapping[str, Mapping[int, Variant]]

    @property
    def variants(self) -> Iterable[Variant]:
        ends = [one for each in self.ends.values() for one in each.values()]
        return [*self.near, *(one for draw in self.random for one in draw), *ends]


def within(grid: tuple[int, int], distance: int) -> Tensor:
    """[P, P] bool: the pairs of patches at most `distance` rows and columns apart."""
    height, width = grid
    row_P = torch.arange(height).repeat_interleave(width)
    column_P = torch.arange(width).repeat(height)
    apart_PP = torch.maximum((row_P[:, None] - row_P).abs(), (column_P[:, None] - column_P).abs())
    return apart_PP <= distance


def random_order(patches: int, shuffle: Shuffle, seed: int) -> Tensor:
    """The order of a shuffled mask's entries: [1, P * P] over the whole mask, or [P, P] within each of its rows."""
    rows, entries = (1, patches * patches) if shuffle is Shuffle.ENTRIES else (patches, patches)
    return RandomStreams.of(seed, torch.arange(rows)).uniform(entries, dtype=torch.float64).argsort(1)


def shuffle_mask(mask_PP: Tensor, order: Tensor) -> Tensor:
    """A mask with its entries in a `random_order`."""
    return mask_PP.view(len(order), -1).gather(1, order).view_as(mask_PP)


def _opened(mask_PP: Tensor, prefix: int) -> Tensor:
    """A query without any key sees itself; with tokens before the patches, there is always one."""
    return mask_PP if prefix else mask_PP | torch.diag(~mask_PP.any(1))


def _split(values: Sequence, size: int) -> list:  # type: ignore[type-arg]
    return [list(values[at : at + size]) for at in range(0, len(values), size)]


def _attentive(model: Model, layers: Sequence[Layer]) -> list[int]:
    """The layers in which all patches may attend to all others."""
    if places := [place for place, layer in enumerate(layers) if layer.pairs]:
        return places
    why = {
        "xcit": "attention relates channels, and patches meet in convolutions",
        "swin": "attention stays in windows already, which shift from block to block",
        "levit": "patches become fewer from stage to stage",
    }.get(family_of(model.net).name, "there is no attention between patches")
    raise UsageError(
        f"{type(model.net).__name__} cannot be restricted by distance: {why}. This study needs a ViT, DeiT or CaiT."
    )


def _has_class_token(layers: Sequence[Layer]) -> bool:
    """Whether patches have a class token beside them where they attend to each other."""
    return any(layer.pairs and layer.class_token for layer in layers)


def _grid(model: Model, image_size: int) -> tuple[int, int]:
    grid = family_of(model.net).grid(model.net, image_size)
    assert grid is not None, "a network whose patches attend to each other has patches"
    return grid


@dataclass(frozen=True, slots=True, eq=False)
class _Accuracies:
    """Accuracies: unrestricted, per distance, per draw and distance, and per end and number of blocks."""

    settings: RestrictedAttention
    of: _Restrictions
    clean: Accuracy
    near: Sequence[Accuracy]
    random: Sequence[Sequence[Accuracy]]
    ends: Mapping[str, Mapping[int, Accuracy]]

    def numbers(self) -> dict[str, object]:
        about = [
            {"distance": distance, "density": density}
            for distance, density in zip(self.of.distances, self.of.density, strict=True)
        ]
        return {
            "clean": asdict(self.clean),
            "near": [{**what, **asdict(one)} for what, one in zip(about, self.near, strict=True)],
            "random": [
                {**what, "draw": draw, "opened": opened, **asdict(one)}
                for draw, (ones, counts) in enumerate(zip(self.random, self.of.opened, strict=True))
                for what, one, opened in zip(about, ones, counts, strict=True)
            ],
            "class_only": [
                {"end": end, "blocks": count, **asdict(one)}
                for end, each in self.ends.items()
                for count, one in each.items()
            ],
        }

    def exhibits(self) -> list[Exhibit]:
        ends: list[Exhibit] = [self._end_figure(), self._end_table()] if self.ends else []
        return [self._distance_figure(), self._distance_table(), *ends]

    def _at_distance(self) -> list[list[float]]:
        """For every distance, the accuracies of all draws."""
        return [[one.accuracy for one in ones] for ones in zip(*self.random, strict=True)]

    def _figure(self, title: str, caption: str, lines: list[Line], x_label: str) -> Lines:
        whole = [("unrestricted", self.clean.accuracy)]
        return Lines(title, caption, lines, x_label, "accuracy", y_range=(0.0, 1.0), references=whole)

    def _distance_figure(self) -> Lines:
        x, band = list(self.of.distances), ([one.low for one in self.near], [one.high for one in self.near])
        lines = [Line("near patches", x, [one.accuracy for one in self.near], *band)]
        draws, how = len(self.random), ""
        if draws:
            found = self._at_distance()
            low, high = ([end(one) for one in found] if draws > 1 else () for end in (min, max))
            means = [statistics.fmean(one) for one in found]
            lines.append(Line("as many random ones", x, means, low, high, dashed=True))
            what = "its entries" if self.settings.shuffle is Shuffle.ENTRIES else "every row of it on its own"
            often = "the same order for all distances" if draws == 1 else f"mean and range over {draws} orders"
            how = f"Dashed: the same mask with {what} in a random order; {often}. "
        return self._figure(
            "Attention to near patches alone",
            f"Accuracy on {self.clean.n} images when a patch may attend only to patches at most so many rows and "
            f"columns away, in all blocks; the band is Wilson's 95% interval. {how}Tokens before the "
            "patches, such as the class token, see all and are seen by all. Dotted: nothing forbidden."
            f"{'' if self.ends else f' {_NEVER_ALONE}'}",
            lines,
            "largest distance, in patches",
        )

    def _distance_table(self) -> Table:
        opened = max((count for counts in self.of.opened for count in counts), default=0)
        extra = f" Up to {opened} patches to which a random mask left nothing may see themselves." if opened else ""
        columns = {
            "distance": self.of.distances,
            "share of pairs": self.of.density,
            "near": [one.accuracy for one in self.near],
            **({"random": [statistics.fmean(one) for one in self._at_distance()]} if self.random else {}),
        }
        return Table(
            "By distance, in numbers",
            f"Accuracy on {self.clean.n} images, and the share of pairs of patches that may see each other; "
            f"{self.clean.accuracy:.3f} with nothing forbidden.{extra}",
            list(columns),
            [list(row) for row in zip(*columns.values(), strict=True)],
        )

    def _end_figure(self) -> Lines:
        themselves = "and themselves" if self.settings.itself else "not even themselves"
        return self._figure(
            "Only the class token",
            f"Accuracy on {self.clean.n} images when patches see no other patches, but the tokens before them such as "
            f"the class token, {themselves}, in the first or the last blocks. Dotted: nothing forbidden.",
            [
                Line(f"in the {end} blocks", list(each), [one.accuracy for one in each.values()])
                for end, each in self.ends.items()
            ],
            "number of blocks",
        )

    def _end_table(self) -> Table:
        first, last = self.ends["first"], self.ends["last"]
        return Table(
            "Only the class token, in numbers",
            f"Accuracy on {self.clean.n} images; {self.clean.accuracy:.3f} with nothing forbidden.",
            ["blocks", "first", "last"],
            [[count, first[count].accuracy, last[count].accuracy] for count in first],
        )

    def summary(self) -> str:
        middle = len(self.near) // 2
        beside = (
            f", with as many random ones {statistics.fmean(self._at_distance()[middle]):.1%}" if self.random else ""
        )
        sentences = [
            f"Unrestricted, the model is right on {self.clean.accuracy:.1%} of {self.clean.n} images.",
            f"With patches at most {self.of.distances[middle]} away ({self.of.density[middle]:.0%} of all pairs) it "
            f"has {self.near[middle].accuracy:.1%}{beside}.",
        ]
        if not self.ends:
            return " ".join([*sentences, _NEVER_ALONE])
        count = list(self.ends["first"])[(len(self.ends["first"]) - 1) // 2]
        first, last = (self.ends[end][count].accuracy for end in ("first", "last"))
        sentences.append(
            f"With patches that see only the class token in the first {count} blocks it has {first:.1%}, in the "
            f"last {count} {last:.1%}."
        )
        return " ".join(sentences)
