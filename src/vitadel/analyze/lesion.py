r"""What is left of a model's accuracy when parts of it are taken out, without training it again?

Bhojanapalli et al. (2021, arXiv:2103.14586, section 4) remove from a ViT each block, each attention and each MLP, so
that information passes along the skip connection alone, and then n random ones at a time, never the first block's.
Draws are independent and the same for all kinds, so that kinds can be compared draw by draw:

.. math:: \bar a_n = \frac{1}{D} \sum_d a(S_n^d), \qquad |S_n^d| = n, \qquad
          \mathrm{s.e.}_n = \sqrt{\frac{1}{D (D - 1)} \sum_d \big(a(S_n^d) - \bar a_n\big)^2} .

Of a convolutional network its residual units are removed, but for those that change shapes.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar

import torch
from torch import nn

from vitadel.analyze.layers import layers_of, short
from vitadel.analyze.prefix_cache import Cut, Outcome, Plan, intact, operate
from vitadel.analyze.study import Bench
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, CountOrZero, Range, check_ranges
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.core.stats import Accuracy, accuracy
from vitadel.models import Layer
from vitadel.runs import describe
from vitadel.runs.exhibits import Exhibit, Line, Lines, Table, findings


class Kind(enum.Enum):
    """What is taken out."""

    BLOCK = "block"
    ATTENTION = "attention"
    MLP = "mlp"


_CUTS = {Kind.BLOCK: Cut.LAYER, Kind.ATTENTION: Cut.ATTENTION, Kind.MLP: Cut.MLP}
_WORDS = {Kind.BLOCK: "block", Kind.ATTENTION: "attention", Kind.MLP: "MLP"}


@dataclass(frozen=True, slots=True)
class Lesion:
    """Accuracy without each block, attention and MLP, and without several random ones.

    `blocks` are the numbers of those removed one at a time, () is every one. `removed` are the numbers of how many go
    together, () is 2 up to all but the first; each is drawn `draws` times, 0 leaves that part out. `kinds` are what is
    taken out.
    """

    about: ClassVar[str] = "what is left of accuracy without each block, attention, MLP, and without random ones?"
    needs_threat: ClassVar[bool] = False

    kinds: tuple[Kind, ...] = (Kind.BLOCK, Kind.ATTENTION, Kind.MLP)
    blocks: tuple[CountOrZero, ...] = ()
    removed: tuple[Count, ...] = ()
    draws: Annotated[int, Range(ge=0, hint="0 leaves random removals out.")] = 25

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.kinds:
            raise UsageError("Lesion.kinds is empty, so nothing would be removed. Name block, attention or mlp.")

    def refuse(self, model: nn.Module) -> None:
        found, layers = layers_of(model)
        self._check(layers, type(found.net).__name__)

    def carry_out(self, bench: Bench) -> dict[str, object]:
        """All lesions on all images; `threat` is not looked at."""
        images, parts = bench.images, bench.parts
        if len(images) == 0:
            raise UsageError("there are no images to study. Choose a longer slice of the data.")
        found, layers = layers_of(bench.model)
        self._check(layers, type(found.net).__name__)
        singles = {kind: self._singles(layers, kind) for kind in self._kinds(layers)}
        drawn = self._drawn(layers, bench.seed)
        several = {
            kind: {count: [_without(layers, some, kind) for some in sets] for count, sets in drawn.items()}
            for kind in singles
        }
        plans = [plan for one in singles.values() for plan in one.values()]
        plans += [plan for counts in several.values() for sets in counts.values() for plan in sets]
        done = operate(
            found, layers, plans, images, parts, seed=bench.seed, batch=bench.batch, notify=bench.notify, what="lesions"
        )
        told = _Told(layers, done, singles, several)
        numbers = {
            "n": len(images),
            "settings": describe(self),
            "clean": asdict(told.clean),
            "single": told.singles_told(),
            "random": told.several_told(drawn),
            "cost": told.cost(),
            "seconds": parts.seconds,
        }
        result = findings("lesion", "Lesions", told.summary(), told.exhibits(self.draws), numbers)
        parts.close(result)
        return result

    def _check(self, layers: Sequence[Layer], name: str) -> None:
        kinds = self._kinds(layers)
        if not kinds:
            raise UsageError(f"{name} has neither attention nor MLPs to remove. Leave Lesion.kinds out.")
        if not any(_removable(layer, kind) for layer in layers for kind in kinds):
            raise UsageError(
                f"nothing in {name} can be removed: its layers all change shapes, or are stages that Vitadel cannot "
                "look into. This study wants a ViT, DeiT, CaiT, XCiT, Swin, ResNet or WideResNet."
            )
        if far := [block for block in self.blocks if block >= len(layers)]:
            raise UsageError(f"the model has {len(layers)} blocks, counted from 0; Lesion.blocks asks for {far[0]}.")
        if fixed := [b for b in self.blocks if not any(_removable(layers[b], kind) for kind in kinds)]:
            raise UsageError(
                f"{layers[fixed[0]].name} cannot be removed: it changes the shape of what it is given. "
                "Name other blocks."
            )
        most = len(_pool(layers))
        if self.draws and (many := [count for count in self.removed if count > most]):
            raise UsageError(
                f"{most} blocks can be removed with the first one kept; Lesion.removed asks for {many[0]}."
            )

    def _kinds(self, layers: Sequence[Layer]) -> list[Kind]:
        """Without attention, there are only whole units to remove."""
        attentive = any(layer.attention is not None for layer in layers)
        return [kind for kind in self.kinds if kind is Kind.BLOCK or attentive]

    def _singles(self, layers: Sequence[Layer], kind: Kind) -> dict[int, Plan]:
        chosen = self.blocks or range(len(layers))
        return {place: _without(layers, [place], kind) for place in chosen if _removable(layers[place], kind)}

    def _drawn(self, layers: Sequence[Layer], seed: int) -> dict[int, list[list[int]]]:
        """For every count, the layers that each draw removes."""
        pool = torch.tensor(_pool(layers), dtype=torch.int64)
        if self.draws == 0:
            return {}
        drawn = {}
        for count in self.removed or range(2, len(pool) + 1):
            order = RandomStreams.of(fold_seed(seed, count), torch.arange(self.draws)).uniform(
                len(pool), dtype=torch.float64
            )
            drawn[count] = pool[order.argsort(1)[:, :count]].sort(1).values.tolist()
        return drawn


def _removable(layer: Layer, kind: Kind) -> bool:
    if kind is Kind.MLP:
        return layer.mlp is not None
    return not layer.fixed and (kind is Kind.BLOCK or layer.attention is not None)


def _pool(layers: Sequence[Layer]) -> list[int]:
    """What random draws choose from: all that can go but the first, and not those that only feed the class token."""
    late = {place for place, layer in enumerate(layers) if layer.name.startswith("class_blocks.")}
    return [place for place, layer in enumerate(layers) if place and not layer.fixed and place not in late]


def _without(layers: Sequence[Layer], places: Sequence[int], kind: Kind) -> Plan:
    plan = list(intact(layers))
    for place in places:
        plan[place] = _CUTS[kind]
    return tuple(plan)


@dataclass(frozen=True, slots=True)
class _Told:
    """What came out, in numbers, figures and words."""

    layers: Sequence[Layer]
    done: Outcome
    singles: Mapping[Kind, Mapping[int, Plan]]
    several: Mapping[Kind, Mapping[int, Sequence[Plan]]]

    @property
    def clean(self) -> Accuracy:
        return self._accuracy(intact(self.layers))

    def _accuracy(self, plan: Plan) -> Accuracy:
        return accuracy(self.done.right[plan], self.done.n)

    def singles_told(self) -> list[dict[str, object]]:
        return [
            {"kind": kind.value, "layer": self.layers[place].name, **asdict(self._accuracy(plan))}
            for kind, plans in self.singles.items()
            for place, plan in plans.items()
        ]

    def several_told(self, drawn: Mapping[int, Sequence[Sequence[int]]]) -> list[dict[str, object]]:
        return [
            {
                "kind": kind.value,
                "removed": count,
                **self._spread(plans),
                "accuracies": [self._accuracy(plan).accuracy for plan in plans],
                "layers": [[self.layers[place].name for place in some] for some in drawn[count]],
            }
            for kind, counts in self.several.items()
            for count, plans in counts.items()
        ]

    def _spread(self, plans: Sequence[Plan]) -> dict[str, float]:
        found = [self._accuracy(plan).accuracy for plan in plans]
        mean = math.fsum(found) / len(found)
        variance = math.fsum((one - mean) ** 2 for one in found) / max(1, len(found) - 1)
        # a single draw has no spread to speak of
        error = math.sqrt(variance / len(found)) if len(found) > 1 else math.nan
        return {"mean": mean, "standard_error": error, "least": min(found), "greatest": max(found)}

    def cost(self) -> dict[str, object]:
        """In forward passes' worth of layers, and what it would be if every lesion ran the whole model."""
        lesions = len(self.done.right) - 1
        return {
            "layers": len(self.layers),
            "lesions": lesions,
            "layers_run": self.done.layers_run,
            "forwards": self.done.forwards,
            "forwards_one_by_one": lesions + 1,
        }

    def exhibits(self, draws: int) -> list[Exhibit]:
        shown: list[Exhibit] = [self._one_at_a_time(), self._singles_table()]
        counts = max((len(counts) for counts in self.several.values()), default=0)
        # a single number of them makes no curve
        return [
            *shown,
            *([self._at_random(draws)] if counts > 1 else []),
            *([self._random_table(draws)] if counts else []),
        ]

    def _one_at_a_time(self) -> Lines:
        return Lines(
            "One removed",
            f"Accuracy on {self.done.n} images when one block, its attention or its MLP is taken out of the trained "
            f"model and its input goes on along the skip connection. Dotted: nothing removed. {self._intervals()}",
            [
                Line(f"without {_WORDS[kind]}", list(plans), [self._accuracy(plan).accuracy for plan in plans.values()])
                for kind, plans in self.singles.items()
            ],
            x_label="removed, counted from 0",
            y_label="accuracy",
            y_range=(0.0, 1.0),
            references=[("all there", self.clean.accuracy)],
        )

    def _intervals(self) -> str:
        # widest near a half, where a model that lost a part is more likely to be than the whole one
        drawn = [self.clean, *(self._accuracy(plan) for plans in self.singles.values() for plan in plans.values())]
        widest = max((one.high - one.low) / 2 for one in drawn)
        return f"An accuracy here has an interval of at most {widest:.3f} either way."

    def _singles_table(self) -> Table:
        places = sorted({place for plans in self.singles.values() for place in plans})
        return Table(
            "One removed, in numbers",
            f"Accuracy on {self.done.n} images; {self.clean.accuracy:.3f} with nothing removed.",
            ["layer", *(f"without {_WORDS[kind]}" for kind in self.singles)],
            [
                [
                    self.layers[place].name,
                    *(
                        self._accuracy(plans[place]).accuracy if place in plans else None
                        for plans in self.singles.values()
                    ),
                ]
                for place in places
            ],
        )

    def _at_random(self, draws: int) -> Lines:
        lines = []
        for kind, counts in self.several.items():
            found = [self._spread(plans) for plans in counts.values()]
            low, high = ([one[end] for one in found] for end in ("least", "greatest"))
            lines.append(Line(f"without {_WORDS[kind]}s", list(counts), [one["mean"] for one in found], low, high))
        return Lines(
            "Several removed at random",
            f"Mean accuracy on {self.done.n} images when so many blocks, attentions or MLPs are taken out, over "
            f"{draws} draws that are the same for all kinds; bands go from the worst draw to the best. The first block "
            f"always stays{self._kept()}. Standard errors are in the table.",
            lines,
            x_label="removed",
            y_label="accuracy",
            y_range=(0.0, 1.0),
            references=[("all there", self.clean.accuracy)],
        )

    def _kept(self) -> str:
        kept = [short(self.layers[at].name) for at in range(1, len(self.layers)) if at not in _pool(self.layers)]
        return f", and so do {', '.join(kept)}" if kept else ""

    def _random_table(self, draws: int) -> Table:
        return Table(
            "Several removed, in numbers",
            f"Accuracy on {self.done.n} images over {draws} draws: mean, its standard error, worst and best draw.",
            ["kind", "removed", "mean", "standard error", "worst", "best"],
            [
                [_WORDS[kind], count, *self._spread(plans).values()]
                for kind, counts in self.several.items()
                for count, plans in counts.items()
            ],
        )

    def summary(self) -> str:
        said = [f"With nothing removed the model is right on {self.clean.accuracy:.1%} of {self.done.n} images."]
        for kind, plans in self.singles.items():
            later = {place: self._accuracy(plan).accuracy for place, plan in plans.items() if place}
            first = f"{self._accuracy(plans[0]).accuracy:.1%} without the first {_WORDS[kind]}, " if 0 in plans else ""
            if later:
                worst = min(later, key=later.__getitem__)
                first += f"{later[worst]:.1%} without the worst other one ({self.layers[worst].name})"
            said.append(f"It has {first.removesuffix(', ')}.")
        counts = next((list(counts) for counts in self.several.values() if counts), [])
        if counts:
            middle = counts[len(counts) // 2]
            means = (
                f"{self._spread(several[middle])['mean']:.1%} ({_WORDS[kind]}s)"
                for kind, several in self.several.items()
            )
            said.append(f"With {middle} removed at random it has {', '.join(means)} on average.")
        return " ".join(said)
