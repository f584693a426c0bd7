"""Attacks of one gray level: too small to be seen, and often enough to fool a model.

Bhojanapalli et al. 2021 (arXiv:2103.14586): every pixel value may move by one of 256 gray levels. FGSM takes one step;
PGD takes eight of an eighth of a level each along the sign of the cross-entropy's gradient, from the image itself and
without a random start, so that it cannot leave the ball. The two are asked separately, about the same images: unlike
in a cascade, what falls to the first is attacked by the second too. An image that is wrong before counts as wrong.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from vitadel.attacks import FGSM, PGD, Attack, Flag
from vitadel.core.numeric import Count, Range, check_ranges
from vitadel.core.stats import Accuracy
from vitadel.data import DataSet
from vitadel.evaluate.suites.base import Desk, Outcome, Work, share_of
from vitadel.evaluate.suites.pictures import adversaries
from vitadel.goals import Untargeted
from vitadel.runs.exhibits import Bar, Bars, Exhibit
from vitadel.runs.schema import Measure
from vitadel.threats import Linf

_GRAY = 255
_CLEAN = "clean"


@dataclass(frozen=True, slots=True)
class GrayLevel:
    """Accuracy under FGSM and under PGD, each within `levels` gray levels of the image; PGD takes `steps` steps."""

    name: ClassVar[str] = "gray-level"
    title: ClassVar[str] = "Attacks of one gray level"
    about: ClassVar[str] = "FGSM and 8-step PGD within one gray level, each on every image"
    needs_threat: ClassVar[bool] = False

    levels: Annotated[float, Range(gt=0, le=_GRAY, hint="The paper's is 1.")] = 1.0
    steps: Count = 8

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def threat(self) -> Linf:
        return Linf(self.levels / _GRAY)

    @property
    def attacks(self) -> dict[str, Attack]:
        step = self.threat.eps / self.steps
        return {"fgsm": FGSM(), f"pgd-{self.steps}": PGD(steps=self.steps, step_size=step, random_start=False)}

    def refuse(self, model: nn.Module, data: DataSet, split: str) -> None:
        """Any model and any data will do."""

    def look(self, desk: Desk) -> None:
        sheets = {name: desk.sheet(name) for name in (_CLEAN, *self.attacks)}
        share = desk.share
        missing = {name: sheet.missing(share) for name, sheet in sheets.items()}
        total = len(share) * len(sheets)
        tell = desk.meter(total, total - sum(map(len, missing.values())))
        for rows, fetch in desk.portions(sorted({row for some in missing.values() for row in some})):
            sheets[_CLEAN].fill(rows, fetch, desk.classify, batch=desk.batch, tell=tell)
            for name, attack in self.attacks.items():
                sheets[name].fill(rows, fetch, self._work(desk, attack), batch=desk.batch, tell=tell)

    def _work(self, desk: Desk, attack: Attack) -> Work:
        clean = desk.sheet(_CLEAN).known

        def work(rows: Tensor, x: Tensor) -> dict[str, list[object]]:
            """What an attack makes of the images that are right; the others keep their answer."""
            answer_B = torch.tensor([int(str(clean[row]["prediction"])) for row in rows.tolist()])
            right_B = answer_B == desk.images.labels[rows]
            if bool(right_B.any()):
                label_B = desk.images.labels[rows[right_B]].to(x.device)
                goal, at = Untargeted(label_B), rows[right_B]
                found = attack(desk.model, x[right_B.to(x.device)], goal, self.threat, seed=desk.seed, index_B=at)
                answer_B[right_B] = found.prediction.cpu()
            return {"prediction": list(answer_B.tolist())}

        return work

    def conclude(self, desk: Desk) -> Outcome:
        labels = desk.images.labels.tolist()
        answers = {name: desk.answers(name) for name in (_CLEAN, *self.attacks)}
        right = {name: [float(a == y) for a, y in zip(given, labels, strict=True)] for name, given in answers.items()}
        clean, fgsm, pgd = (share_of(one) for one in right.values())
        one, many = self.attacks
        return Outcome(
            columns={
                "clean_prediction": answers[_CLEAN],
                "right": right[many],
                "prediction": answers[many],
                "fgsm_right": right[one],
                "fgsm_prediction": answers[one],
            },
            clean=clean,
            measures=[Measure.of(self._called(many), pgd, main=True), Measure.of(self._called(one), fgsm)],
            sentence=(
                f"Of {len(labels)} images {clean.accuracy:.1%} are right as they are, {fgsm.accuracy:.1%} after one "
                f"step of FGSM and {pgd.accuracy:.1%} after {self.steps} steps of PGD, all within {self._size}."
            ),
            conventions={
                "eps": f"{self.levels:g}/255",
                "steps": self.steps,
                "step_size": "eps / steps",
                "random_start": False,
                "iterate": "the best one",
                "wrong_before": "counts as wrong",
            },
            exhibits=[self._bars(clean, fgsm, pgd), *self._pictures(desk, answers)],
            flags=self._doubts(fgsm, pgd),
            threat=self.threat,
        )

    @property
    def _size(self) -> str:
        return f"{self.levels:g} gray level{'' if self.levels == 1 else 's'}"

    def _called(self, attack: str) -> str:
        return f"{attack.upper()} at {self._size}"

    def _doubts(self, fgsm: Accuracy, pgd: Accuracy) -> list[Flag]:
        """More steps of the same kind should never find less."""
        if pgd.correct <= fgsm.correct:
            return []
        sentence = (
            f"PGD left {pgd.correct} images standing and a single step only {fgsm.correct}: the gradient misleads"
        )
        return [Flag("pgd-weaker-than-fgsm", sentence, {"pgd": pgd.correct, "fgsm": fgsm.correct})]

    def _bars(self, *shares: Accuracy) -> Bars:
        bar = Bar("accuracy", *([getattr(one, what) for one in shares] for what in ("accuracy", "low", "high")))
        return Bars(
            f"Accuracy within {self._size}",
            "Each attack on every image, with 95% intervals.",
            ["as they are", *map(str.upper, self.attacks)],
            [bar],
            "accuracy",
            (0.0, 1.0),
        )

    def _pictures(self, desk: Desk, answers: dict[str, list[int]]) -> list[Exhibit]:
        many = list(self.attacks)[-1]
        caption = (
            f"The first images of the data set, PGD's change stretched from {-self.levels:g} to {self.levels:g} gray "
            "levels, and their sum."
        )
        return [adversaries(desk, self.attacks[many], self.threat, answers[_CLEAN], answers[many], caption)]
