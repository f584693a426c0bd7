"""Where does a model look, and does an attack move its eyes? EigenCAM, attention and rollout, before and under attack.

How maps are made: `vitadel.analyze.saliency_maps`. Three numbers go with each: how alike the maps before and under
attack are (Pearson's correlation over cells); the spread of a map, :math:`(\\sum m)^2 / (n \\sum m^2)` of its
positive part, 1 if it is even and 1/n if it is one cell; and the share of it in the middle, half of each side, a
quarter of the area.

Shape letters: B images, h x w cells.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitadel import threats as threats
from vitadel.analyze import attacked_images
from vitadel.analyze.attacked_images import ImageAttacker, floats, mean_interval, numbers
from vitadel.analyze.json_arrays import packed, unpacked
from vitadel.analyze.saliency_maps import Method, SaliencyMaps, check_layer, look_at, offered
from vitadel.analyze.study import Bench
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, check_ranges
from vitadel.core.oom import in_batches
from vitadel.evaluate.images import Images
from vitadel.runs import describe
from vitadel.runs.exhibits import Bar, Bars, Cell, Exhibit, Picture, Pictures, Scale, Table, findings
from vitadel.threats import Threat

_ROWS = 16
_WHEN = ("clean", "attacked")
_NAMES = {Method.EIGENCAM: "EigenCAM", Method.ATTENTION: "attention", Method.ROLLOUT: "rollout"}


@dataclass(frozen=True, slots=True)
class Saliency:
    """Where a model looks, on clean images and under PGD: maps, how alike they are, how wide and how central.

    `methods` are EigenCAM, the attention of the class token and its rollout; () takes all that the model has. `layer`
    is the tap or module whose EigenCAM is taken, `center` takes the mean over cells out of its channels first. `images`
    are shown, all are measured. `steps` and `step_size` are those of PGD, 1.5 eps / steps if not said.
    """

    about: ClassVar[str] = "where does a model look, before and under attack? EigenCAM, attention, rollout"
    needs_threat: ClassVar[bool] = True

    methods: tuple[Method, ...] = ()
    images: Count = 6
    steps: Count = 20
    step_size: attacked_images.StepSize | None = None
    layer: str | None = None
    center: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        if len(set(self.methods)) < len(self.methods):
            raise UsageError(f"Saliency.methods names one twice: {', '.join(one.value for one in self.methods)}.")

    def refuse(self, model: nn.Module) -> None:
        self._chosen(model)
        if self.layer is not None:
            check_layer(model, self.layer)

    def carry_out(self, bench: Bench) -> dict[str, object]:
        """Maps of all images in numbers, and of the first as pictures."""
        model, images, parts, threat = bench.model, bench.images, bench.parts, bench.threat
        attacked_images.check_images(images)
        self.refuse(model)
        sight = look_at(model, self._chosen(model), self.layer, self.center, images.images(torch.arange(1)))
        run_attack = ImageAttacker(
            model, images, attacked_images.pgd(self.steps, self.step_size, threat), threat, bench.seed, bench.batch
        )

        told = attacked_images.gathered(bench, "maps", self._look(sight, run_attack, bench.seed, bench.batch))
        scores = {m: _scores(told, m) for m in sight.methods}
        exhibits: list[Exhibit] = [
            self._pictures(images, told, sight, threat),
            _bars(scores, len(images)),
            _table(scores, len(images)),
        ]
        numbers_found = {
            "n": len(images),
            "settings": describe(self),
            "threat": {"text": threats.spell(threat), "eps": threat.eps},
            "layer": sight.layer,
            "missing": {m.value: why for m, why in offered(model).items() if why},
            "fooled": sum(map(bool, told["fooled"])),
            "maps": {m.value: found for m, found in scores.items()},
            "seconds": parts.seconds,
        }
        summary = _summary(scores, len(images), sum(map(bool, told["fooled"])), threats.spell(threat))
        result = findings("saliency", "Where the model looks", summary, exhibits, numbers_found)
        parts.close(result)
        return result

    def _look(
        self, sight: SaliencyMaps, run_attack: ImageAttacker, seed: int, batch: int | None
    ) -> Callable[[Tensor], dict[str, list[object]]]:
        """What a part holds of some rows."""

        def look(rows: Tensor) -> dict[str, list[object]]:
            struck = run_attack(rows)
            maps, said = {}, {}
            for when, x in (("clean", struck.x), ("attacked", struck.adversarial)):
                maps[when], said[when] = _looked(sight, x, seed, batch or _ROWS)
            if Method.EIGENCAM in sight.methods:
                cams = [maps[when][Method.EIGENCAM] for when in _WHEN]
                maps["attacked"][Method.EIGENCAM] = turned(*cams)
            shown = [
                {
                    "attacked": packed((255 * attacked_images.small(struck.adversarial[place])).round().byte()),
                    **{f"{when} {m.value}": packed(maps[when][m][place]) for when in _WHEN for m in sight.methods},
                }
                for place, row in enumerate(rows.tolist())
                if row < self.images
            ]
            return {
                **_measured(maps),
                **{f"said {when}": said[when].tolist() for when in _WHEN},
                "fooled": struck.fooled_B.tolist(),
                "shown": list(shown),
            }

        return look

    def _chosen(self, model: nn.Module) -> tuple[Method, ...]:
        why = offered(model)
        if missing := next((method for method in self.methods if why[method]), None):
            has = ", ".join(method.value for method, reason in why.items() if not reason)
            raise UsageError(f"there is no {missing.value} to look at: {why[missing]}. This model has {has}.")
        return self.methods or tuple(method for method, reason in why.items() if not reason)

    def _pictures(
        self, images: Images, told: Mapping[str, Sequence[object]], sight: SaliencyMaps, threat: Threat
    ) -> Pictures:
        count = min(self.images, len(images))
        x, labels = images.images(torch.arange(count)).cpu(), images.labels[:count].tolist()
        cells = []
        for row, one in enumerate(told["shown"]):
            assert isinstance(one, Mapping)
            clean, attacked = attacked_images.small(x[row]), unpacked(one["attacked"]).float() / 255
            line = [
                Picture.of(clean.numpy(), note=f"says {told['said clean'][row]}"),
                Picture.of(attacked.numpy(), note=f"says {told['said attacked'][row]}"),
            ]
            for method in sight.methods:
                line += [
                    Picture.of(below.numpy(), _drawn(unpacked(one[f"{when} {method.value}"])))
                    for when, below in (("clean", clean), ("attacked", attacked))
                ]
            cells.append(line)
        centered = ", channels centered" if self.center else ""
        cam = (
            f"EigenCAM is of {sight.layer}{centered}, its sign such that the value farthest from zero is positive on "
            "the clean image; on the attacked one it goes with that. "
        )
        return Pictures(
            "Where the model looks",
            f"Maps on the clean image and on the attacked one (PGD with {self.steps} steps at "
            f"{threats.spell(threat)}); below stands the model's answer. "
            f"{cam if Method.EIGENCAM in sight.methods else ''}Every map is relative to its own largest value, "
            "negative values are drawn as zero.",
            cells,
            rows=[f"label {label}" for label in labels],
            columns=["image", "attacked", *(_column(method, when) for method in sight.methods for when in _WHEN)],
            scale=Scale.SEQUENTIAL,
            scale_label="relative to the largest",
        )


def turned(clean: Tensor, attacked: Tensor) -> Tensor:
    """The maps under attack with the sign that goes with the clean ones.

    A singular vector has no sign: set for each map alone, a map and its like may end as each other's negative. What
    counts is their product and not Pearson's correlation: maps of features that are never negative have a sign, even
    where the attack moves them from one side to the other.
    """
    against_B = (clean.double() * attacked.double()).sum((1, 2)) < 0
    return torch.where(against_B[:, None, None], -attacked, attacked)


def alike(first: Tensor, second: Tensor) -> Tensor:
    """[B] Pearson correlations over cells; nan where a map is constant."""
    a, b = (one.double().flatten(1) for one in (first, second))
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def spread(maps_Bhw: Tensor) -> Tensor:
    """[B] from 1 / cells to 1: how evenly the positive part of a map is spread; nan where there is none."""
    positive = maps_Bhw.double().clamp_min(0).flatten(1)
    return positive.sum(1).square() / (positive.shape[1] * positive.square().sum(1))


def in_the_middle(maps_Bhw: Tensor) -> Tensor:
    """[B] share of the positive part within the middle half of both sides; cells on its edge count in part."""
    positive = maps_Bhw.double().clamp_min(0)
    rows, columns = (_within(length).to(positive) for length in positive.shape[1:])
    return (positive * rows[:, None] * columns).sum((1, 2)) / positive.sum((1, 2))


def _within(cells: int) -> Tensor:
    """[cells]: how much of each lies between one quarter and three quarters of the side."""
    edges = torch.arange(cells + 1, dtype=torch.float64) / cells
    return (edges.clamp(0.25, 0.75).diff() * cells).clamp(0, 1)


def _looked(sight: SaliencyMaps, x: Tensor, seed: int, rows: int) -> tuple[dict[Method, Tensor], Tensor]:
    made = [one for _, one in in_batches(torch.arange(len(x)), rows, lambda at: sight(x[at], seed))]
    maps = {method: torch.cat([found[method] for found, _ in made]) for method in sight.methods}
    return maps, torch.cat([z_BK.argmax(1) for _, z_BK in made])


def _measured(maps: Mapping[str, Mapping[Method, Tensor]]) -> dict[str, list[object]]:
    told: dict[str, list[object]] = {}
    for method, clean in maps["clean"].items():
        told[f"{method.value} alike"] = list(numbers(alike(clean, maps["attacked"][method])))
        for when in _WHEN:
            told[f"{method.value} spread {when}"] = list(numbers(spread(maps[when][method])))
            told[f"{method.value} middle {when}"] = list(numbers(in_the_middle(maps[when][method])))
    return told


def _scores(told: Mapping[str, Sequence[object]], method: Method) -> dict[str, dict[str, float]]:
    keys = ("alike", *(f"{what} {when}" for what in ("spread", "middle") for when in _WHEN))
    return {key: mean_interval(floats(told[f"{method.value} {key}"])) for key in keys}


def _drawn(map_hw: Tensor) -> "list[list[float]]":
    positive = map_hw.clamp_min(0)
    shown: list[list[float]] = (positive / positive.max().clamp_min(torch.finfo(positive.dtype).tiny)).tolist()
    return shown


def _column(method: Method, when: str) -> str:
    return _NAMES[method] if when == "clean" else f"{_NAMES[method]}, att."


def _bars(scores: Mapping[Method, Mapping[str, Mapping[str, float]]], n: int) -> Bars:
    return Bars(
        "Width of the maps",
        f"The spread of the maps of {n} images, mean with its 95% interval: 1 is an even map, one cell alone has 1 / "
        "cells.",
        [_NAMES[method] for method in scores],
        [
            Bar(when, *([found[f"spread {when}"][key] for found in scores.values()] for key in ("mean", "low", "high")))
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
        "middle clean": "share in the middle, clean",
        "middle attacked": "share in the middle, attacked",
    }
    rows: list[list[Cell]] = [
        [
            _NAMES[method],
            names[key],
            *(one[end] if math.isfinite(one[end]) else None for end in ("mean", "low", "high")),
        ]
        for method, found in scores.items()
        for key, one in found.items()
    ]
    return Table(
        "In numbers",
        f"Means over {n} images with their 95% intervals. The middle is half of each side: an even map has 0.25 of "
        "itself there.",
        ["map", "", "mean", "low", "high"],
        rows,
    )


def _summary(scores: Mapping[Method, Mapping[str, Mapping[str, float]]], n: int, fooled: int, threat: str) -> str:
    told = [
        f"{_NAMES[method]} before and under attack correlate by {found['alike']['mean']:.2f}, with a spread of "
        f"{found['spread clean']['mean']:.2f} and {found['spread attacked']['mean']:.2f}"
        for method, found in scores.items()
    ]
    return f"On {n} images, {fooled} of which end misclassified at {threat}: " + "; ".join(told) + "."
