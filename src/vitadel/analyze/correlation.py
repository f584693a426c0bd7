"""Similarity of the representations of images after every layer of a model.

Bhojanapalli et al. (2021, arXiv:2103.14586) correlate the outputs of all pairs of a ViT's blocks: over all tokens, and
for the class token alone. Layers of different shapes, as of convolutional networks, Swin, or two different models, are
compared by linear CKA. Both measures: `vitadel.analyze.similarity`.

Shape letters: L layers, B images, T tokens, D features, n images of a group.
"""

import enum
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from vitadel.analyze.base import map_chunks
from vitadel.analyze.layers import Read, layers_of, outputs_of
from vitadel.analyze.similarity import Grouping, Moments, cka, dependence, gram
from vitadel.analyze.similarity_figures import SimilarityMap, heat_maps, main_finding, steps
from vitadel.attacks.isolation import isolated
from vitadel.core.device import device_of
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range, check_ranges
from vitadel.core.oom import in_batches
from vitadel.evaluate.context import Context
from vitadel.models import Layer, Model, load, weights_sha256
from vitadel.runs.exhibits import Exhibit
from vitadel.runs.schema import StudyRecord

_TABLE = "similarity"
_BATCH, _CHUNK = 32, 512  # images at a time, and images whose sums are written together
_LEAST = 4  # images that the unbiased estimate needs
_OVER = {
    Grouping.ALL: "over all images, tokens and features",
    Grouping.TOKEN: "token by token over images and features, mean over tokens",
    Grouping.FEATURE: "feature by feature over images and tokens, mean over features",
}
Layered = tuple[Model, Sequence[Layer]]
Maps = Mapping[str, SimilarityMap]


class SimilarityMeasure(enum.Enum):
    """How two representations are compared: `auto` is Pearson where all have one shape, else CKA."""

    AUTO = "auto"
    PEARSON = "pearson"
    CKA = "cka"


@dataclass(frozen=True, slots=True)
class View:
    """The part of some layers' outputs that is compared.

    Args:
        name: What figures call it.
        first: For the number of every layer, the first token that counts; None for an output as a whole.
        last: The token before which it ends; None for all the rest.
    """

    name: str
    first: Mapping[int, int | None]
    last: int | None = None

    def of(self, place: int, output: Tensor) -> Tensor:
        """The part of the output of the layer with this number."""
        first = self.first[place]
        return output if first is None else output[:, first : self.last]


@dataclass(frozen=True, slots=True)
class Correlation:
    """Absolute correlations between the outputs of all pairs of layers; linear CKA where their shapes differ.

    Args:
        measure: Pearson's correlation or CKA.
        per: What each coefficient is of (Pearson): all values, a token or a feature; maps show the mean over them.
        ln: Whether every token is normalized first (Pearson).
        biased: Whether CKA is estimated with its bias.
        group: Images of a group on which CKA is estimated.
        other: A second model, whose layers are compared with the first's by CKA.
    """

    title: ClassVar[str] = "Similarity of representations"
    about: ClassVar[str] = (
        "similarity of representations between layers: Pearson for all tokens and the class token, or CKA"
    )
    needs_threat: ClassVar[bool] = False

    measure: SimilarityMeasure = SimilarityMeasure.AUTO
    per: Grouping = Grouping.ALL
    ln: bool = False
    biased: bool = False
    group: Annotated[int, Range(ge=2 * _LEAST, hint="It counts images.")] = 64
    other: str | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.other is not None and self.measure is SimilarityMeasure.PEARSON:
            raise UsageError(
                "two models have representations of different shapes, which Pearson's correlation cannot compare. "
                "Leave measure out, or write measure=cka."
            )

    def check(self, model: nn.Module) -> None:
        loaded, layers = layers_of(model)
        has_tokens, pearson = any(layer.prefix is not None for layer in layers), self._by_pearson(layers)
        if pearson and not has_tokens:
            raise UsageError(
                f"the layers of {type(loaded.net).__name__} have different shapes, which Pearson's correlation cannot "
                "compare. Leave measure out, or write measure=cka."
            )
        if pearson and self.biased:
            raise UsageError("Correlation.biased is about CKA, and this model is measured by Pearson. Leave it out.")
        if not pearson and (self.per is not Grouping.ALL or self.ln):
            raise UsageError("Correlation.per and .ln are about Pearson, and CKA is measured here. Leave them out.")
        if self.other is not None:
            layers_of(load(self.other))

    def run(self, ctx: Context) -> None:
        if len(ctx.images) < _LEAST:
            raise UsageError(
                f"this study needs at least {_LEAST} images, got {len(ctx.images)}. Choose a longer slice."
            )
        models = self._models(ctx)
        if self._by_pearson(models[0][1]):
            self._map_moments(ctx, models, _token_views(models[0][1]))
        else:
            self._map_dependence(ctx, models, _whole_views(models))

    def summarize(self, ctx: Context) -> StudyRecord:
        models, rows = self._models(ctx), ctx.table(_TABLE)
        layers, n = [layer for _, each in models for layer in each], len(ctx.images)
        if self._by_pearson(models[0][1]):
            measure, views = SimilarityMeasure.PEARSON, _token_views(layers)
            moments = {view.name: [Moments.read(row) for row in rows[view.name]] for view in views}
            values = [functools.reduce(Moments.merge, each).correlation() for each in moments.values()]
        else:
            measure, views = SimilarityMeasure.CKA, _whole_views(models)
            values = [cka(torch.tensor(rows[view.name], dtype=torch.float64).sum(0)) for view in views]
        maps = _maps(views, values, layers, len(models[0][1]))
        pearson = measure is SimilarityMeasure.PEARSON
        exhibits = self._pearson_exhibits(maps["own"], n) if pearson else self._cka_exhibits(maps, models, n)
        numbers = {
            "n": n,
            "measure": measure.value,
            "maps": {whose: {name: one.numbers() for name, one in each.items()} for whose, each in maps.items()},
            "absent": _absent(maps),
        }
        summary = f"On {n} images, {main_finding(maps)}. {_absent(maps)}".strip()
        return StudyRecord("correlation", self.title, summary, exhibits, numbers)

    def _by_pearson(self, layers: Sequence[Layer]) -> bool:
        has_tokens, auto = any(layer.prefix is not None for layer in layers), self.measure is SimilarityMeasure.AUTO
        return self.measure is SimilarityMeasure.PEARSON or (auto and has_tokens and self.other is None)

    def _models(self, ctx: Context) -> list[Layered]:
        """The model and, if there is one, the other: with the same weights as when the study began."""
        if self.other is None:
            return [layers_of(ctx.model)]
        other = load(self.other)
        weights = weights_sha256(other.net.state_dict())
        if ctx.compute_once("other", lambda: {"weights_sha256": weights})["weights_sha256"] != weights:
            raise UsageError(f"{self.other} has other weights than when this study began. Choose a new run folder.")
        return [layers_of(ctx.model), layers_of(other.to(ctx.device))]

    def _map_moments(self, ctx: Context, models: Sequence[Layered], views: Sequence[View]) -> None:
        """A row per chunk of images: the moments of every view."""

        def moments(index: Tensor) -> list[Moments]:
            outputs = _outputs(ctx, models, index, lambda place, out: out)
            each = ([view.of(place, outputs[place]) for place in view.first] for view in views)
            return [Moments.of(tensors, self.per, normed=self.ln) for tensors in each]

        def chunk(index: Tensor) -> dict[str, object]:
            batches = [one for _, one in in_batches(index, ctx.engine.batch_size or _BATCH, moments)]
            joined = (functools.reduce(Moments.merge, each) for each in zip(*batches, strict=True))
            return {view.name: one.row() for view, one in zip(views, joined, strict=True)}

        map_chunks(ctx, _TABLE, chunk, size=_CHUNK)

    def _map_dependence(self, ctx: Context, models: Sequence[Layered], views: Sequence[View]) -> None:
        """A row per group of images: the statistic H of all pairs of layers, weighted by the size of the group."""
        groups = groups_of(len(ctx.images), self.group)

        def chunk(number: Tensor) -> dict[str, object]:
            index = groups[int(number)]
            grams = _grams(ctx, models, views, index).items()
            return {
                name: (len(index) * dependence(grams_Lnn, biased=self.biased)).tolist() for name, grams_Lnn in grams
            }

        map_chunks(ctx, _TABLE, chunk, size=1, index=torch.arange(len(groups)))

    def _pearson_exhibits(self, maps: Maps, n: int) -> list[Exhibit]:
        normed = "; every token was given mean 0 and variance 1 first" if self.ln else ""
        caption = (
            f"The absolute value of Pearson's correlation between what two blocks give, {_OVER[self.per]}; {n} "
            f"images{normed}. A bright square is a group of blocks that change little. {_absent({'own': maps})}"
        )
        label = "|correlation|"
        return [*heat_maps("Correlation of representations", caption.strip(), label, maps), *steps(maps, label, n)]

    def _cka_exhibits(self, maps: Mapping[str, Maps], models: Sequence[Layered], n: int) -> list[Exhibit]:
        """The comparison of two models first, then each on its own."""
        kind, chance = ("biased", "above 0, near 1 if wide") if self.biased else ("debiased", "around 0")
        caption = (
            f"Linear CKA, {kind}, between what two layers give, flattened image by image; {n} images in "
            f"{len(groups_of(n, self.group))} groups of at most {self.group}. Unrelated layers are {chance}. "
        )
        name, second = _name(models[0][0]), _name(models[-1][0])
        whose = f"{second}, the other"
        if self.other is not None and name == second:  # two of one architecture need different names
            name, second = "the studied model", f"the other ({self.other.rpartition('/')[2]})"
            whose = second
        alone = heat_maps(f"CKA of {name}", (caption + _absent(maps)).strip(), "CKA", maps["own"])
        if self.other is None:
            return [*alone, *steps(maps["own"], "CKA", n)]
        between = f"Rows are layers of {name}, columns of {second}{_resized(models)}. {_absent(maps)}"
        return [
            *heat_maps(f"CKA of {name} and {second}", (caption + between).strip(), "CKA", maps["between"]),
            *alone,
            *heat_maps(f"CKA of {whose}", (caption + _absent(maps)).strip(), "CKA", maps["other"]),
        ]


def groups_of(n: int, size: int) -> list[Tensor]:
    """The indices of n images in groups of nearly one size, at most `size`."""
    return [*torch.arange(n).tensor_split(math.ceil(n / size))]


def _token_views(layers: Sequence[Layer]) -> list[View]:
    """All tokens of the layers that have one for every patch, and the class token of those that have one."""
    prefixes = {place: layer.prefix for place, layer in enumerate(layers) if layer.prefix is not None}
    # where the class token joins late, only the patches are there in all layers
    same = len(set(prefixes.values())) == 1
    return [View("all", {place: 0 if same else prefix for place, prefix in prefixes.items()}), *_class_view(layers)]


def _whole_views(models: Sequence[Layered]) -> list[View]:
    """The whole outputs of the layers of all models, and the class tokens if every model has one."""
    layers = [layer for _, each in models for layer in each]
    classed = all(any(layer.class_token for layer in each) for _, each in models)
    return [View("whole", dict.fromkeys(range(len(layers)))), *(_class_view(layers) if classed else [])]


def _class_view(layers: Sequence[Layer]) -> list[View]:
    classed = [place for place, layer in enumerate(layers) if layer.class_token]
    return [View("class", dict.fromkeys(classed, 0), 1)] if classed else []


def _grams(ctx: Context, models: Sequence[Layered], views: Sequence[View], index: Tensor) -> dict[str, Tensor]:
    """[L, n, n] of every view. Of a group that fits into memory whole, no features are kept."""

    def work(some: Tensor) -> dict[int, dict[str, Tensor]]:
        def read(place: int, out: Tensor) -> dict[str, Tensor]:
            parts = {view.name: view.of(place, out) for view in views if place in view.first}
            whole = len(some) == len(index)
            return {name: gram(part) if whole else part.flatten(1) for name, part in parts.items()}

        return _outputs(ctx, models, some, read)

    batches = [made for _, made in in_batches(index, ctx.engine.batch_size or len(index), work)]

    def joined(place: int, name: str) -> Tensor:
        parts = [made[place][name] for made in batches]
        return parts[0] if len(parts) == 1 else gram(torch.cat(parts))

    return {view.name: torch.stack([joined(place, view.name) for place in view.first]) for view in views}


def _outputs(
    ctx: Context, models: Sequence[Layered], index: Tensor, read: Callable[[int, Tensor], Read]
) -> dict[int, Read]:
    """What `read` makes of every layer's output, by its number through all models."""
    x, results = ctx.images.images(index), dict[int, Read]()
    for model, layers in models:
        device, before, modules = device_of(model), len(results), [layer.module for layer in layers]
        numbered = functools.partial(lambda before, place, out: read(before + place, out), before)
        with isolated(model, ctx.seed, device), torch.no_grad(), outputs_of(modules, numbered) as outputs:
            model((x if before == 0 else _fitted(x, model)).to(device))
        results |= {before + place: one for place, one in outputs.items()}
    return results


def _fitted(x: Tensor, model: Model) -> Tensor:
    """Images at the size a model takes; only the second model may take another than the data has."""
    size = model.spec.image_size if model.spec is not None else x.shape[-1]
    if x.shape[-2:] == (size, size):
        return x
    return nn.functional.interpolate(x, (size, size), mode="bilinear", antialias=True).clamp(0, 1)


def _resized(models: Sequence[Layered]) -> str:
    first, second = (model.spec.image_size if model.spec is not None else None for model, _ in models)
    return f", which saw the same images resized to {second} x {second}" if second not in (None, first) else ""


def _name(model: Model) -> str:
    return model.spec.name.rpartition(":")[2] if model.spec is not None else type(model.net).__name__


def _maps(views: Sequence[View], values: Sequence[Tensor], layers: Sequence[Layer], own: int) -> dict[str, Maps]:
    """The maps of every view: `own` of the model's layers, and of a second model `between` both and `other`."""
    maps: dict[str, dict[str, SimilarityMap]] = {}
    for view, values_LL in zip(views, values, strict=True):
        names, cut = [layers[place].name for place in view.first], sum(place < own for place in view.first)
        every, first, second = SimilarityMap(names, names, values_LL), slice(None, cut), slice(cut, None)
        parts = {"own": (first, first)}
        if own < len(layers):
            parts = {"between": (first, second), **parts, "other": (second, second)}
        for whose, (rows, columns) in parts.items():
            maps.setdefault(whose, {})[view.name] = every.part(rows, columns)
    return dict(maps)


def _absent(maps: Mapping[str, Maps]) -> str:
    if "class" in maps["own"]:
        return ""
    if len(maps) == 1:
        return "The model has no class token, so there is no map of it."
    return "There is no map of class tokens: not both models have one."
