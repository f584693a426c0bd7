"""The L1 side of Auto-PGD: sparse steps whose sparsity follows the best point found so far.

Croce & Hein 2021 (arXiv:2103.01208). Shape letters: B items.
"""

from functools import lru_cache

import torch
from torch import Tensor

from vitadel.attacks.engine.iterative import State, StepContext
from vitadel.threats import per_image, project_l1

# sparsity of the steps: of the whole image at first, then of the best point divided by this
_FIRST_SHARE, _DENSER = 0.2, 1.5
# the step shrinks by _DENSER, down to a tenth of the radius, until the best point has become sparser than this
_SPARSER, _SHORTEST = 0.95, 0.1


def phases(steps: int, wide_start: bool) -> list[tuple[int, int]]:
    """(multiple of the radius, steps) of every phase of a search."""
    if not wide_start:
        return [(1, steps)]
    part = min(-(-3 * steps // 10), (steps - 1) // 2)
    return [(times, count) for times, count in ((3, part), (2, part), (1, steps - 2 * part)) if count > 0]


def start(items: StepContext, steps: int, wide_start: bool) -> State:
    """A Gaussian image projected on the ball of the first phase."""
    x0 = items.x0
    eps = items.threat.eps * phases(steps, wide_start)[0][0]
    x = project_l1(x0 + items.rng.normal(*x0.shape[1:], dtype=x0.dtype), x0, eps)
    nothing_B = torch.zeros(len(x0), device=x0.device, dtype=x0.dtype)
    values = x0[0].numel()
    changed_B = _changed(x, x0) if wide_start else nothing_B + values
    return {
        "x": x,
        "best": x,
        "grad_best": torch.zeros_like(x0),
        "gain_best": nothing_B - torch.inf,
        "step_size": nothing_B + eps,
        "share": changed_B / values / _DENSER if wide_start else nothing_B + _FIRST_SHARE,
        "changed": changed_B,
    }


def move(items: StepContext, state: State, objective_B: Tensor, grad: Tensor, steps: int, wide_start: bool) -> State:
    """Where to go from a point whose gain and gradient are known."""
    x, x0, values = state["x"], items.x0, items.x0[0].numel()
    eps_B, check_B, last_B = (column[items.step_B] for column in _timetable(steps, wide_start, x.device))
    eps_B = eps_B.to(x.dtype) * items.threat.eps
    better_B = objective_B > state["gain_best"]
    better = per_image(better_B, x)
    best, grad_best = torch.where(better, x, state["best"]), torch.where(better, grad, state["grad_best"])
    gain_best_B = torch.where(better_B, objective_B.to(x.dtype), state["gain_best"])

    now_B = _changed(best, x0)
    sparser_B = check_B & (now_B / state["changed"].clamp_min(1) < _SPARSER)
    step_B = torch.where(sparser_B, eps_B, state["step_size"] / torch.where(check_B, _DENSER, 1.0))
    step_B = step_B.maximum(_SHORTEST * eps_B).minimum(eps_B)
    share_B = torch.where(check_B, now_B / values / _DENSER, state["share"])
    changed_B = torch.where(check_B, now_B, state["changed"])
    back = per_image(sparser_B, x)
    x, grad = torch.where(back, best, x), torch.where(back, grad_best, grad)
    ahead = project_l1(_sparse_step(x, grad, step_B, share_B), x0, eps_B)

    # the last point of a phase was judged just now: the next phase starts anew from the best one
    next_eps_B = _timetable(steps, wide_start, x.device)[0][items.step_B + 1].to(x.dtype) * items.threat.eps
    anew = project_l1(best, x0, next_eps_B) if wide_start else best
    fresh_B = _changed(anew, x0)
    over = per_image(last_B, x)
    return {
        "x": torch.where(over, anew, ahead),
        "best": torch.where(over, anew, best),
        "grad_best": grad_best,
        "gain_best": gain_best_B.masked_fill(last_B, -torch.inf),
        "step_size": torch.where(last_B, next_eps_B, step_B),
        "share": torch.where(last_B, fresh_B / values / _DENSER, share_B),
        "changed": torch.where(last_B, fresh_B, changed_B),
    }


@lru_cache(maxsize=64)
def _timetable(steps: int, wide_start: bool, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For every step: the multiple of the radius, whether the step size is reconsidered, whether a phase ends."""
    radius: list[float] = []
    check: list[bool] = []
    last: list[bool] = []
    plan = phases(steps, wide_start)
    for place, (times, count) in enumerate(plan):
        every = max(int(0.04 * count), 1)
        radius += [float(times)] * (count + 1)
        check += [step > 0 and step % every == 0 for step in range(count + 1)]
        last += [False] * count + [place + 1 < len(plan)]
    radius.append(radius[-1])  # somebody looks one step ahead
    return (
        torch.tensor(radius, device=device),
        torch.tensor([*check, False], device=device),
        torch.tensor([*last, False], device=device),
    )


def _sparse_step(x: Tensor, grad: Tensor, step_B: Tensor, share_B: Tensor) -> Tensor:
    """A step of L1 length `step_B`, shared evenly by the steepest `share_B` of the values."""
    slope = grad.flatten(1).abs()
    values = slope.shape[1]
    place_B = ((1 - share_B) * values).clamp(0, values - 1).long()
    least_B = slope.sort(1).values.gather(1, place_B[:, None]).squeeze(1)
    signs = grad.sign() * (grad.abs() >= per_image(least_B, grad))
    moved_B = signs.abs().flatten(1).sum(1)
    return x + signs * per_image(step_B / (moved_B + 1e-10), x)


def _changed(x: Tensor, x0: Tensor) -> Tensor:
    return (x != x0).flatten(1).sum(1).to(x.dtype)
