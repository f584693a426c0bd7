"""Checks of a model before any attack, as AutoAttack has them: randomness, probabilities, masked gradients.

Shape letters: B images, K classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitadel.attacks.isolation import isolated
from vitadel.attacks.oracle import in_own_precision
from vitadel.core.buffers import SavedBuffers
from vitadel.core.flags import Flag
from vitadel.threats import per_image

# float32 softmax outputs sum to one within this, half-precision ones too; logits practically never do
_SUM_TOLERANCE = 4e-3
# logits count as different if they change by more than this fraction of their norm
_SAME = 1e-4
# step sizes of finite differences (curvature limits the long ones, rounding the short ones), and the median relative
# error above which a gradient is flagged, if it is exceeded at every step size
CHECKED_STEPS, _GRADIENT_ERROR = (0.02, 0.005, 0.00125), 0.5


def sanity_flags(model: nn.Module, x: Tensor) -> tuple[Flag, ...]:
    """Check on a few images for properties of a model that make attacks unreliable.

    Args:
        model: The model.
        x: [B, 3, H, W] in [0, 1], on its device.

    Returns:
        Flags with the codes `stateful` (it changes its buffers), `randomized`, `probabilities` (instead of logits) and
        `gradient-path` (backward passes inside the forward pass, or gradients that finite differences contradict).
    """
    with isolated(model, 0, x.device):
        flags = tuple(_output_flags(model, x))
        # noise and the rounding of half precision are larger than finite differences
        noisy = any(flag.code in ("randomized", "stateful") for flag in flags)
        half = in_own_precision(model, x).dtype in (torch.float16, torch.bfloat16)
        return (*flags, *_gradient_flags(model, x, finite_differences=not (noisy or half)))


def _logits(model: nn.Module, x: Tensor) -> Tensor:
    return model(in_own_precision(model, x)).float()


@torch.no_grad()
def _output_flags(model: nn.Module, x: Tensor) -> Iterator[Flag]:
    kept = SavedBuffers.of(model)
    first, second = _logits(model, x), _logits(model, x)
    if names := kept.changed():
        sentence = (
            f"the model changes its own buffers in the forward pass ({', '.join(names[:3])}): its logits depend on "
            "earlier inputs. Every attack starts from the original buffers"
        )
        yield Flag("stateful", sentence, {"buffers": len(names)})
    changed_B = (first - second).norm(dim=1) > _SAME * first.norm(dim=1)
    if changed := int((changed_B | (first.argmax(1) != second.argmax(1))).sum()):
        sentence = (
            f"{changed} of {len(x)} images got other logits in a second forward pass: one sample proves little; "
            "the suite autoattack-rand takes the mean of many"
        )
        yield Flag("randomized", sentence, {"changed": changed, "images": len(x)})
    off_by = float((first.sum(1) - 1).abs().max())
    if bool((first >= 0).all()) and off_by < _SUM_TOLERANCE:
        sentence = "the model returns probabilities: attacks need logits, and a saturated softmax hides the gradient"
        yield Flag("probabilities", sentence, {"largest_distance_of_sum_from_1": off_by})


def _gradient_flags(model: nn.Module, x: Tensor, *, finite_differences: bool) -> Iterator[Flag]:
    pixels = x.detach().clone().requires_grad_()
    with torch.enable_grad(), _counting_backward_passes() as inside:
        z_BK = _logits(model, pixels)
        top_B = z_BK.detach().argmax(1, keepdim=True)
        top_logit_B = z_BK.gather(1, top_B)
    if inside:
        sentence = f"the model's forward pass made {len(inside)} backward passes: it adapts to each input at test time"
        yield Flag("gradient-path", sentence, {"backward_passes": len(inside)})
    if not finite_differences or not z_BK.requires_grad:
        return
    (grad,) = torch.autograd.grad(top_logit_B, pixels, torch.ones_like(top_logit_B), materialize_grads=True)
    error, images = _gradient_error(model, x, grad, top_B)
    if error > _GRADIENT_ERROR:
        sentence = (
            f"the gradient differs by {error:.0%} (median of {images} images) from finite differences: "
            "the backward pass does not match the forward pass, or the logits are discontinuous"
        )
        yield Flag("gradient-path", sentence, {"median_relative_error": error, "images": images})


@torch.no_grad()
def _gradient_error(model: nn.Module, x: Tensor, grad: Tensor, top_B: Tensor) -> tuple[float, int]:
    """The median relative error of the gradient's norm against central differences along it, at the best step size."""
    norm_B = grad.flatten(1).norm(dim=1)
    nonzero_B = norm_B > 0
    if not bool(nonzero_B.any()):
        return 0.0, 0
    direction = grad / per_image(norm_B.clamp_min(1e-30), x)
    least = float("inf")
    for step in CHECKED_STEPS:
        points = (x + step * direction, x - step * direction)
        ahead, behind = (_logits(model, point).gather(1, top_B).squeeze(1) for point in points)
        error_B = ((ahead - behind) / (2 * step) - norm_B).abs() / norm_B.clamp_min(1e-30)
        least = min(least, float(error_B[nonzero_B].median()))
        if least <= _GRADIENT_ERROR:
            break
    return least, int(nonzero_B.sum())


@contextmanager
def _counting_backward_passes() -> Iterator[list[None]]:
    """Count backward passes inside, however they are called: they all go through one function of torch."""
    passes: list[None] = []
    autograd: Any = torch.autograd
    original = autograd._engine_run_backward

    def counted(*args: object, **kwargs: object) -> object:
        passes.append(None)
        return original(*args, **kwargs)

    autograd._engine_run_backward = counted
    try:
        yield passes
    finally:
        autograd._engine_run_backward = original
