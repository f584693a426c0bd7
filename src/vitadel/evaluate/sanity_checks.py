"""What a model gives away before any attack.

Shape letters: B images, K classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitadel.attacks import Flag, KeptBuffers, in_own_precision, isolated

# float32 softmax outputs sum to one within this, half-precision ones too; logits practically never do
_SUM_TOLERANCE = 4e-3
# logits count as different if they move by more than this share of their length
_SAME = 1e-4
# lengths of the steps along which slopes are measured: answers may bend within the longer ones, and drown in rounding
# within shorter ones; and the median relative error from which slopes are disbelieved if no step speaks for them
_STEPS, _SLOPE_ERROR = (0.02, 0.005, 0.00125), 0.5


def sanity_flags(model: nn.Module, x: Tensor) -> tuple[Flag, ...]:
    """Flags for a model that answers at random or with probabilities, or whose gradient is not that of its answers."""
    with isolated(model, 0, x.device):
        answers = tuple(_about_answers(model, x))
        # through noise no slope can be measured, nor through the rounding of half precision
        noisy = any(flag.code in ("randomized", "stateful") for flag in answers)
        half = in_own_precision(model, x).dtype in (torch.float16, torch.bfloat16)
        return (*answers, *_about_gradients(model, x, with_slope=not (noisy or half)))


def _answers(model: nn.Module, x: Tensor) -> Tensor:
    return model(in_own_precision(model, x)).float()


@torch.no_grad()
def _about_answers(model: nn.Module, x: Tensor) -> Iterator[Flag]:
    kept = KeptBuffers.of(model)
    first, second = _answers(model, x), _answers(model, x)
    if names := kept.changed():
        sentence = (
            f"the model changes its own buffers while it answers ({', '.join(names[:3])}): what it says depends on "
            "what it was asked before. Every attack starts from the buffers as they were"
        )
        yield Flag("stateful", sentence, {"buffers": len(names)})
    changed_B = (first - second).norm(dim=1) > _SAME * first.norm(dim=1)
    if changed := int((changed_B | (first.argmax(1) != second.argmax(1))).sum()):
        sentence = (
            f"{changed} of {len(x)} images got other logits when asked twice: one draw proves little; "
            "the suite adversarial-rand takes the mean of many"
        )
        yield Flag("randomized", sentence, {"changed": changed, "images": len(x)})
    off_by = float((first.sum(1) - 1).abs().max())
    if bool((first >= 0).all()) and off_by < _SUM_TOLERANCE:
        sentence = "the model returns probabilities: attacks need logits, and a saturated softmax hides the gradient"
        yield Flag("probabilities", sentence, {"largest_distance_of_sum_from_1": off_by})


def _about_gradients(model: nn.Module, x: Tensor, *, with_slope: bool) -> Iterator[Flag]:
    pixels = x.detach().clone().requires_grad_()
    with torch.enable_grad(), _counting_backward_passes() as inside:
        z_BK = _answers(model, pixels)
        top_B = z_BK.detach().argmax(1, keepdim=True)
        top_logit_B = z_BK.gather(1, top_B)
    if inside:
        sentence = f"the model's forward pass made {len(inside)} backward passes: it adapts to each input at test time"
        yield Flag("gradient-path", sentence, {"backward_passes": len(inside)})
    if not with_slope or not z_BK.requires_grad:
        return
    (grad,) = torch.autograd.grad(top_logit_B, pixels, torch.ones_like(top_logit_B), materialize_grads=True)
    error, judged = _slope_error(model, x, grad, top_B)
    if error > _SLOPE_ERROR:
        sentence = (
            f"the gradient is off by {error:.0%} (median of {judged} images) from the slope it should describe: "
            "the backward pass is not that of the forward pass, or the answers jump"
        )
        yield Flag("gradient-path", sentence, {"median_relative_error": error, "images": judged})


@torch.no_grad()
def _slope_error(model: nn.Module, x: Tensor, grad: Tensor, top_B: Tensor) -> tuple[float, int]:
    """The median relative difference between the gradient's length and the slope measured along it, at best."""
    length_B = grad.flatten(1).norm(dim=1)
    known_B = length_B > 0
    if not bool(known_B.any()):
        return 0.0, 0
    way = grad / length_B.clamp_min(1e-30).view(-1, *(1 for _ in x.shape[1:]))
    least = float("inf")
    for step in _STEPS:
        points = (x + step * way, x - step * way)
        ahead, behind = (_answers(model, point).gather(1, top_B).squeeze(1) for point in points)
        error_B = ((ahead - behind) / (2 * step) - length_B).abs() / length_B.clamp_min(1e-30)
        least = min(least, float(error_B[known_B].median()))
        if least <= _SLOPE_ERROR:
            break
    return least, int(known_B.sum())


@contextmanager
def _counting_backward_passes() -> Iterator[list[None]]:
    """Every backward pass inside, however the caller got hold of it: they all go through this one function."""
    passes: list[None] = []
    door: Any = torch.autograd
    real = door._engine_run_backward

    def counted(*args: object, **kwargs: object) -> object:
        passes.append(None)
        return real(*args, **kwargs)

    door._engine_run_backward = counted
    try:
        yield passes
    finally:
        door._engine_run_backward = real
