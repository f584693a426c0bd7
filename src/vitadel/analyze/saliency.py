"""Saliency maps before and under attack: EigenCAM, attention and rollout.

The maps are computed by `vitadel.analyze.saliency_maps`. Three numbers describe each: the similarity of the maps before
and under attack (Pearson's correlation over cells); the spread of a map, :math:`(\\sum m)^2 / (n \\sum m^2)` of its
positive part, 1 if it is even and 1/n if it is a single cell; and its share in the center, the middle of both sides.

Shape letters: B images, h x w cells.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitadel.analyze import attacked_images
from vitadel.analyze.attacked_images import finite_mean_interval
from vitadel.analyze.saliency_maps import Method, SaliencyMaps, check_layer, offered
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, Steps, check_ranges
from vitadel.core.oom import in_batches
from vitadel.evaluate.context import Batch, Context
from vitadel.evaluate.images import Images, thumbnail
from vitadel.evaluate.store import TableRows
from vitadel.runs.exhibits import Bar, Bars, Cell, Exhibit, Picture, Pictures, Scale, Table
from vitadel.runs.schema import StudyRecord
from vitadel.runs.typed_json import tensor_from_json, tensor_to_json
from vitadel.threats import Threat

_BATCH = 16
_WHEN = ("clean", "attacked")
_NAMES = {Method.EIGENCAM: "EigenCAM", Method.ATTENTION: "attention", Method.ROLLOUT: "rollout"}


@dataclass(frozen=True, slots=True)
class Saliency:
    """Saliency maps of clean and attacked images: their similarity, spread and share in the center.

    Args:
        methods: EigenCAM, the attention of the class token, its rollout; () for all that the model supports.
        images: Number of images shown; all are measured.
        steps: Steps of PGD.
        step_size: Step size of PGD; 1.5 eps / steps if not given.
        layer: Tap or module for EigenCAM.
        center: Whether the mean of each channel over positions is subtracted first.
    """

    former_names: ClassVar[dict[str, str]] = {"centre": "center"}

    title: ClassVar[str] = "Saliency maps"
    about: ClassVar[str] = "saliency maps before and under attack: EigenCAM, attention, rollout"
    needs_threat: ClassVar[bool] = True

    methods: tuple[Method, ...] = ()
    images: Count = 6
    steps: Steps = 20
    step_size: attacked_images.StepSize | None = None
    layer: str | None = None
    center: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        if len(set(self.methods)) < len(self.methods):
            raise UsageError(
                f"Saliency.methods names one twice: {', '.join(one.value for one in self.methods)}. Name each once."
            )

    def check(self, model: nn.Module) -> None:
        self._chosen(model)
        if self.layer is not None:
            check_layer(model, self.layer)

    def run(self, ctx: Context) -> None:
        maps_of, attack = self._maps_of(ctx), attacked_images.pgd(self.steps, self.step_size, ctx.required_threat)

        def measure(batch: Batch) -> dict[str, object]:
            result = ctx.attack(attack, batch)
            maps, prediction = {}, {}
            for when, x in (("clean", batch.x.cpu()), ("attacked", result.x_adv.cpu())):
                maps[when], prediction[when] = _computed(maps_of, x, ctx.seed, ctx.engine.batch_size or _BATCH)
            if Method.EIGENCAM in maps_of.methods:
                cams = [maps[when][Method.EIGENCAM] for when in _WHEN]
                maps["attacked"][Method.EIGENCAM] = with_matching_sign(*cams)
            shown = [
                {
                    "attacked": tensor_to_json((255 * thumbnail(x_adv)).round().byte()),
                    **{
                        f"{when} {method.value}": tensor_to_json(maps[when][method][position])
                        for when in _WHEN
                        for method in maps_of.methods
                    },
                }
                if index < self.images
                else None
                for position, (index, x_adv) in enumerate(zip(batch.index.tolist(), result.x_adv.cpu(), strict=True))
            ]
            predictions = {f"prediction {when}": prediction[when] for when in _WHEN}
            return {**_measured(maps), **predictions, "success": result.success, "shown": shown}

        ctx.map("maps", measure)

    def summarize(self, ctx: Context) -> StudyRecord:
        rows, maps_of, threat = ctx.table("maps"), self._maps_of(ctx), ctx.required_threat
        scores = {method: _scores(rows, method) for method in maps_of.methods}
        exhibits: list[Exhibit] = [
            self._pictures(ctx.images, rows, maps_of, threat),
            _bars(scores, len(rows)),
            _table(scores, len(rows)),
        ]
        numbers = {
            "n": len(rows),
            "layer": maps_of.layer,
            "missing": {method.value: why for method, why in offered(ctx.model).items() if why},
            "fooled": sum(rows["success"]),
            "maps": {method.value: values for method, values in scores.items()},
        }
        summary = _summary(scores, len(rows), sum(rows["success"]), str(threat))
        return StudyRecord("saliency", self.title, summary, exhibits, numbers)

    def _maps_of(self, ctx: Context) -> SaliencyMaps:
        first = ctx.images.images(torch.arange(1))
        return SaliencyMaps.of(ctx.model, self._chosen(ctx.model), self.layer, self.center, first)

    def _chosen(self, model: nn.Module) -> tuple[Method, ...]:
        why = offered(model)
        if missing := next((method for method in self.methods if why[method]), None):
            has = ", ".join(method.value for method, reason in why.items() if not reason)
            raise UsageError(f"there is no {missing.value} here: {why[missing]}. Choose from {has}.")
        return self.methods or tuple(method for method, reason in why.items() if not reason)

    def _pictures(self, images: Images, rows: TableRows, maps_of: SaliencyMaps, threat: Threat) -> Pictures:
        count = min(self.images, len(images))
        x, labels = images.images(torch.arange(count)).cpu(), images.labels[:count].tolist()
        cells = []
        for index, shown in enumerate(rows["shown"][:count]):
            clean, attacked = thumbnail(x[index]), tensor_from_json(shown["attacked"]).float() / 255
            line = [
                Picture.of(clean.numpy(), note=f"predicted {rows['prediction clean'][index]}"),
                Picture.of(attacked.numpy(), note=f"predicted {rows['prediction attacked'][index]}"),
            ]
            for method in maps_of.methods:
                line += [
                    Picture.of(below.numpy(), _drawn(tensor_from_json(shown[f"{when} {method.value}"])))
                    for when, below in (("clean", clean), ("attacked", attacked))
                ]
            cells.append(line)
        centered = ", channels centered" if self.center else ""
        cam = (
            f"EigenCAM is of {maps_of.layer}{centered}; its sign is such that the value farthest from zero is positive "
            "on the clean image, and matches on the attacked one. "
        )
        return Pictures(
            self.title,
            f"Maps on the clean image and on the attacked one (PGD with {self.steps} steps at "
            f"{threat!s}); below them the model's prediction. "
            f"{cam if Method.EIGENCAM in maps_of.methods else ''}Each map is divided by its largest value; negative "
            "values are drawn as zero.",
            cells,
            rows=[f"label {label}" for label in labels],
            columns=["image", "attacked", *(_column(method, when) for method in maps_of.methods for when in _WHEN)],
            scale=Scale.SEQUENTIAL,
            scale_label="relative to the maximum",
        )


def with_matching_sign(clean: Tensor, attacked: Tensor) -> Tensor:
    """The maps under attack with signs that match those of the clean maps.

    The sign of a singular vector is arbitrary: chosen for each map separately, similar maps could have opposite signs.
    The sign of their product decides, not that of Pearson's correlation: maps of features that are never negative have
    a meaningful sign, even if the attack moves them to other positions.
    """
    opposite_B = (clean.double() * attacked.double()).sum((1, 2)) < 0
    return torch.where(opposite_B[:, None, None], -attacked, attacked)


def map_correlation(first: Tensor, second: Tensor) -> Tensor:
    """[B] Pearson correlations over cells; NaN where a map is constant."""
    a, b = (one.double().flatten(1) for one in (first, second))
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def evenness(maps_Bhw: Tensor) -> Tensor:
    """[B] from 1 / cells to 1: how evenly the positive part of a map is spread; NaN where there is none."""
    positive = maps_Bhw.double().clamp_min(0).flatten(1)
    return positive.sum(1).square() / (positive.shape[1] * positive.square().sum(1))


def center_share(maps_Bhw: Tensor) -> Tensor:
    """[B] share of the positive part in the middle half of both sides; cells on its edge count in part."""
    positive = maps_Bhw.double().clamp_min(0)
    rows, columns = (_middle_weights(length).to(positive) for length in positive.shape[1:])
    return (positive * rows[:, None] * columns).sum((1, 2)) / positive.sum((1, 2))


def _middle_weights(cells: int) -> Tensor:
    """[cells]: the fraction of each cell between one quarter and three quarters of the side."""
    edges = torch.arange(cells + 1, dtype=torch.float64) / cells
    return (edges.clamp(0.25, 0.75).diff() * cells).clamp(0, 1)


def _computed(maps_of: SaliencyMaps, x: Tensor, seed: int, batch_size: int) -> tuple[dict[Method, Tensor], Tensor]:
    """Maps and predictions, in small batches: the attention probabilities of all blocks are in memory."""
    made = [one for _, one in in_batches(torch.arange(len(x)), batch_size, lambda index: maps_of(x[index], seed))]
    maps = {method: torch.cat([values[method] for values, _ in made]) for method in maps_of.methods}
    return maps, torch.cat([z_BK.argmax(1) for _, z_BK in made])


def _measured(maps: Mapping[str, Mapping[Method, Tensor]]) -> dict[str, Tensor]:
    measured = {}
    for method, clean in maps["clean"].items():
        measured[f"{method.value} alike"] = map_correlation(clean, maps["attacked"][method])
        for when in _WHEN:
            measured[f"{method.value} spread {when}"] = evenness(maps[when][method])
            measured[f"{method.value} middle {when}"] = center_share(maps[when][method])
    return measured


def _scores(rows: TableRows, method: Method) -> dict[str, dict[str, float]]:
    keys = ("alike", *(f"{what} {when}" for what in ("spread", "middle") for when in _WHEN))
    return {key: finite_mean_interval(rows[f"{method.value} {key}"]) for key in keys}


def _drawn(map_hw: Tensor) -> "list[list[float]]":
    positive = map_hw.clamp_min(0)
    shown: list[list[float]] = (positive / positive.max().clamp_min(torch.finfo(positive.dtype).tiny)).tolist()
    return shown


def _column(method: Method, when: str) -> str:
    return _NAMES[method] if when == "clean" else f"{_NAMES[method]}, att."


def _bars(scores: Mapping[Method, Mapping[str, Mapping[str, float]]], n: int) -> Bars:
    return Bars(
        "Spread of the maps",
        f"Mean spread over {n} images with its 95% interval: 1 for an even map, 1 / cells for a single cell.",
        [_NAMES[method] for method in scores],
        [
            Bar(
                when,
                *([values[f"spread {when}"][key] for values in scores.values()] for key in ("mean", "low", "high")),
            )
            for when in _WHEN
        ],
        y_label="spread",
        y_range=(0.0, 1.0),
    )


def _table(scores: Mapping[Method, Mapping[str, Mapping[str, float]]], n: int) -> Table:
    names = {
        "alike": "correlation, clean and attacked",
        "spread clean": "spread, clean",
        "spread attacked": "spread, attacked",
        "middle clean": "share in the center, clean",
        "middle attacked": "share in the center, attacked",
    }
    rows: list[list[Cell]] = [
        [
            _NAMES[method],
            names[key],
            *(one[end] for end in ("mean", "low", "high")),
        ]
        for method, values in scores.items()
        for key, one in values.items()
    ]
    return Table(
        "Correlation and spread (table)",
        f"Means over {n} images with their 95% intervals. The center is the middle half of both sides; its share is "
        "0.25 in an even map.",
        ["map", "", "mean", "low", "high"],
        rows,
    )


def _summary(scores: Mapping[Method, Mapping[str, Mapping[str, float]]], n: int, fooled: int, threat: str) -> str:
    sentences = [
        f"{_NAMES[method]} before and under attack correlate by {values['alike']['mean']:.2f}, with a spread of "
        f"{values['spread clean']['mean']:.2f} and {values['spread attacked']['mean']:.2f}"
        for method, values in scores.items()
    ]
    return f"On {n} images, {fooled} of which are misclassified under attack at {threat}: " + "; ".join(sentences) + "."
