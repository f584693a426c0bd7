"""The Square attack: random search, no gradients.

Shape letters: B items, C channels, H rows and W columns of pixels.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from vitadel.attacks.engine.iterative import IterativeAttack, Query, State, StepContext
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range, Steps
from vitadel.losses import Loss, margin
from vitadel.threats import Threat, per_image

# after this many queries the share of the image that a window covers is halved
_HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)


@dataclass(frozen=True, slots=True)
class Square(IterativeAttack):
    """Square Attack (Andriushchenko et al. 2020, arXiv:1912.00049), with AutoAttack's schedule of window sizes.

    Every query changes a random window of the best point so far and is kept if the objective increases. What a window
    receives is defined by the threat. Difference from the authors' code: each image has its own windows, which reach
    every pixel; there, one window serves the whole batch and never covers the last row and column.

    Args:
        queries: The number of proposals.
        p_init: The share of the image that the first windows cover.
        restarts: How often an image that remains robust is attacked, with other random numbers.

    Raises:
        UsageError: If images are not [batch, channels, rows, columns].

    Example:
        >>> result = Square(queries=5000)(model, x, y, "linf:8/255")
    """

    former_names: ClassVar[dict[str, str]] = {"share": "p_init"}

    default_loss: ClassVar[Loss] = staticmethod(margin)

    queries: Steps = 5000
    p_init: Annotated[float, Range(gt=0, le=1, hint="It is a part of the image.")] = 0.8
    restarts: Steps = 1

    def num_steps(self, threat: Threat) -> int:
        return self.queries + 1  # the starting point is evaluated, too

    def start(self, model: Oracle, ctx: StepContext) -> State:
        x0 = ctx.x0
        if x0.ndim != 4:
            raise UsageError(
                f"the square attack needs images [batch, channels, rows, columns], got {list(x0.shape)}. "
                "Write x.unsqueeze(0) for one image, or x.unsqueeze(1) for images without channels."
            )
        x = ctx.threat.square_start(x0, ctx.rng.fold(torch.zeros_like(ctx.step_B)))
        worst_B = torch.full((len(x0),), -torch.inf, device=x0.device, dtype=x0.dtype)
        return {"x": x, "best": x, "best_objective": worst_B}

    def step(self, model: Oracle, ctx: StepContext, state: State) -> tuple[Query, State]:
        x, threat = state["x"], ctx.threat
        z_BK = model(x)
        objective_B = ctx.goal.objective(z_BK).to(x.dtype)
        best = torch.where(per_image(objective_B > state["best_objective"], x), x, state["best"])
        sides = window_sides(self.p_init, self.queries, *x.shape[2:], threat.square_min_side, x.device)
        proposal = threat.square_proposal(best, ctx.x0, sides[ctx.step_B], ctx.rng.fold(ctx.step_B + 1))
        new = {"x": proposal, "best": best, "best_objective": objective_B.maximum(state["best_objective"])}
        return Query(x, z_BK), new


@lru_cache(maxsize=64)
def window_sides(p_init: float, queries: int, height: int, width: int, smallest: int, device: torch.device) -> Tensor:
    """[queries + 1] the side of every query's window; odd where it must hold a pattern of at least 3 pixels."""
    sides = []
    for query in range(queries + 1):
        share = p_init / 2 ** sum(query > after for after in _HALVED_AFTER)
        side = max(round(math.sqrt(share * height * width)), smallest)
        side += smallest == 3 and side % 2 == 0
        sides.append(min(side, height, width))
    return torch.tensor(sides, device=device)
