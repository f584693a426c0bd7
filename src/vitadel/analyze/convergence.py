r"""Convergence of an attack: loss and accuracy against its steps, over restarts; and the loss around images.

Debenedetti's code attacks correctly classified images with 0, 1, 2, 5, ... steps of PGD, many times each: once an
attack has converged, more steps do not increase the loss, and all restarts end at the same loss. Zero steps are the
clean image. Each number of steps is a separate search, with a step size of 2.5 eps / steps by default.

A slice of the loss around an image x is :math:`L(\mathrm{clip}(x + a\,d + b\,r))` for a and b from -1 to 1: d is the
threat's step of length eps along the gradient, r the same along a random direction; pixels are clipped to [0, 1]. In
the middle is the loss of the image itself. A loss that rises smoothly along a can be maximized by gradients; a rough or
flat one indicates masked gradients.

Shape letters: B images, R restarts, A and B points along a and b.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from vitadel.attacks import PGD
from vitadel.attacks.isolation import isolated
from vitadel.attacks.oracle import Oracle
from vitadel.core.device import device_of
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, CountOrZero, Range, StepsOrZero, check_ranges
from vitadel.core.oom import in_batches
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.core.stats import accuracy
from vitadel.evaluate.context import Batch, Context, Work
from vitadel.evaluate.store import TableRows
from vitadel.goals import Untargeted
from vitadel.losses import cross_entropy
from vitadel.runs.exhibits import Cell, Exhibit, Heatmap, Line, Lines, Matrix, Table
from vitadel.runs.schema import StudyRecord
from vitadel.threats import Threat


@dataclass(frozen=True, slots=True)
class Convergence:
    """Loss and accuracy of PGD against its steps, with the band of its restarts; slices of the loss around images.

    Args:
        steps: Numbers of steps.
        restarts: Restarts for each number of steps.
        images: Number of images: the first that the model classifies correctly.
        step_size: Step size of PGD; 2.5 eps / steps if not given.
        slices: Number of images around which the loss is shown on a plane; 0 leaves that out.
        points: Number of points along each side of the plane, odd.
    """

    title: ClassVar[str] = "Convergence of the attack"
    about: ClassVar[str] = "convergence of the attack: loss and accuracy against steps, and the loss around images"
    needs_threat: ClassVar[bool] = True

    steps: tuple[StepsOrZero, ...] = (0, 1, 2, 5, 10, 50, 100)
    restarts: Annotated[int, Range(ge=1, top=1000, hint="Each has a table of its own.")] = 5
    images: Count = 100
    step_size: Annotated[float, Range(gt=0, hint="Leave it out.")] | None = None
    slices: CountOrZero = 4
    points: Annotated[int, Range(ge=3, le=1001)] = 21

    def __post_init__(self) -> None:
        check_ranges(self)
        if not any(self.steps) or len(set(self.steps)) < len(self.steps):
            raise UsageError(
                f"Convergence.steps needs numbers of steps from 0, each once and not 0 alone, got {self.steps}. "
                "Write for example (0, 10, 20)."
            )
        if self.points % 2 == 0:
            raise UsageError(
                f"Convergence.points must be odd, so that the image is in the middle, got {self.points}. "
                f"Write {self.points + 1}."
            )

    def check(self, model: nn.Module) -> None:
        """All models are supported."""

    def run(self, ctx: Context) -> None:
        ctx.map("clean", lambda batch: {"prediction": ctx.predict(batch.x)})
        index = self._attacked(ctx)
        ctx.map_tables({name: self._attack(ctx, *key) for key, name in self._searches().items()}, index=index.tolist())
        seed, threat = ctx.seed, ctx.required_threat

        def slices(batch: Batch) -> dict[str, object]:
            index = int(batch.index)
            loss = loss_slice(ctx.model, batch.x, batch.y, threat, self.points, seed, index, ctx.batch_size)
            return {"loss": loss[None]}

        ctx.map("slices", slices, index=index[: self.slices].tolist(), batch_size=1)

    def summarize(self, ctx: Context) -> StudyRecord:
        index, threat = self._attacked(ctx), ctx.required_threat
        results: dict[int, list[TableRows]] = {}
        for (steps, _), name in self._searches().items():
            results.setdefault(steps, []).append(ctx.table(name))
        curve = {steps: over_restarts(restarts) for steps, restarts in results.items()}
        slices = ctx.table("slices")["loss"]
        exhibits: list[Exhibit] = [
            self._loss(curve, len(index), threat),
            self._accuracy(curve, len(index), threat),
            _table(curve, len(index), self.restarts),
            *([] if not slices else [self._heat(slices, ctx.images.labels[index].tolist(), threat)]),
        ]
        numbers = {
            "n": len(index),
            "tried": len(ctx.images),
            "curve": [{"steps": steps, **one} for steps, one in curve.items()],
            "slices": slices,
        }
        summary = _summary(curve, len(index), str(threat))
        return StudyRecord("convergence", self.title, summary, exhibits, numbers)

    def _attacked(self, ctx: Context) -> Tensor:
        """The images that are attacked: the first that the model classifies correctly."""
        correct = torch.tensor(ctx.correct(ctx.table("clean")["prediction"])).nonzero()[:, 0]
        if not len(correct):
            raise UsageError(
                f"the model classifies none of {len(ctx.images)} images correctly, so there is nothing to attack. "
                "Choose more images, or run `vitadel evaluate` first."
            )
        return correct[: self.images]

    def _searches(self) -> dict[tuple[int, int], str]:
        """The table of each number of steps and restart; zero steps have one."""
        return {
            (steps, restart): f"steps-{steps:05d}-restart-{restart:03d}"
            for steps in sorted(self.steps)
            for restart in range(self.restarts if steps else 1)
        }

    def _attack(self, ctx: Context, steps: int, restart: int) -> Work:
        seed = fold_seed(ctx.seed, restart)

        def measure(batch: Batch) -> dict[str, Tensor]:
            x = batch.x
            if steps:
                seeded = replace(ctx, seed=fold_seed(seed, steps))
                x = seeded.attack(PGD(steps, self.step_size), batch).x_adv
            loss_B, correct_B = _losses(ctx.model, x, batch.y, seed)
            return {"loss": loss_B, "correct": correct_B}

        return measure

    def _attack_description(self, n: int, threat: Threat) -> str:
        length = "2.5 eps / steps" if self.step_size is None else f"{self.step_size:g}"
        return (
            f"PGD at {threat!s} with steps of {length}, {self.restarts} restarts from random points, on "
            f"{n} images that the model classifies correctly."
        )

    def _loss(self, curve: Mapping[int, Mapping[str, float]], n: int, threat: Threat) -> Lines:
        steps, columns = _columns(curve, "loss", "loss_low", "loss_high")
        return Lines(
            "Loss against steps",
            f"Mean cross-entropy of what the attack returns. {self._attack_description(n, threat)} The line is the "
            "mean over restarts, the band holds all of them.",
            [Line("mean over restarts", steps, columns["loss"], columns["loss_low"], columns["loss_high"])],
            x_label="steps",
            y_label="cross-entropy",
            log_x=True,
            references=[("clean", curve[0]["loss"])] if 0 in curve else [],
        )

    def _accuracy(self, curve: Mapping[int, Mapping[str, float]], n: int, threat: Threat) -> Lines:
        steps, columns = _columns(curve, "accuracy", "accuracy_low", "accuracy_high", "worst")
        return Lines(
            "Accuracy against steps",
            "Share of images that the model still classifies correctly. "
            f"{self._attack_description(n, threat)} The line is the mean over restarts, the band holds all of them; "
            "dashed: correct under every restart.",
            [
                Line(
                    "mean over restarts", steps, columns["accuracy"], columns["accuracy_low"], columns["accuracy_high"]
                ),
                Line("all restarts together", steps, columns["worst"], dashed=True),
            ],
            x_label="steps",
            y_label="accuracy",
            log_x=True,
            y_range=(0.0, 1.02),
        )

    def _heat(self, slices: Sequence[Sequence[Sequence[float]]], labels: Sequence[int], threat: Threat) -> Heatmap:
        ticks = [f"{value:+.2g}" for value in _axis_values(self.points).tolist()]
        return Heatmap(
            "The loss around images",
            "Cross-entropy at x + a d + b r, pixels clipped to [0, 1]: d is a step of length eps along the gradient "
            f"at x, r one along random numbers, both as {threat!s} steps. The image itself is in the "
            "middle.",
            [Matrix(f"label {label}", one) for one, label in zip(slices, labels, strict=False)],
            value_label="cross-entropy",
            row_label="a, along the gradient",
            column_label="b, along a random direction",
            rows=ticks,
            columns=ticks,
        )


def loss_slice(
    model: nn.Module, x: Tensor, label_1: Tensor, threat: Threat, points: int, seed: int, index: int, batch_size: int
) -> Tensor:
    """[A, B] in float32: the loss of one image [1, C, H, W] on the plane of its gradient and a random direction."""
    device = device_of(model)
    x, label_1 = x.to(device), label_1.to(device)
    with isolated(model, seed, device):
        _, grad, _ = Oracle(model, int(label_1.max())).gradient(x, Untargeted(label_1))
    noise = RandomStreams.of(fold_seed(seed, *b"slice"), torch.tensor([index], device=device)).normal(
        *x.shape[1:], dtype=x.dtype
    )
    along, random_direction = (threat.ascend(x, one, threat.eps) - x for one in (grad, noise))
    axis = _axis_values(points).to(x)
    a_Q, b_Q = (one.flatten() for one in torch.meshgrid(axis, axis, indexing="ij"))

    def loss_at(point: Tensor) -> Tensor:
        a, b = (one[point.to(device)].view(-1, 1, 1, 1) for one in (a_Q, b_Q))
        return _losses(model, (x + a * along + b * random_direction).clamp(0, 1), label_1.expand(len(point)), seed)[0]

    results = torch.cat([made for _, made in in_batches(torch.arange(len(a_Q)), batch_size, loss_at)])
    return results.view(points, points).float()


def _axis_values(points: int) -> Tensor:
    """[points] evenly spaced from -1 to 1, with an exact zero in the middle."""
    half = points // 2
    return torch.arange(-half, half + 1, dtype=torch.float64) / half


def _losses(model: nn.Module, x: Tensor, label_B: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """[B] cross-entropies, and whether the prediction is the label, on the CPU."""
    with isolated(model, seed, x.device), torch.no_grad():
        z_BK = Oracle(model, int(label_B.max()))(x)
    return cross_entropy(z_BK, label_B).cpu(), (z_BK.argmax(1) == label_B).cpu()


def over_restarts(restarts: Sequence[TableRows]) -> dict[str, float]:
    """Means over images of `loss` and `correct`: over restarts their mean, minimum and maximum.

    Returns:
        These numbers, and `worst`, the share of images that are correct in all restarts, with its interval.
    """
    loss_RB = torch.tensor([rows["loss"] for rows in restarts], dtype=torch.float64)
    correct_RB = torch.tensor([rows["correct"] for rows in restarts], dtype=torch.float64)
    worst = accuracy(int(correct_RB.amin(0).sum()), correct_RB.shape[1])
    results = {"worst": worst.accuracy, "worst_low": worst.low, "worst_high": worst.high}
    for name, mean_R in (("loss", loss_RB.mean(1)), ("accuracy", correct_RB.mean(1))):
        results |= {name: float(mean_R.mean()), f"{name}_low": float(mean_R.min()), f"{name}_high": float(mean_R.max())}
    return results


def _columns(curve: Mapping[int, Mapping[str, float]], *keys: str) -> tuple[list[int], dict[str, list[float]]]:
    """The numbers of steps without zero, as the axis is logarithmic, and columns of the curve at them."""
    steps = [number for number in curve if number]
    return steps, {key: [curve[number][key] for number in steps] for key in keys}


def _table(curve: Mapping[int, Mapping[str, float]], n: int, restarts: int) -> Table:
    keys = [f"{name}{end}" for name in ("loss", "accuracy", "worst") for end in ("", "_low", "_high")]
    rows: list[list[Cell]] = [[steps, *(one[key] for key in keys)] for steps, one in curve.items()]
    return Table(
        "Loss and accuracy (table)",
        f"Means over {n} images: mean, minimum and maximum of {restarts} restarts. The last three columns are the "
        "share of images classified correctly under every restart, with Wilson's 95% interval.",
        ["steps", "loss", "min", "max", "accuracy", "min", "max", "all restarts", "low", "high"],
        rows,
    )


def _summary(curve: Mapping[int, Mapping[str, float]], n: int, threat: str) -> str:
    *before, last = curve
    text = (
        f"With {last} steps at {threat}, {curve[last]['accuracy']:.1%} of {n} images remain correctly classified on "
        f"average over restarts, {curve[last]['worst']:.1%} under all of them"
    )
    if not before:
        return f"{text}."
    gained = curve[last]["loss"] - curve[before[-1]]["loss"]
    return (
        f"{text}. From {before[-1]} to {last} steps the loss changes by {gained:+.3f} and the accuracy by "
        f"{100 * (curve[last]['accuracy'] - curve[before[-1]]['accuracy']):+.1f} points; restarts lie between "
        f"{curve[last]['accuracy_low']:.1%} and {curve[last]['accuracy_high']:.1%}."
    )
