"""What do a model's gradients draw when nothing holds them back? Targeted PGD from noise at a large radius.

Two targets: a class (Debenedetti 2022, section 4.3.2), or one coordinate of what enters the classifier, the direct
feature visualization of Engstrom et al. (2019, arXiv:1906.00945). Robust models draw shapes, others noise.

Debenedetti's radius of 15 is one of Linf on pixels in [0, 1]: only the box holds, and steps have 1.5 * 15 / 100 =
0.225. The text starts from uniform noise in [0, 1]; the code adds uniform noise in [-15, 15] to that and clips, so that
nearly all values are 0 or 1. Both are starts here: `text` and `code`.

Shape letters: B pictures, K classes, D coordinates.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitadel.analyze import spectrum
from vitadel.analyze.attacked_images import StepSize, check_images, floats, mean_interval, numbers
from vitadel.analyze.json_arrays import packed, unpacked
from vitadel.analyze.study import Bench
from vitadel.attacks import PGD, isolated
from vitadel.core.device import device_of
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, CountOrZero, Positive, check_ranges
from vitadel.core.oom import in_batches
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.evaluate.images import Images
from vitadel.goals import Goal, Targeted
from vitadel.models import Model
from vitadel.runs import describe
from vitadel.runs.exhibits import Cell, Exhibit, Picture, Pictures, Table, findings
from vitadel.threats import L2, Linf, Threat

_VALUES = 1 << 21  # pixel values moved at once, where nobody says otherwise


class Start(enum.Enum):
    """Where the search sets out: noise as in the paper's text or as in its code, or images of the data."""

    CODE = "code"
    TEXT = "text"
    IMAGES = "images"


class Norm(enum.Enum):
    """Of the radius."""

    LINF = "linf"
    L2 = "l2"


_STARTS = {Start.CODE: "noise, code", Start.TEXT: "noise, text"}
_PURPOSE = {Start.CODE: 1, Start.TEXT: 2}


@dataclass(frozen=True, slots=True)
class FeatureVisualization:
    """What PGD draws towards classes, or towards coordinates of the penultimate layer, from noise or from images.

    `classes` are the targets; () draws `count` of them. With `coordinates`, those are the targets instead. Every one of
    `starts` is tried with every target; `images` counts those that the start `images` takes. `eps` and `norm` bound the
    change; from 1 on a Linf radius bounds nothing that the box does not. `step_size` is 1.5 eps / steps if not said.
    """

    about: ClassVar[str] = "what do the gradients draw? Targeted PGD from noise towards classes or single features"
    needs_threat: ClassVar[bool] = False

    classes: tuple[CountOrZero, ...] = ()
    count: Count = 8
    coordinates: tuple[CountOrZero, ...] = ()
    starts: tuple[Start, ...] = (Start.CODE, Start.TEXT)
    images: Count = 2
    norm: Norm = Norm.LINF
    eps: Positive = 15.0
    steps: Count = 100
    step_size: StepSize | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.starts or len(set(self.starts)) < len(self.starts):
            raise UsageError(
                f"FeatureVisualization.starts wants each start once, got {[one.value for one in self.starts]}."
            )
        if self.classes and self.coordinates:
            raise UsageError("Accumulate goes towards classes or towards coordinates, got both. Leave one of them out.")

    def refuse(self, model: nn.Module) -> None:
        if self.coordinates:
            _with_classifier(model)
        if isinstance(model, Model) and model.spec is not None:
            _check_targets(self.classes, model.spec.num_classes, "class", "classes")

    def carry_out(self, bench: Bench) -> dict[str, object]:
        """All pictures, row by row; `threat` is not looked at."""
        images, parts, seed = bench.images, bench.parts, bench.seed
        check_images(images)
        asked: nn.Module = _Penultimate(_with_classifier(bench.model)) if self.coordinates else bench.model
        shape = images.images(torch.arange(1)).shape[1:]
        targets = self._targets(_answers(asked, images, seed), seed)
        rows = self._rows(len(images))
        told = {}
        for number, (name, start) in enumerate(rows.items()):
            told[name] = parts.once(
                f"row-{number}",
                lambda start=start: self._row(asked, images, start, targets, shape, seed, bench.batch),  # type: ignore[misc]
            )
            bench.notify("accumulate", number + 1, len(rows), {})
        what = "coordinate" if self.coordinates else "class"
        exhibits: list[Exhibit] = [self._pictures(told, targets, what), self._table(told, targets, what)]
        fine = {name: mean_interval(floats(_list(one["fine"]))) for name, one in told.items()}
        result = findings(
            "accumulate",
            "What the gradients draw",
            self._summary(told, what, fine),
            exhibits,
            {
                "settings": describe(self),
                "targets": targets,
                "rows": {
                    name: {key: one[key] for key in ("before", "after", "success", "fine")}
                    for name, one in told.items()
                },
                "fine_share": fine,
                "seconds": parts.seconds,
            },
        )
        parts.close(result)
        return result

    def _targets(self, known: int, seed: int) -> list[int]:
        if self.coordinates:
            _check_targets(self.coordinates, known, "coordinate", "coordinates before its classifier")
            return list(self.coordinates)
        if self.classes:
            _check_targets(self.classes, known, "class", "classes")
            return list(self.classes)
        draw = torch.Generator().manual_seed(fold_seed(seed, *b"targets"))
        return torch.randperm(known, generator=draw)[: self.count].tolist()

    def _rows(self, n: int) -> dict[str, Start | int]:
        """The rows of the picture by name: a kind of noise, or the number of an image."""
        rows: dict[str, Start | int] = {}
        for start in self.starts:
            if start is Start.IMAGES:
                rows |= {f"image {row}": row for row in range(min(self.images, n))}
            else:
                rows[_STARTS[start]] = start
        return rows

    def _row(
        self,
        asked: nn.Module,
        images: Images,
        start: Start | int,
        targets: Sequence[int],
        shape: torch.Size,
        seed: int,
        batch: int | None,
    ) -> dict[str, object]:
        device, target_B = device_of(asked), torch.tensor(targets)

        bound = self._bound()

        def draw(at: Tensor) -> tuple[Tensor, ...]:
            rng = RandomStreams.of(fold_seed(seed, *b"accumulate"), at).fold(
                0 if isinstance(start, int) else _PURPOSE[start]
            )
            x0 = self._start(images, start, rng, shape)
            goal = self._goal(target_B[at].to(device))
            # where a radius binds, the code's noise is a random point within it; where none does, it is in x0 already
            attack = PGD(self.steps, self._step(), random_start=start is Start.CODE and bound is not None)
            found = attack(asked, x0.to(device), goal, bound or Linf(1.0), seed=seed, index_B=at)
            with isolated(asked, seed, device), torch.no_grad():
                before_B, after_B = (_score(asked(x.to(device)), goal) for x in (x0, found.x_adv))
            return found.x_adv.cpu(), x0, before_B.cpu(), after_B.cpu(), found.success.cpu()

        at_once = batch or max(1, _VALUES // shape.numel())
        made = [one for _, one in in_batches(torch.arange(len(targets)), at_once, draw)]
        x, x0, before_B, after_B, success_B = (torch.cat(list(one)) for one in zip(*made, strict=True))
        return {
            "pictures": packed((x * 255).round().byte()),
            "before": numbers(before_B),
            "after": numbers(after_B),
            "success": success_B.tolist(),
            "fine": numbers(spectrum.fine_share(x - x0)),
        }

    def _start(self, images: Images, start: Start | int, rng: RandomStreams, shape: torch.Size) -> Tensor:
        """Where the search sets out, and what a radius is measured from."""
        if isinstance(start, int):
            return images.images(torch.tensor([start])).cpu().expand(len(rng.key_B), *shape).contiguous()
        x0 = rng.uniform(*shape)
        if start is Start.TEXT or self._bound() is not None:
            return x0
        return (x0 + self.eps * (2 * rng.fold(1).uniform(*shape) - 1)).clamp(0, 1)

    def _bound(self) -> Threat | None:
        """The threat that a radius makes; None if only the box holds."""
        if self.norm is Norm.L2:
            return L2(self.eps)
        return Linf(self.eps) if self.eps < 1 else None

    def _step(self) -> float:
        return self.step_size or 1.5 * self.eps / self.steps

    def _goal(self, target_B: Tensor) -> Goal:
        return Coordinate(target_B) if self.coordinates else Targeted(target_B)

    def _pictures(self, told: Mapping[str, Mapping[str, object]], targets: Sequence[int], what: str) -> Pictures:
        grid = {name: unpacked(one["pictures"]).float() / 255 for name, one in told.items()}
        sign = "p" if what == "class" else "value"
        notes = {name: [f"{sign} {value:.2f}" for value in floats(_list(one["after"]))] for name, one in told.items()}
        towards = "the class on top" if what == "class" else "the coordinate on top of what enters the classifier"
        return Pictures(
            "Drawn by the gradients",
            f"PGD with {self.steps} steps of {self._step():.3g} ({self.norm.value}, eps {self.eps:g}) towards "
            f"{towards}. Rows are starts: 'noise, code' is uniform noise plus uniform noise of the radius, clipped, "
            "as in the authors' code; 'noise, text' is uniform noise, as the paper says. Below stands "
            + ("the probability of the target at the end." if what == "class" else "the coordinate at the end."),
            [
                [Picture.of(one.numpy(), note=note) for one, note in zip(grid[name], notes[name], strict=True)]
                for name in told
            ],
            rows=list(told),
            columns=[f"{what} {target}" for target in targets],
        )

    def _table(self, told: Mapping[str, Mapping[str, object]], targets: Sequence[int], what: str) -> Table:
        rows: list[list[Cell]] = []
        for name, one in told.items():
            columns = (floats(_list(one[key])) for key in ("before", "after", "fine"))
            for target, before, after, fine in zip(targets, *columns, strict=True):
                rows.append([name, target, before, after, fine])
        value = "probability" if what == "class" else "value"
        return Table(
            "Every picture",
            f"The {value} of the target before and after, and the share of what was drawn, the picture minus its "
            f"start, beyond a quarter of a cycle per pixel; white noise has {1 - math.pi * spectrum.FINE**2:.2f}.",
            ["start", what, f"{value} before", f"{value} after", "fine share"],
            rows,
        )

    def _summary(
        self, told: Mapping[str, Mapping[str, object]], what: str, fine: Mapping[str, Mapping[str, float]]
    ) -> str:
        pairs = []
        for name, one in told.items():
            before, after = (sum(v) / len(v) for v in (floats(_list(one[key])) for key in ("before", "after")))
            pairs.append(
                f"from {name} the target's {'probability' if what == 'class' else 'value'} goes from {before:.3g} to "
                f"{after:.3g} on average, with {fine[name]['mean']:.0%} of what is drawn beyond a quarter of a cycle "
                "per pixel"
            )
        text = "; ".join(pairs)
        return f"{text[0].upper()}{text[1:]} (white noise: 80%)."


@dataclass(frozen=True, slots=True)
class Coordinate:
    """As much as possible of one output; there is no moment at which it is enough."""

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
    """What enters the classifier, in the place of what leaves it."""

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
            "that is. Load it with vitadel.models.load, or go towards classes."
        )
    return model


def _answers(asked: nn.Module, images: Images, seed: int) -> int:
    """How many numbers the model answers with."""
    device = device_of(asked)
    with isolated(asked, seed, device), torch.no_grad():
        return int(asked(images.images(torch.arange(1)).to(device)).shape[1])


def _score(z: Tensor, goal: Goal) -> Tensor:
    """The probability of the class, or the coordinate itself."""
    value_B = z.float().softmax(1) if isinstance(goal, Targeted) else z.float()
    return value_B.gather(1, goal.classes[:, None]).squeeze(1)


def _check_targets(targets: Sequence[int], known: int, what: str, of_what: str) -> None:
    if far := [target for target in targets if not 0 <= target < known]:
        raise UsageError(f"there is no {what} {far[0]}: the model has {known} {of_what}, counted from 0.")


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value
