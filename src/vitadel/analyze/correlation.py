"""How alike are the representations of an image after every layer of a model?

Bhojanapalli et al. (2021, arXiv:2103.14586) correlate what each block of a ViT gives with what each other gives: over
all tokens, and for the class token alone. Layers of different shapes, as of convolutional networks, Swin, or two
different models, are compared by linear CKA. Both measures: `vitadel.analyze.similarity`.

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

from vitadel.analyze.layers import Seen, layers_of, watched
from vitadel.analyze.similarity import Moments, Per, cka, dependence, gram, packed, unpacked
from vitadel.analyze.similarity_figures import Map, heats, steps, told
from vitadel.analyze.study import Bench, Parts
from vitadel.attacks import isolated
from vitadel.core.device import device_of
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range, check_ranges
from vitadel.core.oom import in_batches
from vitadel.core.progress import Notify
from vitadel.evaluate.images import Images
from vitadel.models import Layer, Model, fingerprint, load
from vitadel.runs import describe
from vitadel.runs.exhibits import Exhibit, findings

_ROWS = 32
_PORTION = 512  # images whose sums are written down together
_LEAST = 4  # images that the unbiased estimate needs
_OVER = {
    Per.ALL: "over all images, tokens and features",
    Per.TOKEN: "token by token over images and features, mean over tokens",
    Per.FEATURE: "feature by feature over images and tokens, mean over features",
}


class Measure(enum.Enum):
    """How two representations are compared: `auto` is Pearson where all have one shape, else CKA."""

    AUTO = "auto"
    PEARSON = "pearson"
    CKA = "cka"


@dataclass(frozen=True, slots=True)
class View:
    """What of some layers is compared: from token `first` on, up to `last`; None of both is all there is."""

    name: str
    places: tuple[int, ...]
    first: tuple[int | None, ...]
    last: int | None = None

    def of(self, outputs: Mapping[int, Tensor]) -> list[Tensor]:
        """One tensor for each of the view's layers."""
        return [self.cut(at, outputs[place]) for at, place in enumerate(self.places)]

    def cut(self, at: int, output: Tensor) -> Tensor:
        first = self.first[at]
        return output if first is None else output[:, first : self.last]


@dataclass(frozen=True, slots=True)
class Correlation:
    """Absolute correlations between what all pairs of layers give; linear CKA where their shapes differ.

    `per` gives every token or every feature a coefficient of its own and shows means over them; `ln` normalizes every
    token first. CKA is estimated on groups of `group` images, without bias unless `biased`. `other` names a second
    model, whose layers are compared with the first's by CKA.
    """

    about: ClassVar[str] = "how alike are representations from layer to layer? Pearson for all tokens and CLS, or CKA"
    needs_threat: ClassVar[bool] = False

    measure: Measure = Measure.AUTO
    per: Per = Per.ALL
    ln: bool = False
    biased: bool = False
    group: Annotated[int, Range(ge=2 * _LEAST, hint="It counts images.")] = 64
    other: str | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.other is not None and self.measure is Measure.PEARSON:
            raise UsageError(
                "two models have representations of different shapes, which Pearson's correlation cannot compare. "
                "Leave measure out, or write measure=cka."
            )

    def refuse(self, model: nn.Module) -> None:
        found, layers = layers_of(model)
        self._measured(found, layers)
        if self.other is not None:
            layers_of(load(self.other))

    def carry_out(self, bench: Bench) -> dict[str, object]:
        """The maps of all views; `threat` is not looked at."""
        model, images, parts = bench.model, bench.images, bench.parts
        if len(images) < _LEAST:
            raise UsageError(f"this study wants at least {_LEAST} images, got {len(images)}. Choose a longer slice.")
        found, layers = layers_of(model)
        measure = self._measured(found, layers)
        models = [(found, layers), *self._second(parts, device_of(found))]
        work = _Work(models, images, parts, bench.seed, bench.batch, bench.notify)
        if measure is Measure.PEARSON:
            views = _token_views(layers)
            values = work.pearson(views, self)
            atlas = {"own": _maps(views, values, layers)}
            shown = self._pearson_exhibits(atlas["own"], len(images))
        else:
            views = _whole_views([layers for _, layers in models])
            values = work.cka(views, self)
            atlas = _atlas(views, values, [layers for _, layers in models])
            shown = self._cka_exhibits(atlas, [model for model, _ in models], len(images))
        summary = " ".join(filter(None, [f"On {len(images)} images, {told(atlas)}.", _absent(atlas)]))
        numbers = {
            "n": len(images),
            "settings": describe(self),
            "measure": measure.value,
            "maps": {whose: {name: one.told() for name, one in maps.items()} for whose, maps in atlas.items()},
            "absent": _absent(atlas),
            "seconds": parts.seconds,
        }
        result = findings("correlation", "Likeness of representations", summary, shown, numbers)
        parts.close(result)
        return result

    def _pearson_exhibits(self, maps: Mapping[str, Map], n: int) -> list[Exhibit]:
        normed = "; every token was given mean 0 and variance 1 first" if self.ln else ""
        how = (
            f"The absolute value of Pearson's correlation between what two blocks give, {_OVER[self.per]}; {n} "
            f"images{normed}. A bright square is a group of blocks that change little. {_absent({'own': maps})}"
        )
        label = "|correlation|"
        return [*heats("Correlation of representations", how.strip(), label, maps), *steps(maps, label, n)]

    def _cka_exhibits(self, atlas: Mapping[str, Mapping[str, Map]], models: Sequence[Model], n: int) -> list[Exhibit]:
        """Of two models the one against the other first, then each on its own."""
        kind, chance = ("biased", "above 0, near 1 if wide") if self.biased else ("debiased", "around 0")
        how = (
            f"Linear CKA, {kind}, between what two layers give, flattened image by image; {n} images in "
            f"{len(groups_of(n, self.group))} groups of at most {self.group}. Unrelated layers are {chance}. "
        )
        name, second = _name(models[0]), _name(models[-1])
        whose = f"{second}, the other"
        if self.other is not None and name == second:  # two of one architecture, which must still be told apart
            name, second = "the studied model", f"the other ({self.other.rpartition('/')[2]})"
            whose = second
        alone = [*heats(f"CKA of {name}", (how + _absent(atlas)).strip(), "CKA", atlas["own"])]
        if self.other is None:
            return [*alone, *steps(atlas["own"], "CKA", n)]
        between = f"Rows are layers of {name}, columns of {second}{_resized(models)}. {_absent(atlas)}"
        return [
            *heats(f"CKA of {name} and {second}", (how + between).strip(), "CKA", atlas["between"]),
            *alone,
            *heats(f"CKA of {whose}", (how + _absent(atlas)).strip(), "CKA", atlas["other"]),
        ]

    def _measured(self, model: Model, layers: Sequence[Layer]) -> Measure:
        """The measure that is meant; refused are settings that have no say in it."""
        one_shape = any(layer.prefix is not None for layer in layers)
        pearson = self.measure is Measure.PEARSON or (self.measure is Measure.AUTO and one_shape and self.other is None)
        if pearson and not one_shape:
            raise UsageError(
                f"the layers of {type(model.net).__name__} have different shapes, which Pearson's correlation cannot "
                "compare. Leave measure out, or write measure=cka."
            )
        if pearson and self.biased:
            raise UsageError("Correlation.biased is about CKA, and this model is measured by Pearson. Leave it out.")
        if not pearson and (self.per is not Per.ALL or self.ln):
            raise UsageError("Correlation.per and .ln are about Pearson, and CKA is measured here. Leave them out.")
        return Measure.PEARSON if pearson else Measure.CKA

    def _second(self, parts: Parts, device: torch.device) -> list[tuple[Model, Sequence[Layer]]]:
        """The other model, if there is one; the same weights as when the study began."""
        if self.other is None:
            return []
        loaded = load(self.other)
        weights = fingerprint(loaded.net.state_dict())
        if parts.once("other", lambda: {"weights_sha256": weights})["weights_sha256"] != weights:
            raise UsageError(f"{self.other} has other weights than when this study began. Choose a new run folder.")
        return [layers_of(loaded.to(device))]


def _token_views(layers: Sequence[Layer]) -> list[View]:
    """All tokens of the layers that have one for every patch, and the class token of those that have one."""
    patched = [place for place, layer in enumerate(layers) if layer.prefix is not None]
    prefixes = [layers[place].prefix or 0 for place in patched]
    # where the class token joins late, only the patches are there in all layers
    first = [0 if len(set(prefixes)) == 1 else prefix for prefix in prefixes]
    views = [View("all", tuple(patched), tuple(first))]
    classed = tuple(place for place, layer in enumerate(layers) if layer.class_token)
    return [*views, View("class", classed, (0,) * len(classed), 1)] if classed else views


def _whole_views(models: Sequence[Sequence[Layer]]) -> list[View]:
    """All that the layers of all models give, and the class tokens if every model has one."""
    layers = [layer for one in models for layer in one]
    views = [View("whole", tuple(range(len(layers))), (None,) * len(layers))]
    classed = tuple(place for place, layer in enumerate(layers) if layer.class_token)
    if all(any(layer.class_token for layer in one) for one in models):
        views.append(View("class", classed, (0,) * len(classed), 1))
    return views


@dataclass(frozen=True, slots=True)
class _Work:
    """Models with their layers, numbered through, on some images."""

    models: Sequence[tuple[Model, Sequence[Layer]]]
    images: Images
    parts: Parts
    seed: int
    batch: int | None
    notify: Notify

    def pearson(self, views: Sequence[View], settings: Correlation) -> list[Tensor]:
        """[L, L] of every view."""

        def look(rows: Tensor) -> list[Moments]:
            seen = self._seen(rows, lambda place, out: out)
            return [Moments.of(view.of(seen), settings.per, normed=settings.ln) for view in views]

        def portion(rows: Tensor) -> dict[str, object]:
            totals: list[Moments] = []
            for done, found in in_batches(rows, self.batch or _ROWS, look):
                totals = [a.with_(b) for a, b in zip(totals, found, strict=True)] if totals else found
                self.notify("correlation", int(done[-1]) + 1, len(self.images), {})
            return {"views": [one.told() for one in totals]}

        read = [self._read("pearson", rows, portion) for rows in torch.arange(len(self.images)).split(_PORTION)]
        each = zip(*([Moments.read(one) for one in views] for views in read), strict=True)
        return [functools.reduce(Moments.with_, of_view).correlation() for of_view in each]

    def cka(self, views: Sequence[View], settings: Correlation) -> list[Tensor]:
        """[L, L] of every view, over the layers of all models."""
        groups = groups_of(len(self.images), settings.group)
        together = max(1, _PORTION // settings.group)

        def portion(rows: Tensor) -> dict[str, object]:
            totals = [torch.zeros(len(view.places), len(view.places), dtype=torch.float64) for view in views]
            for group in (one for one in groups if bool(torch.isin(one[0], rows))):
                for total, grams_Lnn in zip(totals, self._grams(group, views), strict=True):
                    total += len(group) * dependence(grams_Lnn, biased=settings.biased)
                self.notify("correlation", int(group[-1]) + 1, len(self.images), {})
            return {"views": [packed(total) for total in totals]}

        portions = [torch.cat(groups[at : at + together]) for at in range(0, len(groups), together)]
        read = [self._read("cka", rows, portion) for rows in portions]
        each = zip(*([unpacked(one) for one in views] for views in read), strict=True)
        return [cka(torch.stack(of_view).sum(0)) for of_view in each]

    def _read(self, name: str, rows: Tensor, make: Callable[[Tensor], Mapping[str, object]]) -> list[dict[str, object]]:
        told = self.parts.once(f"{name}-{int(rows[0]):09d}", lambda: make(rows))["views"]
        assert isinstance(told, list)
        return told

    def _grams(self, rows: Tensor, views: Sequence[View]) -> list[Tensor]:
        """[L, n, n] of every view. A group that fits into memory whole leaves no features behind."""
        at = [{place: i for i, place in enumerate(view.places)} for view in views]

        def look(some: Tensor) -> dict[int, list[Tensor]]:
            def take(place: int, out: Tensor) -> list[Tensor]:
                shown = [view.cut(where[place], out) for view, where in zip(views, at, strict=True) if place in where]
                return [gram(one) for one in shown] if len(some) == len(rows) else [one.flatten(1) for one in shown]

            return self._seen(some, take)

        compile_units = [found for _, found in in_batches(rows, self.batch or len(rows), look)]
        whole = len(compile_units) == 1
        grams = {
            place: compile_units[0][place]
            if whole
            else [gram(torch.cat(one)) for one in zip(*(piece[place] for piece in compile_units), strict=True)]
            for place in compile_units[0]
        }
        # a layer has its Gram matrices in the order of the views it is in
        turns = {place: iter(found) for place, found in grams.items()}
        return [torch.stack([next(turns[place]) for place in view.places]) for view in views]

    def _seen(self, rows: Tensor, look: Callable[[int, Tensor], Seen]) -> dict[int, Seen]:
        """What `look` makes of every layer's output, by its number through all models."""
        x = self.images.images(rows)
        seen: dict[int, Seen] = {}
        for model, layers in self.models:
            device, before = device_of(model), len(seen)

            def told(place: int, out: Tensor, before: int = before) -> Seen:
                return look(before + place, out)

            with isolated(model, self.seed, device), torch.no_grad(), watched(layers, told) as found:
                model((x if before == 0 else _fitted(x, model)).to(device))
            seen.update({before + place: one for place, one in found.items()})
        return seen


def groups_of(n: int, size: int) -> list[Tensor]:
    """The numbers of n images in groups of nearly one size, at most `size`."""
    return [*torch.arange(n).tensor_split(math.ceil(n / size))]


def _fitted(x: Tensor, model: Model) -> Tensor:
    """Images at the size a model takes; only a second model may want another than the data has."""
    size = model.spec.image_size if model.spec is not None else x.shape[-1]
    if x.shape[-2:] == (size, size):
        return x
    return nn.functional.interpolate(x, (size, size), mode="bilinear", antialias=True).clamp(0, 1)


def _resized(models: Sequence[Model]) -> str:
    first, second = (model.spec.image_size if model.spec is not None else None for model in models)
    return f", which saw the same images resized to {second} x {second}" if second not in (None, first) else ""


def _name(model: Model) -> str:
    return model.spec.name.rpartition(":")[2] if model.spec is not None else type(model.net).__name__


def _maps(views: Sequence[View], values: Sequence[Tensor], layers: Sequence[Layer]) -> dict[str, Map]:
    names = ([layers[place].name for place in view.places] for view in views)
    return {view.name: Map(own, own, value_LL) for view, own, value_LL in zip(views, names, values, strict=True)}


def _atlas(
    views: Sequence[View], values: Sequence[Tensor], models: Sequence[Sequence[Layer]]
) -> dict[str, dict[str, Map]]:
    """The maps of all layers, cut into those of each model and those between two."""
    every = _maps(views, values, [layer for layers in models for layer in layers])
    if len(models) == 1:
        return {"own": every}
    cuts = {view.name: sum(place < len(models[0]) for place in view.places) for view in views}
    atlas: dict[str, dict[str, Map]] = {"between": {}, "own": {}, "other": {}}
    for name, one in every.items():
        first, second = slice(None, cuts[name]), slice(cuts[name], None)
        atlas["between"][name] = one.part(first, second)
        atlas["own"][name] = one.part(first, first)
        atlas["other"][name] = one.part(second, second)
    return atlas


def _absent(atlas: Mapping[str, Mapping[str, Map]]) -> str:
    if "class" in atlas["own"]:
        return ""
    if len(atlas) == 1:
        return "The model has no class token, so there is no map of it."
    return "There is no map of class tokens: not both models have one."
