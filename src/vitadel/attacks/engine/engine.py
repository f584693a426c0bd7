"""Moves the items of a walk through a model, in batches that stay full.

Shape letters: B images, T targets.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitadel.attacks.engine.batching import ContinuousBatch
from vitadel.attacks.engine.iterative import IterativeAttack
from vitadel.attacks.engine.precision import PRECISIONS
from vitadel.attacks.engine.queue import ImageResult, WorkQueue
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError, unknown
from vitadel.core.flags import Flag
from vitadel.core.numeric import Count, check_ranges
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal, Untargeted, top_other_classes
from vitadel.losses import dlr
from vitadel.threats import Threat

# pixel values that a CPU works on at once, where nobody says otherwise
_CPU_VALUES = 1 << 20
_MANY = 1 << 30  # classes, where nobody asked how many


@dataclass(frozen=True, slots=True)
class Engine:
    """How a search is carried out; no verdict of a float32 search depends on it. None means: what suits the device.

    `rows` are moved at once, and halved if they do not fit. About `interval` steps lie between two questions to the
    device: a CPU is asked after every step, which costs nothing there. `replay` records a step as a CUDA graph.
    `precision` is that of the search (a success is always judged in float32), `compile` sends the model through
    `torch.compile` first.
    """

    rows: Count | None = None
    interval: Count | None = None
    replay: bool | None = None
    precision: str | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.precision is not None and self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)

    def on(self, device: torch.device, values: int = 3 * 32 * 32) -> "Engine":
        """The same with every choice made for images of so many pixel values."""
        gpu = device.type == "cuda"
        if self.replay and not gpu:
            raise UsageError(f"Engine.replay records CUDA graphs, and the model is on {device}. Leave it out.")
        return replace(
            self,
            # a GPU says when it is full; a computer that runs out of memory just kills
            rows=self.rows or (1024 if gpu else max(16, min(256, _CPU_VALUES // values))),
            interval=self.interval or (16 if gpu else 1),
            replay=gpu if self.replay is None else self.replay,
            precision=self.precision or ("fp16" if gpu else "float32"),
        )

    def search(
        self, walk: IterativeAttack, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams
    ) -> Tensor:
        """The best candidates for one batch, unjudged."""
        others_BT, classes = _rivals(walk, model, x0, goal)

        def fetch(at: Tensor) -> tuple[Tensor, Goal, Tensor]:
            at = at.to(x0.device)
            return x0[at], goal.at(at), others_BT[at]

        x = x0.clone()
        suited = self.on(x0.device, x0[0].numel())
        for findings in suited.hunt(walk, model, WorkQueue(rng, classes, fetch), threat):
            for finding in findings:
                x[finding.place] = finding.x_adv
        return x

    def hunt(
        self,
        walk: IterativeAttack,
        model: Oracle,
        pool: WorkQueue,
        threat: Threat,
        judge: Oracle | None = None,
        flags: list[Flag] | None = None,
    ) -> Iterator[list[ImageResult]]:
        """What becomes of the images of the pool, as soon as it is known.

        With a `judge`, a success counts only if that model agrees, and the search goes on otherwise. `flags` gets one
        if the step could not be recorded.
        """
        chosen = self.on(pool.rng.key_B.device)
        assert chosen.rows is not None
        assert chosen.interval is not None
        hunt = ContinuousBatch(chosen.rows, chosen.interval, bool(chosen.replay), walk, model, pool, threat, judge)
        if flags is not None:
            hunt.flags = flags
        while findings := self._turn(hunt):
            if findings[0]:
                yield findings[0]

    @torch.no_grad()  # per turn: around a `yield` it would reach the caller
    def _turn(self, hunt: ContinuousBatch) -> tuple[list[ImageResult]] | None:
        """Some steps and what they found; None when nobody is left."""
        if not hunt.fill():
            return None
        hunt.advance()
        return (hunt.collect(),)


def _rivals(walk: IterativeAttack, model: Oracle, x0: Tensor, goal: Goal) -> tuple[Tensor, int]:
    """The rivals of the labels of one batch and the number of classes; nothing is asked of a walk without targets."""
    climbs_dlr = isinstance(goal, Untargeted) and goal.loss is dlr  # which few classes do not allow
    if not walk.targets and not climbs_dlr:
        return torch.zeros(len(x0), 0, dtype=torch.int64, device=x0.device), _MANY
    if not isinstance(goal, Untargeted):
        raise UsageError(f"an attack with targets of its own wants an Untargeted goal, got {type(goal).__name__}.")
    z_BK = _clean_logits(model, x0)
    classes = z_BK.shape[1]
    return top_other_classes(z_BK, goal.label_B, min(walk.targets, classes - 1)), classes


@torch.no_grad()
def _clean_logits(model: Oracle, x0: Tensor) -> Tensor:
    try:
        return model(x0)
    except torch.OutOfMemoryError:
        if len(x0) == 1:
            raise UsageError("out of memory with a single image. Use a smaller model or another device.") from None
    half = len(x0) // 2
    return torch.cat([_clean_logits(model, x0[:half]), _clean_logits(model, x0[half:])])
