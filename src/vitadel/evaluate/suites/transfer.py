"""Do attacks on one model fool another? Images crafted once on every model and shown to all of them.

As in Bhojanapalli et al. 2021 (arXiv:2103.14586), Table 2: a row is the model an attack was crafted on, a column the
one that is asked, and in brackets stands the difference from what the latter gets right without an attack. PGD starts
from the image itself and takes steps of `pace` eps / steps along the sign of the gradient; with one step it is FGSM.
Every image is attacked, right or wrong, at the size at which this model sees it. Another model that takes images of one
other size resizes them itself, inside of what is attacked: what is crafted on it differs from the image by the attack
alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from vitadel import models
from vitadel.attacks import PGD, Flag
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, Positive, check_ranges
from vitadel.core.stats import Accuracy
from vitadel.data import DataSet
from vitadel.evaluate.suites.base import Desk, Outcome, Work, answer, share_of
from vitadel.goals import Untargeted
from vitadel.runs.exhibits import Exhibit, Heat, Matrix, Table
from vitadel.runs.schema import Measure
from vitadel.threats import spell

_CLEAN = "clean"
_SELF = "this model"


@dataclass(frozen=True, slots=True)
class Transfer:
    """Accuracy of every model on the images crafted on every model: this one, and those named as `sources`.

    `sources` are models as on the command line, with + between them. An image counts as right if this model stays
    right about it whichever of the other models it was crafted on.
    """

    name: ClassVar[str] = "transfer"
    title: ClassVar[str] = "Transfer of attacks"
    about: ClassVar[str] = "attacks crafted on each of several models and shown to all: transfer:sources=MODEL+MODEL"
    needs_threat: ClassVar[bool] = True

    sources: tuple[str, ...] = ()
    steps: Count = 8
    pace: Positive = 1.0

    def __post_init__(self) -> None:
        check_ranges(self)
        if len(set(self.sources)) < len(self.sources):
            raise UsageError(f"transfer:sources names a model twice: {', '.join(self.sources)}. Name each once.")

    @property
    def names(self) -> list[str]:
        """What the models are called in tables: the ends of their names, as far as these tell them apart."""
        short = [source.partition("@")[0].rpartition("/")[2].removesuffix(".safetensors") for source in self.sources]
        return [_SELF, *(short if len(set(short)) == len(short) else self.sources)]

    def refuse(self, model: nn.Module, data: DataSet, split: str) -> None:
        if not self.sources:
            raise UsageError("transfer needs other models to craft on. Write transfer:sources=MODEL, or MODEL+MODEL.")
        wanted = getattr(getattr(model, "spec", None), "output_classes", len(data.classes))
        for source, other in zip(self.sources, self._others(torch.device("cpu")), strict=True):
            assert other.spec is not None
            if (known := other.spec.output_classes) != wanted:
                raise UsageError(f"{source} has {known} classes and the model {wanted}: their answers do not compare.")

    def named_files(self, data: DataSet, split: str) -> dict[str, str]:
        others = self._others(torch.device("cpu"))
        return {
            source: models.fingerprint(other.net.state_dict())
            for source, other in zip(self.sources, others, strict=True)
        }

    def look(self, desk: Desk) -> None:
        members = [desk.model, *(_at_size(other, *desk.size) for other in self._others(desk.device))]
        sheets = [desk.sheet(_CLEAN), *(desk.sheet(f"from-{number}") for number in range(len(members)))]
        share = desk.share
        missing = [sheet.missing(share) for sheet in sheets]
        total = len(share) * len(sheets)
        tell = desk.meter(total, total - sum(map(len, missing)))
        works = [_asking(desk, members), *(self._crafting(desk, members, source) for source in members)]
        for rows, fetch in desk.portions(sorted({row for some in missing for row in some})):
            for sheet, work in zip(sheets, works, strict=True):
                sheet.fill(rows, fetch, work, batch=desk.batch, tell=tell)

    def _crafting(self, desk: Desk, members: Sequence[nn.Module], source: nn.Module) -> Work:
        assert desk.threat is not None
        threat = desk.threat
        step = self.pace * threat.eps / self.steps
        attack = PGD(steps=self.steps, step_size=step, random_start=False, keep_best=False)

        def work(rows: Tensor, x: Tensor) -> dict[str, list[object]]:
            label_B = desk.images.labels[rows]
            goal = Untargeted(label_B.to(x.device))
            found = attack(source, x, goal, threat, seed=desk.seed, index_B=rows)
            return _answers(members, found.x_adv, label_B)

        return work

    def conclude(self, desk: Desk) -> Outcome:
        labels, size = desk.images.labels.tolist(), len(self.names)
        pages = [_CLEAN, *(f"from-{number}" for number in range(size))]
        answers = []
        for page in pages:
            lines = desk.lines(page)
            answers.append([_whole(lines[row]["predictions"]) for row in range(len(labels))])
        right = [[[float(a == y) for a in row] for row, y in zip(page, labels, strict=True)] for page in answers]
        clean = [share_of([row[target] for row in right[0]]) for target in range(size)]
        matrix = [[share_of([row[target] for row in page]) for target in range(size)] for page in right[1:]]
        stands = [min(right[1 + source][row][0] for source in range(1, size)) for row in range(len(labels))]
        worst = share_of(stands)
        assert desk.threat is not None
        return Outcome(
            columns={
                "clean_prediction": [row[0] for row in answers[0]],
                "right": stands,
                "clean_predictions": answers[0],
                "predictions": [[page[at] for page in answers[1:]] for at in range(len(labels))],
            },
            clean=clean[0],
            measures=[
                Measure.of("right about images crafted on any other model", worst, main=True),
                Measure.of("under its own attack", matrix[0][0]),
                *(Measure.of(f"crafted on {self.names[at]}", matrix[at][0]) for at in range(1, size)),
            ],
            sentence=(
                f"{clean[0].accuracy:.1%} of {len(labels)} images are right as they are, {matrix[0][0].accuracy:.1%} "
                f"under the model's own attack within {spell(desk.threat)}, and {worst.accuracy:.1%} whichever other "
                "model the attack was crafted on."
            ),
            conventions=self._conventions(desk),
            exhibits=self._exhibits(clean, matrix, len(labels)),
            flags=self._doubts(desk, matrix),
            threat=desk.threat,
        )

    def _others(self, device: torch.device) -> list[models.Model]:
        return [models.load(source).to(device) for source in self.sources]

    def _conventions(self, desk: Desk) -> dict[str, object]:
        hashes = {
            name: models.fingerprint(other.net.state_dict())[:8]
            for name, other in zip(self.names[1:], self._others(torch.device("cpu")), strict=True)
        }
        return {
            "attack": f"PGD-{self.steps}, steps of {self.pace:g} eps / steps, no random start, last iterate",
            "other_sizes": "resized inside the other model, bilinear",
            "sources": hashes,
        }

    def _exhibits(self, clean: Sequence[Accuracy], matrix: Sequence[Sequence[Accuracy]], n: int) -> list[Exhibit]:
        caption = f"Rows are the models that {n} images were crafted on, columns those that were asked."
        rows: list[list[str | float | None]] = [["none", *(f"{100 * one.accuracy:.1f}" for one in clean)]]
        for name, row in zip(self.names, matrix, strict=True):
            cells = [
                f"{100 * one.accuracy:.1f} ({100 * (one.accuracy - before.accuracy):+.1f})"
                for one, before in zip(row, clean, strict=True)
            ]
            rows.append([name, *cells])
        return [
            Table(
                "Accuracy by source and target",
                f"{caption} Percent, and in brackets the difference from no attack.",
                ["crafted on", *self.names],
                rows,
            ),
            Heat(
                "Accuracy by source and target, drawn",
                caption,
                [Matrix("accuracy", [[one.accuracy for one in row] for row in matrix])],
                "accuracy",
                "crafted on",
                "asked",
                self.names,
                self.names,
                low=0.0,
                high=1.0,
                digits=2,
            ),
        ]

    def _doubts(self, desk: Desk, matrix: Sequence[Sequence[Accuracy]]) -> list[Flag]:
        """An attack that knows the model should beat those that know another."""
        own = matrix[0][0]
        stronger = [name for name, row in zip(self.names[1:], matrix[1:], strict=True) if row[0].correct < own.correct]
        if not stronger:
            return []
        sentence = (
            f"images crafted on {', '.join(stronger)} fool the model more often than those crafted on itself: "
            "its own gradient misleads"
        )
        return [Flag("transfer-stronger", sentence, {"own": own.correct, "of": own.n})]


def _asking(desk: Desk, members: Sequence[nn.Module]) -> Work:
    return lambda rows, x: _answers(members, x, desk.images.labels[rows])


def _answers(members: Sequence[nn.Module], x: Tensor, label_B: Tensor) -> dict[str, list[object]]:
    each = [answer(member, x, label_B).argmax(1) for member in members]
    return {"predictions": list(torch.stack(each, 1).tolist())}


class _Resized(nn.Module):
    """A model of one size that takes images of any: a step that an attack looks through, and not one before it."""

    def __init__(self, model: nn.Module, size: int) -> None:
        super().__init__()
        self.model, self.size = model, size

    def forward(self, x: Tensor) -> Tensor:
        z_BK: Tensor = self.model(interpolate(x, size=(self.size, self.size), mode="bilinear", antialias=True))
        return z_BK


def _at_size(model: models.Model, height: int, width: int) -> nn.Module:
    size = model.fixed_size
    return model if size is None or (height, width) == (size, size) else _Resized(model, size)


def _whole(values: object) -> list[int]:
    assert isinstance(values, list)
    return [int(str(value)) for value in values]
