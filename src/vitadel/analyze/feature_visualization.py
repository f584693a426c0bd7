"""Feature visualization by a model's gradients: targeted PGD from noise at a large radius.

Two targets: a class (Debenedetti 2022, section 4.3.2), or one coordinate of the classifier's input, the direct
feature visualization of Engstrom et al. (2019, arXiv:1906.00945). Robust models draw shapes, others noise.

Debenedetti's radius of 15 is one of Linf on pixels in [0, 1]: only the box constrains, and steps have 1.5 * 15 / 100 =
0.225. The text starts from uniform noise in [0, 1]; the code adds uniform noise in [-15, 15] to that and clips, so that
nearly all values are 0 or 1. Both are starts here: `text` and `code`.

Shape letters: B pictures, K classes, D coordinates.
"""

import enum
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitadel.analyze import spectrum
from vitadel.analyze.attacked_images import StepSize, finite_mean_interval
from vitadel.analyze.base import map_chunks
from vitadel.attacks import PGD
from vitadel.attacks.isolation import isolated
from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.core.numeric import Count, CountOrZero, Positive, Steps, check_ranges
from vitadel.core.oom import in_batches
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.evaluate.context import Context
from vitadel.goals import Goal, Targeted
from vitadel.models import Model
from vitadel.runs.exhibits import Exhibit, Picture, Pictures, Table
from vitadel.runs.schema import StudyRecord
from vitadel.runs.typed_json import tensor_from_json, tensor_to_json
from vitadel.threats import THREATS, Linf, Threat

_TABLE = "pictures"
_VALUES = 1 << 21  # pixel values searched at once by default
_COLUMNS = ("before", "after", "success", "fine")


class Start(enum.Enum):
    """Where the search starts: noise as in the paper's text or as in its code, or images of the data."""

    CODE = "code"
    TEXT = "text"
    IMAGES = "images"


_STARTS = {Start.CODE: "noise, code", Start.TEXT: "noise, text"}
_PURPOSE = {Start.CODE: 1, Start.TEXT: 2}


@dataclass(frozen=True, slots=True)
class FeatureVisualization:
    """Pictures that PGD draws toward classes, or toward coordinates of the classifier's input.

    Args:
        classes: The targets; () draws `count` of them at random.
        count: Random classes.
        coordinates: Targets instead of classes.
        starts: Where searches start; each is tried with every target.
        images: Images that the start `images` takes.
        norm: The norm of the radius: linf, l2 or l1.
        eps: The radius; from 1 on one of linf excludes nothing that the box does not.
        steps: Steps of PGD.
        step_size: Its step size, 1.5 eps / steps if not given.
    """

    title: ClassVar[str] = "Feature visualization"
    about: ClassVar[str] = "feature visualization: targeted PGD from noise toward classes or single features"
    needs_threat: ClassVar[bool] = False

    classes: tuple[CountOrZero, ...] = ()
    count: Count = 8
    coordinates: tuple[CountOrZero, ...] = ()
    starts: tuple[Start, ...] = (Start.CODE, Start.TEXT)
    images: Count = 2
    norm: str = Linf.name
    eps: Positive = 15.0
    steps: Steps = 100
    step_size: StepSize | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.norm not in THREATS:
            raise unknown_name_error("norm", self.norm, THREATS)
        if not self.starts or len(set(self.starts)) < len(self.starts):
            starts = [start.value for start in self.starts]
            raise UsageError(f"FeatureVisualization.starts needs each start once, got {starts}. Name each once.")
        if self.classes and self.coordinates:
            raise UsageError(
                "FeatureVisualization goes toward classes or toward coordinates, got both. Leave one of them out."
            )

    def check(self, model: nn.Module) -> None:
        if self.coordinates:
            _with_classifier(model)
        if isinstance(model, Model) and model.spec is not None:
            _check_targets(self.classes, model.spec.num_classes, "class", "classes")

    def run(self, ctx: Context) -> None:
        model = self._searched(ctx)
        targets, starts = self._targets(ctx, model), list(self._starts(ctx).values())
        map_chunks(
            ctx,
            _TABLE,
            lambda number: self._drawn(ctx, model, starts[int(number)], targets),
            size=1,
            index=torch.arange(len(starts)),
        )

    def summarize(self, ctx: Context) -> StudyRecord:
        table, targets = ctx.table(_TABLE), self._targets(ctx, self._searched(ctx))
        drawn = {name: {key: table[key][row] for key in table.columns} for row, name in enumerate(self._starts(ctx))}
        fine = {name: finite_mean_interval(one["fine"]) for name, one in drawn.items()}
        numbers = {
            "targets": targets,
            "rows": {name: {key: one[key] for key in _COLUMNS} for name, one in drawn.items()},
            "fine_share": fine,
        }
        exhibits: list[Exhibit] = [self._pictures(drawn, targets), self._table(drawn, targets)]
        return StudyRecord("feature-visualization", self.title, self._summary(drawn, fine), exhibits, numbers)

    @property
    def _what(self) -> str:
        return "coordinate" if self.coordinates else "class"

    @property
    def _value(self) -> str:
        return "value" if self.coordinates else "probability"

    def _searched(self, ctx: Context) -> nn.Module:
        """The model, or the part of it before the classifier."""
        return _Penultimate(_with_classifier(ctx.model)) if self.coordinates else ctx.model

    def _targets(self, ctx: Context, model: nn.Module) -> list[int]:
        with isolated(model, ctx.seed, ctx.device), torch.no_grad():
            outputs = int(model(ctx.batch([0]).x).shape[1])
        if self.coordinates:
            _check_targets(self.coordinates, outputs, "coordinate", "coordinates before its classifier")
        _check_targets(self.classes, outputs, "class", "classes")
        rng = torch.Generator().manual_seed(fold_seed(ctx.seed, *b"targets"))
        drawn: list[int] = torch.randperm(outputs, generator=rng)[: self.count].tolist()
        return list(self.coordinates or self.classes) or drawn

    def _starts(self, ctx: Context) -> dict[str, Start | int]:
        """The rows of the pictures by name: a kind of noise, or the index of an image."""
        starts: dict[str, Start | int] = {}
        for start in self.starts:
            if start is Start.IMAGES:
                starts |= {f"image {index}": index for index in range(min(self.images, len(ctx.images)))}
            else:
                starts[_STARTS[start]] = start
        return starts

    def _drawn(self, ctx: Context, model: nn.Module, start: Start | int, targets: Sequence[int]) -> dict[str, object]:
        """One row of pictures: from one start toward every target."""
        target_B, threat, shape = torch.tensor(targets), self._threat(), ctx.batch([0]).x.shape[1:]

        def search(index: Tensor) -> tuple[Tensor, ...]:
            purpose = 0 if isinstance(start, int) else _PURPOSE[start]
            rng = RandomStreams.of(fold_seed(ctx.seed, *b"accumulate"), index).fold(purpose)
            x0 = self._start(ctx, start, rng, shape)
            goal = self._goal(target_B[index].to(ctx.device))
            # within a radius, the code's noise is a random point; where only the box constrains, it is in x0 already
            attack = PGD(self.steps, self._step(), random_start=start is Start.CODE and threat is not None)
            result = attack(model, x0.to(ctx.device), goal, threat or Linf(1.0), seed=ctx.seed, index_B=index)
            with isolated(model, ctx.seed, ctx.device), torch.no_grad():
                before_B, after_B = (_score(model(x.to(ctx.device)), goal) for x in (x0, result.x_adv))
            return result.x_adv.cpu(), x0, before_B.cpu(), after_B.cpu(), result.success.cpu()

        at_once = ctx.engine.batch_size or max(1, _VALUES // shape.numel())
        batches = [one for _, one in in_batches(torch.arange(len(targets)), at_once, search)]
        x, x0, before_B, after_B, success_B = (torch.cat(list(one)) for one in zip(*batches, strict=True))
        values = (before_B, after_B, success_B, spectrum.fine_share(x - x0))
        pictures = tensor_to_json((x * 255).round().byte())
        return {"pictures": pictures, **{name: one.tolist() for name, one in zip(_COLUMNS, values, strict=True)}}

    def _start(self, ctx: Context, start: Start | int, rng: RandomStreams, shape: torch.Size) -> Tensor:
        """Where the search starts, and what a radius is measured from."""
        if isinstance(start, int):
            return ctx.images.images(torch.tensor([start])).cpu().expand(len(rng.key_B), *shape).contiguous()
        x0 = rng.uniform(*shape)
        if start is Start.TEXT or self._threat() is not None:
            return x0
        return (x0 + self.eps * (2 * rng.fold(1).uniform(*shape) - 1)).clamp(0, 1)

    def _threat(self) -> Threat | None:
        """The threat of the radius; None if only the box constrains."""
        kind = THREATS[self.norm]
        return kind(self.eps) if self.eps < kind.largest_eps else None

    def _step(self) -> float:
        return self.step_size or 1.5 * self.eps / self.steps

    def _goal(self, target_B: Tensor) -> Goal:
        return Coordinate(target_B) if self.coordinates else Targeted(target_B)

    def _pictures(self, drawn: Mapping[str, Mapping[str, Any]], targets: Sequence[int]) -> Pictures:
        cells = []
        for one in drawn.values():
            images, sign = tensor_from_json(one["pictures"]).float() / 255, "value" if self.coordinates else "p"
            notes = (f"{sign} {value:.2f}" for value in one["after"])
            cells.append([Picture.of(image.numpy(), note=note) for image, note in zip(images, notes, strict=True)])
        end = "coordinate at the end" if self.coordinates else "probability of the target at the end"
        toward = "coordinate on top of what enters the classifier" if self.coordinates else "class on top"
        return Pictures(
            "Drawn by the gradients",
            f"PGD with {self.steps} steps of {self._step():.3g} ({self.norm}, eps {self.eps:g}) toward "
            f"the {toward}. Rows are starts: 'noise, code' is uniform noise plus uniform noise of the radius, "
            f"clipped, as in the authors' code; 'noise, text' is uniform noise, as the paper says. Below each is the "
            f"{end}.",
            cells,
            rows=list(drawn),
            columns=[f"{self._what} {target}" for target in targets],
        )

    def _table(self, drawn: Mapping[str, Mapping[str, Any]], targets: Sequence[int]) -> Table:
        return Table(
            "Every picture",
            f"The {self._value} of the target before and after, and the share of what was drawn, the picture minus its "
            f"start, beyond a quarter of a cycle per pixel; white noise has {1 - math.pi * spectrum.FINE**2:.2f}.",
            ["start", self._what, f"{self._value} before", f"{self._value} after", "fine share"],
            [
                [name, *values]
                for name, one in drawn.items()
                for values in zip(targets, one["before"], one["after"], one["fine"], strict=True)
            ],
        )

    def _summary(self, drawn: Mapping[str, Mapping[str, Any]], fine: Mapping[str, Mapping[str, float]]) -> str:
        parts = []
        for name, one in drawn.items():
            before, after = (statistics.fmean(one[key]) for key in ("before", "after"))
            parts.append(
                f"from {name} the target's {self._value} goes from {before:.3g} to {after:.3g} on average, with "
                f"{fine[name]['mean']:.0%} of what is drawn beyond a quarter of a cycle per pixel"
            )
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]} (white noise: 80%)."


@dataclass(frozen=True, slots=True)
class Coordinate:
    """One output is maximized; no value of it counts as a success."""

    coordinate_B: Tensor

    def objective(self, z_BD: Tensor) -> Tensor:
        return z_BD.gather(1, self.coordinate_B[:, None]).squeeze(1)

    def success(self, z_BD: Tensor) -> Tensor:
        return torch.zeros_like(self.coordinate_B, dtype=torch.bool)

    def at(self, rows: Tensor) -> "Coordinate":
        return Coordinate(self.coordinate_B[rows])

    @property
    def classes(self) -> Tensor:
        return self.coordinate_B


class _Penultimate(nn.Module):
    """A model that returns its classifier's input."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:
        with self.model.taps.read("head.in") as seen:
            self.model(x)
        return seen["head.in"].flatten(1)


def _with_classifier(model: nn.Module) -> Model:
    if not isinstance(model, Model) or "head.in" not in model.taps.names():
        net = model.net if isinstance(model, Model) else model
        raise UsageError(
            f"coordinates are those of what enters the last linear layer, and {type(net).__name__} does not say which "
            "that is. Load it with vitadel.models.load, or go toward classes."
        )
    return model


def _score(z: Tensor, goal: Goal) -> Tensor:
    """The probability of the class, or the coordinate itself."""
    value_B = z.float().softmax(1) if isinstance(goal, Targeted) else z.float()
    return value_B.gather(1, goal.classes[:, None]).squeeze(1)


def _check_targets(targets: Sequence[int], known: int, what: str, of_what: str) -> None:
    if far := [target for target in targets if not 0 <= target < known]:
        raise UsageError(
            f"there is no {what} {far[0]}: the model has {known} {of_what}, counted from 0. "
            f"Choose from 0 to {known - 1}."
        )
