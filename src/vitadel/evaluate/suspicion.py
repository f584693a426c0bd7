"""What a model's answers give away before any attack."""

import torch
from torch import Tensor, nn

from vitadel.attacks import Flag, frozen

# float32 softmax outputs sum to one within this; logits practically never do
_SUM_TOLERANCE = 1e-3


@torch.no_grad()
def suspicions(model: nn.Module, x: Tensor) -> tuple[Flag, ...]:
    """Flags for a model that answers differently each time, or with probabilities instead of logits."""
    with frozen(model):
        first, second = model(x), model(x)
    flags = []
    if changed := int((first != second).any(1).sum()):
        sentence = f"{changed} of {len(x)} images got other logits when asked twice: one draw proves little"
        flags.append(Flag("randomised", sentence, {"changed": changed, "images": len(x)}))
    off_by = float((first.sum(1) - 1).abs().max())
    if bool((first >= 0).all()) and off_by < _SUM_TOLERANCE:
        sentence = "the model returns probabilities: attacks need logits, and a saturated softmax hides the gradient"
        flags.append(Flag("probabilities", sentence, {"largest_distance_of_sum_from_1": off_by}))
    return tuple(flags)
