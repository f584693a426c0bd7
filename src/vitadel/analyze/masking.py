"""Does a model hide its gradient in the softmax of its attention? Measurements, and a verdict.

The diagnostics of Jain & Dutta (CVPR 2024): gaps between pre-softmax scores, accuracy against radius, iterations and
the number of rescaled blocks. Beside them controls: attacks that need no gradient, a second try of the same attack, the
model itself as the judge. How all is weighed: `vitadel.analyze.verdict`.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from vitadel import threats as threats
from vitadel.analyze.attack_runner import AttackRunner
from vitadel.analyze.measures import Work
from vitadel.analyze.study import Bench, InHand, Parts, as_it_is
from vitadel.attacks import PGD, Scaling
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, CountOrZero, Positive, Range, check_ranges
from vitadel.core.progress import Notify, silent
from vitadel.models import Model
from vitadel.threats import Threat


@dataclass(frozen=True, slots=True)
class Masking:
    """Is the gradient hidden in the attention? Gaps, zero gradients, curves, controls, a verdict.

    `steps` are those of the attack that others are compared with. `iterations` are tried for PGD and for AAS; `shares`
    of the radius, and 100/255, with `curve_steps` each; `blocks` are numbers of attentions that are rescaled, first to
    last, () for none, quarters and all. `targets` counts the rivals in the multi-targeted attack, `queries` what Square
    may ask (0 leaves it out); `scaling` finds the factors.
    """

    about: ClassVar[str] = "is the gradient hidden in the attention? Gaps, zero gradients, curves, controls, a verdict"
    needs_threat: ClassVar[bool] = True

    steps: Count = 100
    iterations: tuple[Count, ...] = (10, 20, 50, 100, 200, 500, 1000)
    shares: tuple[Positive, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    curve_steps: Count = 20
    blocks: tuple[CountOrZero, ...] = ()
    targets: Count = 9
    queries: Annotated[int, Range(ge=0, hint="0 leaves Square out.")] = 5000
    scaling: Scaling = field(default_factory=Scaling)

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.iterations:
            raise UsageError("Masking.iterations is empty. Write for example iterations=10+20.")

    @classmethod
    def quick(cls) -> "Masking":
        """The same tests with small budgets, for a first look; "not masked" means less here."""
        return cls(
            steps=20,
            iterations=(5, 20, 50),
            shares=(0.5, 1.0),
            curve_steps=20,
            targets=3,
            queries=500,
            scaling=Scaling(steps=3, held=32, probe=PGD(steps=10)),
        )

    def refuse(self, model: nn.Module) -> None:
        _with_attention(model)

    def carry_out(self, bench: Bench) -> dict[str, object]:
        """All measurements and the verdict; parts that are known are not measured again."""
        if len(bench.images) == 0:
            raise UsageError("there are no images to study. Choose a longer slice of the data.")
        tapped = _with_attention(bench.model)
        work = Work(
            self,
            tapped,
            AttackRunner(tapped, bench.images, bench.seed, bench.batch, bench.notify),
            bench.parts,
            bench.threat,
        )
        result = work.result()
        bench.parts.close(result)
        return result


def masking(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat | str = "linf:8/255",
    settings: Masking | None = None,
    *,
    seed: int = 0,
    batch: int | None = None,
    notify: Notify = silent,
) -> dict[str, object]:
    """Is `model` hiding its gradient on the images `x` with labels `y`? `result["verdict"]` says."""
    radius = threats.as_threat(threat)
    with as_it_is(model):
        return (settings or Masking()).carry_out(Bench(model, InHand(x, y), Parts(), radius, seed, batch, notify))


def _with_attention(model: nn.Module) -> Model:
    if not isinstance(model, Model):
        raise UsageError(
            f"this study looks into attention through a model's taps, and this {type(model).__name__} has none. "
            "Load it with vitadel.models.load, or give its network to vitadel.models.wrap."
        )
    if not model.taps.attentions():
        raise UsageError(
            f"{type(model.net).__name__} has no attention, so there is no softmax to hide a gradient in. "
            "This study wants a ViT, DeiT, CaiT, XCiT, Swin or LeViT; `vitadel evaluate` judges any model."
        )
    half = next((w.dtype for w in model.parameters() if w.dtype in (torch.float16, torch.bfloat16)), None)
    if half is not None:
        raise UsageError(f"this study is about what float32 can hold, got {half} weights. Call model.float() first.")
    return model
