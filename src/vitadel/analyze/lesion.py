r"""Lesions: a model's accuracy when parts of it are removed, without retraining.

Bhojanapalli et al. (2021, arXiv:2103.14586, section 4) remove from a ViT each block, each attention layer and each MLP,
so that information passes along the skip connection only, and then n random ones at a time, never those of the first
block. Random draws are independent and the same for all kinds, so that kinds can be compared draw by draw:

.. math:: \bar a_n = \frac{1}{D} \sum_d a(S_n^d), \qquad |S_n^d| = n, \qquad
          \mathrm{s.e.}_n = \sqrt{\frac{1}{D (D - 1)} \sum_d \big(a(S_n^d) - \bar a_n\big)^2} .

In a convolutional network, residual units are removed, except those that change the shape.
"""

import enum
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar

import torch
from torch import nn

from vitadel.analyze.layers import axis_label, layers_of
from vitadel.analyze.prefix_cache import LayerChange, Variant, count_correct, map_variants, variant
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, CountOrZero, Range, check_ranges
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.core.stats import Accuracy
from vitadel.evaluate.context import Context
from vitadel.models import Layer
from vitadel.runs.exhibits import Exhibit, Line, Lines, Table
from vitadel.runs.schema import StudyRecord

_TABLE = "lesions"


class LesionKind(enum.Enum):
    """The kind of part that is removed."""

    BLOCK = "block"
    ATTENTION = "attention"
    MLP = "mlp"

    @property
    def change(self) -> LayerChange:
        """The corresponding change of a layer."""
        return LayerChange[{"block": "NO_LAYER", "attention": "NO_ATTENTION", "mlp": "NO_MLP"}[self.value]]

    @property
    def label(self) -> str:
        """Its name in figures."""
        return "MLP" if self is LesionKind.MLP else self.value

    def applies_to(self, layer: Layer) -> bool:
        """Whether a layer has this part, and works without it."""
        if self is LesionKind.MLP:
            return layer.mlp is not None
        return not layer.changes_shape and (self is LesionKind.BLOCK or layer.attention is not None)


@dataclass(frozen=True, slots=True)
class Lesion:
    """Accuracy without each block, attention and MLP, and without several random ones.

    Args:
        kinds: The kinds of parts that are removed.
        blocks: Numbers of the blocks that are removed one at a time; () for all.
        removed: How many are removed together; () for 2 up to all but the first.
        draws: Random draws for each of these numbers; 0 leaves that part out.
    """

    title: ClassVar[str] = "Lesions"
    about: ClassVar[str] = "accuracy without each block, attention or MLP, and without random ones"
    needs_threat: ClassVar[bool] = False

    kinds: tuple[LesionKind, ...] = (LesionKind.BLOCK, LesionKind.ATTENTION, LesionKind.MLP)
    blocks: tuple[CountOrZero, ...] = ()
    removed: tuple[Count, ...] = ()
    draws: Annotated[int, Range(ge=0, top=10_000, hint="0 leaves random removals out.")] = 25

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.kinds:
            raise UsageError("Lesion.kinds is empty, so nothing would be removed. Name block, attention or mlp.")

    def check(self, model: nn.Module) -> None:
        loaded, layers = layers_of(model)
        name, kinds, most = type(loaded.net).__name__, self._kinds(layers), len(_candidates(layers))
        if not kinds:
            raise UsageError(f"{name} has neither attention nor MLPs to remove. Leave Lesion.kinds out.")
        if not any(kind.applies_to(layer) for layer in layers for kind in kinds):
            raise UsageError(
                f"nothing in {name} can be removed: its layers all change shapes, or are stages that Vitadel cannot "
                "take apart. Choose a ViT, DeiT, CaiT, XCiT, Swin, ResNet or WideResNet."
            )
        if beyond := [block for block in self.blocks if block >= len(layers)]:
            raise UsageError(
                f"the model has {len(layers)} blocks, counted from 0; Lesion.blocks asks for {beyond[0]}. "
                f"Choose from 0 to {len(layers) - 1}."
            )
        if fixed := [block for block in self.blocks if not any(kind.applies_to(layers[block]) for kind in kinds)]:
            raise UsageError(
                f"{layers[fixed[0]].name} cannot be removed: it changes the shape of its input. Name other blocks."
            )
        if self.draws and (many := [count for count in self.removed if count > most]):
            raise UsageError(
                f"{most} blocks can be removed with the first one kept; Lesion.removed asks for {many[0]}. "
                f"Write at most {most}, or draws=0."
            )

    def run(self, ctx: Context) -> None:
        _, layers = layers_of(ctx.model)
        map_variants(ctx, _TABLE, self._variants(layers, ctx.seed))

    def summarize(self, ctx: Context) -> StudyRecord:
        _, layers = layers_of(ctx.model)
        drawn, counts = self._drawn(layers, ctx.seed), count_correct(ctx, _TABLE, self._variants(layers, ctx.seed))

        def without(kind: LesionKind, removed: Sequence[int]) -> Accuracy:
            return counts.accuracy(variant(layers, removed, kind.change))

        single = {kind: {at: without(kind, [at]) for at in each} for kind, each in self._single(layers).items()}
        random = {
            kind: {count: [without(kind, draw).accuracy for draw in draws] for count, draws in drawn.items()}
            for kind in single
        }
        result = _Accuracies(layers, counts.accuracy(variant(layers)), single, random, self.draws)
        numbers = {
            "n": counts.n,
            "clean": asdict(result.clean),
            "single": [
                {"kind": kind.value, "layer": layers[at].name, **asdict(one)}
                for kind, each in single.items()
                for at, one in each.items()
            ],
            "random": [
                {
                    "kind": kind.value,
                    "removed": count,
                    **_draw_statistics(accuracies),
                    "accuracies": accuracies,
                    "layers": [[layers[at].name for at in draw] for draw in drawn[count]],
                }
                for kind, each in random.items()
                for count, accuracies in each.items()
            ],
            # in forward passes; and the number if every lesion ran the whole model
            "cost": {
                "layers": len(layers),
                "lesions": len(counts.correct) - 1,
                "layers_run": counts.layers_run,
                "forwards": counts.forwards,
                "forwards_one_by_one": len(counts.correct),
            },
        }
        return StudyRecord("lesion", self.title, result.summary(), result.exhibits(), numbers)

    def _variants(self, layers: Sequence[Layer], seed: int) -> list[Variant]:
        single, drawn = self._single(layers), self._drawn(layers, seed)
        draws = [draw for draws in drawn.values() for draw in draws]
        return [
            variant(layers, removed, kind.change)
            for kind, each in single.items()
            for removed in (*([at] for at in each), *draws)
        ]

    def _single(self, layers: Sequence[Layer]) -> dict[LesionKind, list[int]]:
        """For every kind, the layers that are removed one at a time."""
        chosen = self.blocks or range(len(layers))
        return {kind: [at for at in chosen if kind.applies_to(layers[at])] for kind in self._kinds(layers)}

    def _kinds(self, layers: Sequence[Layer]) -> list[LesionKind]:
        """The kinds that the model has: without attention, only whole units can be removed."""
        has_attention = any(layer.attention is not None for layer in layers)
        return [kind for kind in self.kinds if kind is LesionKind.BLOCK or has_attention]

    def _drawn(self, layers: Sequence[Layer], seed: int) -> dict[int, list[list[int]]]:
        """For each count, the layers that each random draw removes."""
        if self.draws == 0:
            return {}
        candidates, drawn = torch.tensor(_candidates(layers), dtype=torch.int64), {}
        for count in self.removed or range(2, len(candidates) + 1):
            rng = RandomStreams.of(fold_seed(seed, count), torch.arange(self.draws))
            order = rng.uniform(len(candidates), dtype=torch.float64).argsort(1)
            drawn[count] = candidates[order[:, :count]].sort(1).values.tolist()
        return drawn


def _candidates(layers: Sequence[Layer]) -> list[int]:
    """The layers that random draws choose from: not the first, and none that only updates the class token."""
    return [
        at
        for at, layer in enumerate(layers)
        if at and not layer.changes_shape and not layer.name.startswith("class_blocks.")
    ]


def _draw_statistics(accuracies: Sequence[float]) -> dict[str, float]:
    # a single draw has no standard error
    several = len(accuracies) > 1
    error = statistics.stdev(accuracies) / math.sqrt(len(accuracies)) if several else math.nan
    mean = statistics.fmean(accuracies)
    return {"mean": mean, "standard_error": error, "least": min(accuracies), "greatest": max(accuracies)}


@dataclass(frozen=True, slots=True)
class _Accuracies:
    """Accuracies: of the whole model, without one part (by kind and layer), of every draw (by kind and count)."""

    layers: Sequence[Layer]
    clean: Accuracy
    single: Mapping[LesionKind, Mapping[int, Accuracy]]
    random: Mapping[LesionKind, Mapping[int, Sequence[float]]]
    draws: int

    def exhibits(self) -> list[Exhibit]:
        counts = max((len(each) for each in self.random.values()), default=0)
        return [
            *(self._single_figure(), self._single_table()),
            *([self._random_figure()] if counts > 1 else []),  # a curve needs two points
            *([self._random_table()] if counts else []),
        ]

    def _figure(self, title: str, caption: str, lines: list[Line], x_label: str) -> Lines:
        whole = [("nothing removed", self.clean.accuracy)]
        return Lines(title, caption, lines, x_label, "accuracy", y_range=(0.0, 1.0), references=whole)

    def _single_figure(self) -> Lines:
        # the interval is widest near an accuracy of 0.5, so perhaps not that of the whole model
        every = [self.clean, *(one for each in self.single.values() for one in each.values())]
        widest = max((one.high - one.low) / 2 for one in every)
        return self._figure(
            "Single removals",
            f"Accuracy on {self.clean.n} images when one block, its attention or its MLP is removed from the trained "
            "model and its input passes along the skip connection. Dotted: nothing removed. An accuracy here has an "
            f"interval of at most {widest:.3f} either way.",
            [
                Line(f"without {kind.label}", list(each), [one.accuracy for one in each.values()])
                for kind, each in self.single.items()
            ],
            "removed, counted from 0",
        )

    def _single_table(self) -> Table:
        removed = sorted({at for each in self.single.values() for at in each})
        return Table(
            "Single removals (table)",
            f"Accuracy on {self.clean.n} images; {self.clean.accuracy:.3f} with nothing removed.",
            ["layer", *(f"without {kind.label}" for kind in self.single)],
            [
                [self.layers[at].name, *(each[at].accuracy if at in each else None for each in self.single.values())]
                for at in removed
            ],
        )

    def _random_figure(self) -> Lines:
        candidates = _candidates(self.layers)
        kept = [axis_label(layer.name) for at, layer in enumerate(self.layers) if at and at not in candidates]
        too = f", and so do {', '.join(kept)}" if kept else ""
        lines = []
        for kind, each in self.random.items():
            means, low, high = ([f(draws) for draws in each.values()] for f in (statistics.fmean, min, max))
            lines.append(Line(f"without {kind.label}s", list(each), means, low, high))
        return self._figure(
            "Random removals",
            f"Mean accuracy on {self.clean.n} images by the number of removed blocks, attentions or MLPs, over "
            f"{self.draws} draws that are the same for all kinds; bands go from the worst draw to the best. The first "
            f"block always stays{too}. Standard errors are in the table.",
            lines,
            "removed",
        )

    def _random_table(self) -> Table:
        return Table(
            "Random removals (table)",
            f"Accuracy on {self.clean.n} images over {self.draws} draws: mean, its standard error, worst and best "
            "draw.",
            ["kind", "removed", "mean", "standard error", "worst", "best"],
            [
                [kind.label, count, *_draw_statistics(draws).values()]
                for kind, each in self.random.items()
                for count, draws in each.items()
            ],
        )

    def summary(self) -> str:
        clean = self.clean
        sentences = [f"With nothing removed the model classifies {clean.accuracy:.1%} of {clean.n} images correctly."]
        for kind, each in self.single.items():
            later = {at: one.accuracy for at, one in each.items() if at}
            parts = [f"{each[0].accuracy:.1%} without the first {kind.label}"] if 0 in each else []
            if later:
                worst = min(later, key=later.__getitem__)
                parts.append(f"{later[worst]:.1%} without the worst other one ({self.layers[worst].name})")
            sentences += [f"It has {', '.join(parts)}."] if parts else []
        if counts := next((list(each) for each in self.random.values() if each), []):
            middle = counts[len(counts) // 2]
            means = (f"{statistics.fmean(each[middle]):.1%} ({kind.label}s)" for kind, each in self.random.items())
            sentences.append(f"With {middle} removed at random it has {', '.join(means)} on average.")
        return " ".join(sentences)
