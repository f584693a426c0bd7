"""Runs an iterative attack on many images, in batches that stay full.

Shape letters: B images, T targets.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitadel.attacks.engine.batching import ContinuousBatch, ImageResult, WorkQueue
from vitadel.attacks.engine.iterative import IterativeAttack
from vitadel.attacks.engine.precision import PRECISIONS
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.core.flags import Flag
from vitadel.core.numeric import Count, Steps, check_ranges
from vitadel.core.oom import run_in_parts
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal, Untargeted, require_untargeted, top_other_classes
from vitadel.losses import dlr
from vitadel.threats import Threat

# pixel values per batch on a CPU by default
_CPU_VALUES = 1 << 20


@dataclass(frozen=True, slots=True)
class Engine:
    """How an attack is executed: batch size, precision, compilation.

    With `precision="float32"` and `compile=False`, results do not depend on the other settings.

    Args:
        batch_size: Items (image-target pairs) attacked at once; halved if they do not fit into memory. By default 1024
            on a GPU, and on a CPU a number that depends on the image size.
        sync_interval: Steps between two checks of which items are finished. By default 1 on a CPU, about 16 on a GPU,
            where each check waits for the device.
        cuda_graph: Capture a step as a CUDA graph and replay it. By default on a GPU.
        precision: "float32", "bf16" or "fp16" for the search; a success is always verified in float32. By default
            fp16 on a GPU.
        compile: Compile the model with `torch.compile`.

    Raises:
        UsageError: If a value is out of range, or the precision unknown.

    Example:
        >>> vitadel.robustness(model, x, y, "linf:8/255", engine=Engine(batch_size=256, precision="float32"))
    """

    batch_size: Count | None = None
    sync_interval: Steps | None = None
    cuda_graph: bool | None = None
    precision: str | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.precision is not None and self.precision not in PRECISIONS:
            raise unknown_name_error("precision", self.precision, PRECISIONS)

    def on(self, device: torch.device, values: int = 3 * 32 * 32) -> "Engine":
        """This engine with every default resolved for a device and images of `values` pixel values."""
        gpu = device.type == "cuda"
        if self.cuda_graph and not gpu:
            raise UsageError(f"Engine.cuda_graph needs a CUDA device, and the model is on {device}. Leave it out.")
        return replace(
            self,
            # a GPU out of memory raises an error; a process out of memory on a CPU is killed by the system
            batch_size=self.batch_size or (1024 if gpu else max(16, min(256, _CPU_VALUES // values))),
            sync_interval=self.sync_interval or (16 if gpu else 1),
            cuda_graph=gpu if self.cuda_graph is None else self.cuda_graph,
            precision=self.precision or ("fp16" if gpu else "float32"),
        )

    def search(
        self, attack: IterativeAttack, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams
    ) -> Tensor:
        """The best candidate per image of one batch, not verified."""
        others_BT, num_classes = _top_other_classes(attack, model, x0, goal)

        def fetch(index_B: Tensor) -> tuple[Tensor, Goal, Tensor]:
            index_B = index_B.to(x0.device)
            return x0[index_B], goal.at(index_B), others_BT[index_B]

        x = x0.clone()
        engine = self.on(x0.device, x0[0].numel())
        for results in engine.run(attack, model, WorkQueue(rng, num_classes, fetch), threat):
            for result in results:
                x[result.index] = result.x_adv
        return x

    def run(
        self,
        attack: IterativeAttack,
        model: Oracle,
        queue: WorkQueue,
        threat: Threat,
        judge: Oracle | None = None,
        flags: list[Flag] | None = None,
    ) -> Iterator[list[ImageResult]]:
        """Attack the images of a queue; their results are yielded as they finish, in any order.

        Args:
            attack: The iterative attack.
            model: The model to search on, perhaps in reduced precision.
            queue: The images.
            threat: The threat model.
            judge: The float32 model: a success counts only if it agrees, otherwise the search continues.
            flags: Receives a flag if the step could not be captured as a CUDA graph.
        """
        chosen = self.on(queue.rng.key_B.device)
        assert chosen.batch_size is not None
        assert chosen.sync_interval is not None
        yield from ContinuousBatch(
            batch_size=chosen.batch_size,
            sync_interval=chosen.sync_interval,
            use_cuda_graph=bool(chosen.cuda_graph),
            attack=attack,
            model=model,
            queue=queue,
            threat=threat,
            judge=judge,
            flags=[] if flags is None else flags,
        ).results()


def _top_other_classes(attack: IterativeAttack, model: Oracle, x0: Tensor, goal: Goal) -> tuple[Tensor, int]:
    """The attack's target classes per image and the number of classes; if it needs neither, no forward pass and 0."""
    uses_dlr = isinstance(goal, Untargeted) and goal.loss is dlr  # which needs three classes
    if not attack.targets and not uses_dlr:
        return torch.zeros(len(x0), 0, dtype=torch.int64, device=x0.device), 0
    label_B = require_untargeted(goal, "an attack with targets").label_B
    with torch.no_grad():
        z_BK = run_in_parts(model, x0)
    num_classes = z_BK.shape[1]
    return top_other_classes(z_BK, label_B, min(attack.targets, num_classes - 1)), num_classes
