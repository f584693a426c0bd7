"""Gradient masking by the softmax of attention: measurements, and a verdict.

The diagnostics of Jain & Dutta (CVPR 2024): gaps between pre-softmax scores, accuracy against radius, iterations and
the number of rescaled blocks. Controls: attacks without gradients, a second run of the same attack, and every result
evaluated on the model itself. `vitadel.analyze.masking_verdict` derives the verdict from this evidence.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import nn

from vitadel.analyze.masking_figures import masking_exhibits
from vitadel.analyze.masking_measurements import Measurements
from vitadel.attacks import PGD, Scaling
from vitadel.core.errors import UsageError
from vitadel.core.numeric import LARGEST_STEPS, Count, CountOrZero, Positive, Range, Steps, check_ranges
from vitadel.evaluate.context import Context
from vitadel.models import Model
from vitadel.runs.schema import StudyRecord


@dataclass(frozen=True, slots=True)
class Masking:
    """Is the gradient masked by the attention? Gaps, zero gradients, curves, controls, a verdict.

    Args:
        steps: Steps of the attack that other attacks are compared with.
        iterations: Numbers of steps for PGD and AAS.
        shares: Radii as multiples of the threat's, in addition to 100/255.
        curve_steps: Steps of PGD at each of these radii.
        blocks: Numbers of attention layers that are rescaled, from the first on; () for none, quarters and all.
        targets: Number of classes of the multi-targeted attack.
        queries: Queries of Square; 0 leaves it out.
        scaling: How the factors of AAS are searched.
    """

    title: ClassVar[str] = "Gradient masking"
    about: ClassVar[str] = "gradient masking by attention: gaps, zero gradients, curves, controls, a verdict"
    needs_threat: ClassVar[bool] = True

    steps: Steps = 100
    iterations: tuple[Steps, ...] = (10, 20, 50, 100, 200, 500, 1000)
    shares: tuple[Positive, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    curve_steps: Steps = 20
    blocks: tuple[CountOrZero, ...] = ()
    targets: Count = 9
    queries: Annotated[int, Range(ge=0, top=LARGEST_STEPS, hint="0 leaves Square out.")] = 5000
    scaling: Scaling = field(default_factory=Scaling)

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.iterations:
            raise UsageError("Masking.iterations is empty. Write for example iterations=10+20.")

    @classmethod
    def quick(cls) -> "Masking":
        """The same tests with small budgets, for a first try; "not masked" means less here."""
        return cls(
            steps=20,
            iterations=(5, 20, 50),
            shares=(0.5, 1.0),
            curve_steps=20,
            targets=3,
            queries=500,
            scaling=Scaling(steps=3, trial_images=32, trial_attack=PGD(steps=10)),
        )

    def check(self, model: nn.Module) -> None:
        _with_attention(model)

    def run(self, ctx: Context) -> None:
        Measurements(self, ctx).all()

    def summarize(self, ctx: Context) -> StudyRecord:
        measured, threat = Measurements(self, ctx).all(), ctx.required_threat
        verdict = measured.verdict
        summary = (
            f"Verdict: {verdict.answer} ({verdict.because}). Of {measured.n} images {measured.clean.percent}% "
            f"({measured.clean.interval}%) are classified correctly, and {measured.attacks[0].broken} are broken by "
            f"PGD with {self.steps} steps at {threat!s}."
        )
        exhibits = masking_exhibits(measured, threat)
        return StudyRecord("masking", self.title, summary, exhibits, measured.numbers())


def _with_attention(model: nn.Module) -> Model:
    if not isinstance(model, Model):
        raise UsageError(
            f"this study reads attention through a model's taps, and this {type(model).__name__} has none. "
            "Load it with vitadel.models.load, or give its network to vitadel.models.wrap."
        )
    if not model.taps.attentions():
        raise UsageError(
            f"{type(model.net).__name__} has no attention, so there is no softmax that could mask a gradient. "
            "Choose a ViT, DeiT, CaiT, XCiT, Swin or LeViT, or use `vitadel evaluate`, which judges any model."
        )
    half = next((w.dtype for w in model.parameters() if w.dtype in (torch.float16, torch.bfloat16)), None)
    if half is not None:
        raise UsageError(f"this study is about what float32 can hold, got {half} weights. Call model.float() first.")
    return model
