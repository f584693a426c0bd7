"""Transfer of attacks: images crafted once on every model and evaluated on all of them.

As in Bhojanapalli et al. 2021 (arXiv:2103.14586), Table 2: a row is the model that an attack was crafted on (source), a
column the one that is evaluated (target), and in brackets is the difference from the target's accuracy without an
attack. PGD starts from the image itself and takes steps of `pace` eps / steps along the sign of the gradient; with one
step it is FGSM. Every image is attacked, classified correctly or not, at the image size of this model. A source with
another fixed image size resizes its input as part of the attacked function, so images crafted on it differ from the
originals by the perturbation only.

Shape letters: N images, S sources, T targets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import interpolate

from vitadel import models
from vitadel.attacks import PGD
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.core.numeric import Positive, Steps, check_ranges
from vitadel.core.stats import Accuracy, accuracy_of
from vitadel.data import DataSet
from vitadel.evaluate.context import Batch, Context, Work
from vitadel.evaluate.suites.base import suite_record
from vitadel.runs.exhibits import Cell, Exhibit, Heatmap, Matrix, Table
from vitadel.runs.schema import Measure, SuiteRecord

_CLEAN = "clean"
_SELF = "this model"


@dataclass(frozen=True, slots=True)
class Transfer:
    """Accuracy of every model on the images crafted on every model: this one, and those named as `sources`.

    An image counts as correct if this model is correct on it for every other model that it was crafted on.

    Args:
        sources: Further models, as on the command line.
        steps: Steps of the attack.
        pace: Step size of PGD, as a multiple of eps / steps.
    """

    name: ClassVar[str] = "transfer"
    title: ClassVar[str] = "Transfer of attacks"
    about: ClassVar[str] = (
        "attacks crafted on each of several models and evaluated on all: transfer:sources=MODEL+MODEL"
    )
    needs_threat: ClassVar[bool] = True

    sources: tuple[str, ...] = ()
    steps: Steps = 8
    pace: Positive = 1.0

    def __post_init__(self) -> None:
        check_ranges(self)
        if len(set(self.sources)) < len(self.sources):
            raise UsageError(f"transfer:sources names a model twice: {', '.join(self.sources)}. Name each once.")

    @property
    def names(self) -> list[str]:
        """The names of the models in tables: the last part of each name if these are unique."""
        short = [source.partition("@")[0].rpartition("/")[2].removesuffix(".safetensors") for source in self.sources]
        return [_SELF, *(short if len(set(short)) == len(short) else self.sources)]

    def check(self, model: nn.Module, data: DataSet, split: str) -> None:
        """Raise a UsageError without sources, or if one has a different number of classes than the model."""
        if not self.sources:
            raise UsageError("transfer needs other models to craft on. Write transfer:sources=MODEL, or MODEL+MODEL.")
        wanted = getattr(getattr(model, "spec", None), "output_classes", len(data.classes))
        for source, other in zip(self.sources, self._others(), strict=True):
            assert other.spec is not None
            if (classes := other.spec.output_classes) != wanted:
                raise UsageError(
                    f"{source} has {classes} classes and the model {wanted}: their predictions do not compare. "
                    "Leave it out."
                )

    def named_files(self, data: DataSet, split: str) -> dict[str, str]:
        """A hash of the weights of each source."""
        return dict(zip(self.sources, map(_fingerprint, self._others()), strict=True))

    def run(self, ctx: Context) -> None:
        """Predictions of all models on clean images, and on the images crafted on each model."""
        threat = ctx.required_threat
        step_size = self.pace * threat.eps / self.steps
        attack = PGD(steps=self.steps, step_size=step_size, random_start=False, keep_best=False)
        members = [ctx.model, *(_at_size(other.to(ctx.device), *ctx.image_size) for other in self._others())]

        def predictions(x: Tensor) -> dict[str, Tensor]:
            return {"predictions": torch.stack([ctx.predict(x, model=member) for member in members], 1)}

        def crafted_on(source: nn.Module, batch: Batch) -> dict[str, Tensor]:
            return predictions(ctx.attack(attack, batch, model=source).x_adv)

        works: dict[str, Work] = {_CLEAN: lambda batch: predictions(batch.x)}
        for table, source in zip(self._tables[1:], members, strict=True):
            works[table] = partial(crafted_on, source)
        ctx.map_tables(works)

    @property
    def _tables(self) -> list[str]:
        return [_CLEAN, *(f"from-{number}" for number in range(len(self.names)))]

    def _others(self) -> list[models.Model]:
        return [models.load(source) for source in self.sources]

    def _predictions(self, ctx: Context) -> NDArray[np.int64]:
        """[1 + S, N, T]: on clean images, then on the images crafted on each source."""
        return np.array([ctx.table(table)["predictions"] for table in self._tables])

    def _correct(self, ctx: Context) -> NDArray[np.bool_]:
        correct: NDArray[np.bool_] = self._predictions(ctx) == ctx.images.labels.numpy()[:, None]
        return correct

    def rows(self, ctx: Context) -> Mapping[str, Sequence[object]]:
        """All predictions, and whether this model is correct on the images crafted on every other model."""
        clean_NT, *crafted_SNT = self._predictions(ctx)
        return {
            "clean_prediction": clean_NT[:, 0].tolist(),
            "correct": _robust(self._correct(ctx)),
            "clean_predictions": clean_NT.tolist(),
            "predictions": np.stack(crafted_SNT, 1).tolist(),
        }

    def summarize(self, ctx: Context) -> SuiteRecord:
        """The accuracy of every target on the images crafted on every source."""
        threat, correct = ctx.required_threat, self._correct(ctx)
        worst = accuracy_of(_robust(correct))
        clean, *matrix = [[accuracy_of(shares) for shares in table.T.tolist()] for table in correct]
        own = matrix[0][0]
        return suite_record(
            self,
            ctx,
            tables=self._tables,
            clean=clean[0],
            measures=[
                Measure.of("correct on images crafted on any other model", worst, main=True),
                Measure.of("under its own attack", own),
                *(
                    Measure.of(f"crafted on {name}", row[0])
                    for name, row in zip(self.names[1:], matrix[1:], strict=True)
                ),
            ],
            sentence=(
                f"{clean[0].accuracy:.1%} of {worst.n} images are classified correctly, {own.accuracy:.1%} under the "
                f"model's own attack within {threat!s}, and {worst.accuracy:.1%} for every other model that the attack "
                "was crafted on."
            ),
            conventions={
                "attack": f"PGD-{self.steps}, steps of {self.pace:g} eps / steps, no random start, last iterate",
                "other_sizes": "resized inside the other model, bilinear",
                "sources": {
                    name: _fingerprint(other)[:8] for name, other in zip(self.names[1:], self._others(), strict=True)
                },
            },
            exhibits=self._exhibits(clean, matrix),
            flags=self._stronger_sources(matrix),
            threat=threat,
        )

    def _exhibits(self, clean: Sequence[Accuracy], matrix: Sequence[Sequence[Accuracy]]) -> list[Exhibit]:
        caption = f"Rows are the models that {clean[0].n} images were crafted on, columns those that were evaluated."
        rows: list[list[Cell]] = [["none", *(one.percent for one in clean)]]
        for name, row in zip(self.names, matrix, strict=True):
            differences = [one.accuracy - before.accuracy for one, before in zip(row, clean, strict=True)]
            cells = [f"{one.percent} ({100 * more:+.1f})" for one, more in zip(row, differences, strict=True)]
            rows.append([name, *cells])
        return [
            Table(
                "Accuracy by source and target",
                f"{caption} Percent, and in brackets the difference from no attack.",
                ["crafted on", *self.names],
                rows,
            ),
            Heatmap(
                "Accuracy by source and target, drawn",
                caption,
                [Matrix("accuracy", [[one.accuracy for one in row] for row in matrix])],
                "accuracy",
                "crafted on",
                "evaluated",
                self.names,
                self.names,
                low=0.0,
                high=1.0,
                digits=2,
            ),
        ]

    def _stronger_sources(self, matrix: Sequence[Sequence[Accuracy]]) -> list[Flag]:
        """A flag if a transfer attack is stronger than the white-box attack, which indicates masked gradients."""
        own = matrix[0][0]
        stronger = [name for name, row in zip(self.names[1:], matrix[1:], strict=True) if row[0].correct < own.correct]
        if not stronger:
            return []
        sentence = (
            f"images crafted on {', '.join(stronger)} fool the model more often than those crafted on itself: "
            "its gradients may be masked"
        )
        return [Flag("transfer-stronger", sentence, {"own": own.correct, "of": own.n})]


def _robust(correct: NDArray[np.bool_]) -> list[float]:
    """Whether this model is correct on each image crafted on every other model."""
    robust: list[float] = correct[2:, :, 0].all(0).astype(float).tolist()
    return robust


def _fingerprint(model: models.Model) -> str:
    return models.weights_sha256(model.net.state_dict())


class _Resized(nn.Module):
    """A model that resizes its input to its image size, differentiably."""

    def __init__(self, model: nn.Module, size: int) -> None:
        super().__init__()
        self.model, self.size = model, size

    def forward(self, x: Tensor) -> Tensor:
        z_BK: Tensor = self.model(interpolate(x, size=(self.size, self.size), mode="bilinear", antialias=True))
        return z_BK


def _at_size(model: models.Model, height: int, width: int) -> nn.Module:
    size = model.fixed_size
    return model if size is None or (height, width) == (size, size) else _Resized(model, size)
