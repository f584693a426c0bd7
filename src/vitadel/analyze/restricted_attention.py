r"""How far does a ViT need to look? Accuracy when patches may attend only to patches nearby.

Bhojanapalli et al. (2021, arXiv:2103.14586, section 4) forbid, in a trained model, attention between patches that lie
more than d rows or columns apart, :math:`\max(|\Delta r|, |\Delta c|) > d` on the grid of patches; the class token and
other tokens before the patches see and are seen by all. Beside it stands a mask of the same density that knows nothing
of distance: the entries of the first in a random order, which is drawn once and kept for all distances. That order may
leave a patch fewer keys than another, even not itself; `rows` shuffles every row on its own instead, so that each query
keeps as many keys as it had. On a grid of g x g patches,

.. math:: \text{density} = \left( \frac{g (2d + 1) - d (d + 1)}{g^2} \right)^2 .

Last, patches see nothing but the class token and themselves, in the first k blocks or in the last k.

Shape letters: N tokens, P patches.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from vitadel.analyze.layers import layers_of
from vitadel.analyze.prefix_cache import Cut, Outcome, Plan, intact, operate
from vitadel.analyze.study import Bench
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, CountOrZero, Range, check_ranges
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.core.stats import Accuracy, accuracy
from vitadel.models import Layer, Model, family_of
from vitadel.runs import describe
from vitadel.runs.exhibits import Exhibit, Line, Lines, Table, findings

_USUAL = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


class Shuffle(enum.Enum):
    """How the mask that knows nothing of distance is made from the one that does."""

    ENTRIES = "entries"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class RestrictedAttention:
    """Accuracy with attention limited to near patches, to random ones, and to the class token.

    `distances` are in patches, () chooses some up to all of the grid. `shuffle` makes the random masks, one for each of
    `draws`; 0 leaves them out. `ends` are numbers of blocks, first or last, in which patches see only the class token,
    and themselves unless `itself` is false; () is every number.
    """

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
        found, layers = layers_of(model)
        attentive = _attentive(found, layers)
        if far := [count for count in self.ends if count > len(attentive)]:
            raise UsageError(f"the model has {len(attentive)} such blocks; RestrictedAttention.ends asks for {far[0]}.")
        if self.ends and not _classed(layers):
            raise UsageError(
                "the patches of this model have no class token beside them, so they cannot see it alone. "
                "Leave RestrictedAttention.ends out."
            )
        if found.spec is not None:
            self._distances(_grid(found, found.spec.image_size))

    def carry_out(self, bench: Bench) -> dict[str, object]:
        """All restrictions on all images; `threat` is not looked at."""
        images, parts = bench.images, bench.parts
        if len(images) == 0:
            raise UsageError("there are no images to study. Choose a longer slice of the data.")
        self.refuse(bench.model)
        found, layers = layers_of(bench.model)
        grid = _grid(found, images.images(torch.tensor([0])).shape[-1])
        case = self._case(layers, _attentive(found, layers), grid, bench.seed)
        done = operate(
            found,
            layers,
            case.plans,
            images,
            parts,
            masks=case.masks,
            seed=bench.seed,
            batch=bench.batch,
            notify=bench.notify,
            what="restrictions",
        )
        told = _Told(self, layers, case, done)
        numbers = {
            "n": len(images),
            "settings": describe(self),
            "grid": list(grid),
            "clean": asdict(told.clean),
            "near": [told.near(at) for at in range(len(case.distances))],
            "random": [told.random(draw, at) for draw in range(self.draws) for at in range(len(case.distances))],
            "class_only": [told.end(end, count) for end in case.ends for count in case.ends[end]],
            "absent": told.absent,
            "cost": {"layers_run": done.layers_run, "forwards": done.forwards, "forwards_one_by_one": len(done.right)},
            "seconds": parts.seconds,
        }
        result = findings("restrict", "Restricted attention", told.summary(), told.exhibits(), numbers)
        parts.close(result)
        return result

    def _case(self, layers: Sequence[Layer], attentive: Sequence[int], grid: tuple[int, int], seed: int) -> "_Case":
        prefix = layers[attentive[0]].prefix or 0
        distances = self._distances(grid)
        near = [within(grid, distance) for distance in distances]
        patches = grid[0] * grid[1]
        orders = [_order(patches, self.shuffle, fold_seed(seed, draw)) for draw in range(self.draws)]
        shuffled = [[_shuffled(mask, order) for mask in near] for order in orders]
        opened = [[_opened(mask, prefix) for mask in masks] for masks in shuffled]
        alone = torch.eye(patches, dtype=torch.bool) & self.itself
        masks = [*near, *(mask for masks in opened for mask in masks), alone]
        ends: dict[str, dict[int, Plan]] = {}
        if _classed(layers):
            mask, counts = Cut.MASK + len(masks) - 1, self.ends or range(1, len(attentive) + 1)
            ends = {
                "first": {count: _masked(layers, attentive[:count], mask) for count in counts},
                "last": {count: _masked(layers, attentive[-count:], mask) for count in counts},
            }
        everywhere = [_masked(layers, attentive, Cut.MASK + at) for at in range(len(masks) - 1)]
        size = len(distances)
        return _Case(
            distances,
            [_framed(mask, prefix) for mask in masks],
            everywhere[:size],
            [everywhere[size * (1 + draw) : size * (2 + draw)] for draw in range(self.draws)],
            ends,
            [float(mask.double().mean()) for mask in near],
            [
                [int((after & ~before).sum()) for before, after in zip(*pair, strict=True)]
                for pair in zip(shuffled, opened, strict=True)
            ],
        )

    def _distances(self, grid: tuple[int, int]) -> tuple[int, ...]:
        most = max(grid) - 1
        if far := [distance for distance in self.distances if distance > most]:
            raise UsageError(
                f"the model has {grid[0]} x {grid[1]} patches, so that none are farther apart than {most}; "
                f"RestrictedAttention.distances asks for {far[0]}."
            )
        return self.distances or (*(distance for distance in _USUAL if distance < most), most)


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """What is to be tried: the masks over all tokens, and the plans that use them."""

    distances: Sequence[int]
    masks: Sequence[Tensor]
    near: Sequence[Plan]
    random: Sequence[Sequence[Plan]]
    ends: Mapping[str, Mapping[int, Plan]]
    density: Sequence[float]
    opened: Sequence[Sequence[int]]

    @property
    def plans(self) -> list[Plan]:
        ends = [plan for plans in self.ends.values() for plan in plans.values()]
        return [*self.near, *(plan for plans in self.random for plan in plans), *ends]


def within(grid: tuple[int, int], distance: int) -> Tensor:
    """[P, P] bool: the pairs of patches at most `distance` rows and columns apart."""
    height, width = grid
    row_P = torch.arange(height).repeat_interleave(width)
    column_P = torch.arange(width).repeat(height)
    apart_PP = torch.maximum((row_P[:, None] - row_P).abs(), (column_P[:, None] - column_P).abs())
    return apart_PP <= distance


def _order(patches: int, shuffle: Shuffle, seed: int) -> Tensor:
    """Where the entries of a shuffled mask come from: anywhere in it, or anywhere in their row."""
    if shuffle is Shuffle.ENTRIES:
        return RandomStreams.of(seed, torch.arange(1)).uniform(patches * patches, dtype=torch.float64).argsort(1)
    return RandomStreams.of(seed, torch.arange(patches)).uniform(patches, dtype=torch.float64).argsort(1)


def _shuffled(mask_PP: Tensor, order: Tensor) -> Tensor:
    return mask_PP.view(len(order), -1).gather(1, order).view_as(mask_PP)


def _opened(mask_PP: Tensor, prefix: int) -> Tensor:
    """A query without any key sees itself; with tokens before the patches, there is always one."""
    lonely_P = ~mask_PP.any(1)
    return mask_PP if prefix else mask_PP | torch.diag(lonely_P)


def _framed(mask_PP: Tensor, prefix: int) -> Tensor:
    """[N, N]: the tokens before the patches see all and are seen by all."""
    return nn.functional.pad(mask_PP, (prefix, 0, prefix, 0), value=True)


def _masked(layers: Sequence[Layer], places: Sequence[int], mask: int) -> Plan:
    plan = list(intact(layers))
    for place in places:
        plan[place] = mask
    return tuple(plan)


def _attentive(model: Model, layers: Sequence[Layer]) -> list[int]:
    """The layers in which all patches may see all others."""
    places = [place for place, layer in enumerate(layers) if layer.pairs]
    if places:
        return places
    why = {
        "xcit": "attention relates channels, and patches meet in convolutions",
        "swin": "attention stays in windows already, which shift from block to block",
        "levit": "patches become fewer from stage to stage",
    }.get(family_of(model.net).name, "there is no attention between patches")
    raise UsageError(
        f"{type(model.net).__name__} cannot be restricted by distance: {why}. This study wants a ViT, DeiT or CaiT."
    )


def _classed(layers: Sequence[Layer]) -> bool:
    """Whether patches have a class token beside them where they see each other."""
    return any(layer.pairs and layer.class_token for layer in layers)


def _grid(model: Model, image_size: int) -> tuple[int, int]:
    grid = family_of(model.net).grid(model.net, image_size)
    assert grid is not None, "a network whose patches see each other has patches"
    return grid


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """What came out, in numbers, figures and words."""

    settings: RestrictedAttention
    layers: Sequence[Layer]
    case: _Case
    done: Outcome

    @property
    def clean(self) -> Accuracy:
        return self._accuracy(intact(self.layers))

    @property
    def absent(self) -> str:
        if self.case.ends:
            return ""
        return "Patches have no class token beside them in this model, so they are never left with it alone."

    def _accuracy(self, plan: Plan) -> Accuracy:
        return accuracy(self.done.right[plan], self.done.n)

    def near(self, at: int) -> dict[str, object]:
        about = {"distance": self.case.distances[at], "density": self.case.density[at]}
        return {**about, **asdict(self._accuracy(self.case.near[at]))}

    def random(self, draw: int, at: int) -> dict[str, object]:
        about = {"distance": self.case.distances[at], "density": self.case.density[at], "draw": draw}
        opened = {"opened": self.case.opened[draw][at]}
        return {**about, **opened, **asdict(self._accuracy(self.case.random[draw][at]))}

    def end(self, end: str, count: int) -> dict[str, object]:
        return {"end": end, "blocks": count, **asdict(self._accuracy(self.case.ends[end][count]))}

    def _mean_random(self, at: int) -> float:
        found = [self._accuracy(plans[at]).accuracy for plans in self.case.random]
        return sum(found) / len(found)

    def exhibits(self) -> list[Exhibit]:
        shown: list[Exhibit] = [self._by_distance(), self._distance_table()]
        return [*shown, self._by_end(), self._end_table()] if self.case.ends else shown

    def _by_distance(self) -> Lines:
        near = [self._accuracy(plan) for plan in self.case.near]
        x = list(self.case.distances)
        lines = [
            Line(
                "near patches", x, [one.accuracy for one in near], [one.low for one in near], [one.high for one in near]
            )
        ]
        if self.case.random:
            found = [[self._accuracy(plan).accuracy for plan in plans] for plans in zip(*self.case.random, strict=True)]
            y, several = [sum(one) / len(one) for one in found], len(self.case.random) > 1
            low, high = ([min(one) for one in found], [max(one) for one in found]) if several else ([], [])
            lines.append(Line("as many random ones", x, y, low, high, dashed=True))
        return Lines(
            "Attention to near patches alone",
            f"Accuracy on {self.done.n} images when a patch may attend only to patches at most so many rows and "
            f"columns away, in all blocks; the band is Wilson's 95% interval. {self._how_random()}Tokens before the "
            "patches, such as the class token, see all and are seen by all. Dotted: nothing forbidden. "
            f"{self.absent}".strip(),
            lines,
            x_label="largest distance, in patches",
            y_label="accuracy",
            y_range=(0.0, 1.0),
            references=[("unrestricted", self.clean.accuracy)],
        )

    def _how_random(self) -> str:
        draws = len(self.case.random)
        if draws == 0:
            return ""
        how = "its entries" if self.settings.shuffle is Shuffle.ENTRIES else "every row of it on its own"
        often = "; the same order for all distances" if draws == 1 else f"; mean and range over {draws} orders"
        return f"Dashed: the same mask with {how} in a random order{often}. "

    def _distance_table(self) -> Table:
        random = ["random"] if self.case.random else []
        return Table(
            "By distance, in numbers",
            f"Accuracy on {self.done.n} images, and the share of pairs of patches that may see each other; "
            f"{self.clean.accuracy:.3f} with nothing forbidden.{self._opened_told()}",
            ["distance", "share of pairs", "near", *random],
            [
                [
                    distance,
                    self.case.density[at],
                    self._accuracy(self.case.near[at]).accuracy,
                    *(self._mean_random(at) for _ in random),
                ]
                for at, distance in enumerate(self.case.distances)
            ],
        )

    def _opened_told(self) -> str:
        """Random masks may leave a query nothing to see."""
        opened = max((count for counts in self.case.opened for count in counts), default=0)
        if not opened:
            return ""
        return f" Up to {opened} patches to which a random mask left nothing may see themselves."

    def _by_end(self) -> Lines:
        but = "and themselves" if self.settings.itself else "not even themselves"
        return Lines(
            "Only the class token",
            f"Accuracy on {self.done.n} images when patches see no other patches, but the tokens before them such as "
            f"the class token, {but}, in the first or the last blocks. Dotted: nothing forbidden.",
            [
                Line(f"in the {end} blocks", list(plans), [self._accuracy(plan).accuracy for plan in plans.values()])
                for end, plans in self.case.ends.items()
            ],
            x_label="number of blocks",
            y_label="accuracy",
            y_range=(0.0, 1.0),
            references=[("unrestricted", self.clean.accuracy)],
        )

    def _end_table(self) -> Table:
        first, last = self.case.ends["first"], self.case.ends["last"]
        return Table(
            "Only the class token, in numbers",
            f"Accuracy on {self.done.n} images; {self.clean.accuracy:.3f} with nothing forbidden.",
            ["blocks", "first", "last"],
            [[count, self._accuracy(first[count]).accuracy, self._accuracy(last[count]).accuracy] for count in first],
        )

    def summary(self) -> str:
        said = [f"Unrestricted, the model is right on {self.clean.accuracy:.1%} of {self.done.n} images."]
        at = len(self.case.distances) // 2
        beside = f", with as many random ones {self._mean_random(at):.1%}" if self.case.random else ""
        said.append(
            f"With patches at most {self.case.distances[at]} away ({self.case.density[at]:.0%} of all pairs) it has "
            f"{self._accuracy(self.case.near[at]).accuracy:.1%}{beside}."
        )
        if self.case.ends:
            count = list(self.case.ends["first"])[(len(self.case.ends["first"]) - 1) // 2]
            first, last = (self._accuracy(self.case.ends[end][count]).accuracy for end in ("first", "last"))
            said.append(
                f"With patches that see only the class token in the first {count} blocks it has {first:.1%}, in the "
                f"last {count} {last:.1%}."
            )
        return " ".join(filter(None, [*said, self.absent]))
