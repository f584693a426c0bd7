"""The guided adversarial margin attack.

Shape letters: B items, K classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitadel.attacks.engine.iterative import IterativeAttack, Query, State, StepContext
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, NotNegative, check_ranges
from vitadel.goals import Untargeted
from vitadel.losses import margin
from vitadel.threats import Linf, Threat, per_image


@dataclass(frozen=True, slots=True)
class GAMA(IterativeAttack):
    r"""GAMA-PGD (Sriramanan et al. 2020, arXiv:2011.14969): climbs the margin of the probabilities, guided at first.

    .. math:: \max_{i \neq y} p_i - p_y + \lambda_t \, \lVert p - p(x_0) \rVert_2^2

    The guide draws the answer away from the one to the clean image; its weight falls evenly from `guide` to nothing
    within the first quarter of the steps. Steps of 2 eps are divided by 10 after 60% and 85%. The authors' code guides
    away from the answer at the random start instead; the paper, and we, from the clean one.
    """

    steps: Count = 100
    restarts: Count = 1
    guide: NotNegative = 50.0

    def __post_init__(self) -> None:
        check_ranges(self)

    def num_steps(self, threat: Threat) -> int:
        return self.steps + 1  # a step begins with a question, so the last point needs one more

    @property
    def num_restarts(self) -> int:
        return self.restarts

    def start(self, model: Oracle, items: StepContext) -> State:
        if not isinstance(items.goal, Untargeted):
            raise UsageError(f"GAMA wants an Untargeted goal, got {type(items.goal).__name__}.")
        x0, eps = items.x0, items.threat.eps
        # the authors start from a corner of the ball; elsewhere a random point has to do
        corner = x0 + eps * items.rng.signs(*x0.shape[1:], dtype=x0.dtype)
        x = items.threat.project(corner, x0) if isinstance(items.threat, Linf) else items.threat.sample(x0, items.rng)
        worst_B = torch.full((len(x0),), -torch.inf, device=x0.device, dtype=x0.dtype)
        return {"x": x, "best": x, "lead_best": worst_B, "reference": model(x0).softmax(1)}

    def step(self, model: Oracle, items: StepContext, state: State) -> tuple[Query, State]:
        x, x0, threat = state["x"], items.x0, items.threat
        done_B = items.step_B.to(x.dtype) / self.steps
        weight_B = self.guide * (1 - 4 * done_B).clamp_min(0)
        _, grad, z_BK = model.gradient(x, _Guided(items.goal.classes, state["reference"], weight_B))
        difference_B = margin(z_BK, items.goal.classes).to(x.dtype)
        better_B = difference_B > state["lead_best"]
        step_B = 2 * threat.eps * torch.where(done_B < 0.6, 1.0, torch.where(done_B < 0.85, 0.1, 0.01)).to(x.dtype)
        moved = {
            "x": threat.project(threat.ascend(x, grad, step_B), x0),
            "best": torch.where(per_image(better_B, x), x, state["best"]),
            "lead_best": torch.where(better_B, difference_B, state["lead_best"]),
        }
        return Query(x, z_BK, grad), moved


@dataclass(frozen=True, slots=True)
class _Guided:
    """The margin of the probabilities, plus a weight times their squared distance from the reference."""

    label_B: Tensor
    reference_BK: Tensor
    weight_B: Tensor

    def objective(self, z_BK: Tensor) -> Tensor:
        p_BK = z_BK.softmax(1)
        return margin(p_BK, self.label_B) + self.weight_B * (p_BK - self.reference_BK).square().sum(1)

    def success(self, z_BK: Tensor) -> Tensor:
        return z_BK.argmax(1) != self.label_B

    def at(self, rows: Tensor) -> "_Guided":
        return _Guided(self.label_B[rows], self.reference_BK[rows], self.weight_B[rows])

    @property
    def classes(self) -> Tensor:
        return self.label_B
