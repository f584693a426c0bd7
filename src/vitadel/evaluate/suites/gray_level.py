"""Attacks within one gray level: invisible perturbations that often change the prediction.

Bhojanapalli et al. 2021 (arXiv:2103.14586): every pixel value may change by one of 256 gray levels. FGSM takes one
step; PGD takes eight of an eighth of a level each along the sign of the cross-entropy's gradient, from the image itself
and without a random start, so that it cannot leave the ball. The paper does not say which iterate is evaluated; plain
PGD returns the last. Unlike in AutoAttack, both attack the same images. An image that is misclassified without an
attack counts as wrong.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor, nn

from vitadel.attacks import FGSM, PGD, Attack
from vitadel.core.flags import Flag
from vitadel.core.numeric import Range, Steps, check_ranges
from vitadel.core.stats import Accuracy, accuracy_of
from vitadel.data import DataSet
from vitadel.evaluate.context import Batch, Context
from vitadel.evaluate.suites.base import suite_record
from vitadel.evaluate.suites.pictures import attack_pictures
from vitadel.runs.exhibits import Bar, Bars
from vitadel.runs.schema import Measure, SuiteRecord
from vitadel.threats import Linf

_GRAY = 255
_FGSM = "fgsm_correct"  # of the rows
_TABLE = "predictions"


class Iterate(enum.Enum):
    """Which iterate of PGD is evaluated."""

    LAST = "last"
    BEST = "best"


@dataclass(frozen=True, slots=True)
class GrayLevel:
    """Accuracy under FGSM and under PGD, each within some gray levels of the image.

    Args:
        levels: Radius in gray levels, of 255.
        steps: Steps of PGD.
        iterate: The iterate of PGD that is evaluated: the last one, or per image the best one, an adversarial example
            if there is one.
    """

    name: ClassVar[str] = "gray-level"
    title: ClassVar[str] = "Attacks within one gray level"
    about: ClassVar[str] = "FGSM and 8-step PGD within one gray level, each on every image"
    needs_threat: ClassVar[bool] = False

    levels: Annotated[float, Range(gt=0, le=_GRAY, hint="The paper's is 1.")] = 1.0
    steps: Steps = 8
    iterate: Iterate = Iterate.LAST

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def threat(self) -> Linf:
        """The Linf ball with a radius of `levels`."""
        return Linf(self.levels / _GRAY)

    @property
    def attacks(self) -> dict[str, Attack]:
        """FGSM and PGD by the names of their columns."""
        step_size = self.threat.eps / self.steps
        best = self.iterate is Iterate.BEST
        pgd = PGD(steps=self.steps, step_size=step_size, random_start=False, keep_best=best)
        return {"fgsm": FGSM(), "pgd": pgd}

    def check(self, model: nn.Module, data: DataSet, split: str) -> None:
        """All models and data are supported."""

    def run(self, ctx: Context) -> None:
        """Predictions without an attack and under each; misclassified images are not attacked."""

        def predictions(batch: Batch) -> dict[str, Tensor]:
            clean_B = ctx.predict(batch.x)
            correct_B = clean_B == batch.y.cpu()
            columns = {"clean": clean_B, **{name: clean_B.clone() for name in self.attacks}}
            if bool(correct_B.any()):
                for name, attack in self.attacks.items():
                    result = ctx.attack(attack, batch.where(correct_B), threat=self.threat)
                    columns[name][correct_B] = result.prediction.cpu()
            return columns

        ctx.map(_TABLE, predictions)

    def rows(self, ctx: Context) -> Mapping[str, Sequence[object]]:
        """The predictions, and whether they are correct; `prediction` and `correct` are those under PGD."""
        table = ctx.table(_TABLE)
        return {
            "clean_prediction": table["clean"],
            "correct": ctx.correct(table["pgd"]),
            "prediction": table["pgd"],
            _FGSM: ctx.correct(table["fgsm"]),
            "fgsm_prediction": table["fgsm"],
        }

    def summarize(self, ctx: Context) -> SuiteRecord:
        """The accuracies, and a flag if PGD is weaker than FGSM."""
        table = ctx.table(_TABLE)
        clean, fgsm, pgd = (accuracy_of(ctx.correct(table[name])) for name in ("clean", "fgsm", "pgd"))
        size = f"{self.levels:g} gray level{'' if self.levels == 1 else 's'}"
        pgd_name = f"PGD-{self.steps}"
        caption = (
            f"The first images of the data set, PGD's perturbation stretched from {-self.levels:g} to {self.levels:g} "
            "gray levels, and their sum."
        )
        return suite_record(
            self,
            ctx,
            tables=[_TABLE],
            clean=clean,
            measures=[
                Measure.of(f"{pgd_name} at {size}", pgd, main=True),
                Measure.of(f"FGSM at {size}", fgsm, column=_FGSM),
            ],
            sentence=(
                f"{clean.accuracy:.1%} of {clean.n} images are classified correctly, {fgsm.accuracy:.1%} after one "
                f"step of FGSM and {pgd.accuracy:.1%} after {self.steps} steps of PGD, all within {size}."
            ),
            conventions={
                "eps": f"{self.levels:g}/255",
                "steps": self.steps,
                "step_size": "eps / steps",
                "random_start": False,
                "iterate": f"the {self.iterate.value} one",
                "wrong_before": "counts as wrong",
            },
            exhibits=[
                Bars(
                    f"Accuracy within {size}",
                    "Each attack on every image, with 95% intervals.",
                    ["clean", "FGSM", pgd_name],
                    [Bar.of("accuracy", [clean, fgsm, pgd])],
                    "accuracy",
                    (0.0, 1.0),
                ),
                attack_pictures(ctx, self.attacks["pgd"], self.threat, table["clean"], table["pgd"], caption),
            ],
            flags=_weaker_than_fgsm(fgsm, pgd),
            threat=self.threat,
        )


def _weaker_than_fgsm(fgsm: Accuracy, pgd: Accuracy) -> list[Flag]:
    """A flag if PGD breaks fewer images than a single step, which indicates masked gradients."""
    if pgd.correct <= fgsm.correct:
        return []
    sentence = f"PGD left {pgd.correct} images robust and a single step only {fgsm.correct}: gradients may be masked"
    return [Flag("pgd-weaker-than-fgsm", sentence, {"pgd": pgd.correct, "fgsm": fgsm.correct})]
