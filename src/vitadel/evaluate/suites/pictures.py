"""Pictures of several suites: always the first images, not selected ones."""

import torch
from torch import Tensor

from vitadel.attacks import Attack
from vitadel.evaluate.context import Context
from vitadel.evaluate.images import thumbnail
from vitadel.runs.exhibits import Picture, Pictures
from vitadel.threats import Threat

_ATTACKED = 6  # images


def first_images(ctx: Context, count: int) -> Tensor:
    """The indices of the first images, at most `count`."""
    return torch.arange(min(count, len(ctx.images)))


def picture(image: Tensor, note: str = "") -> Picture:
    """An image [3, H, W] in [0, 1], scaled down if it is large."""
    return Picture.of(thumbnail(image).cpu().numpy(), note=note)


def attack_pictures(
    ctx: Context, attack: Attack, threat: Threat, before: list[int], after: list[int], caption: str
) -> Pictures:
    """The first images, the perturbation that an attack adds, and the result, with the predictions on both."""
    batch = ctx.batch(first_images(ctx, _ATTACKED))
    x_adv = ctx.attack(attack, batch, threat=threat).x_adv
    change = ((x_adv - batch.x) / (2 * threat.eps) + 0.5).clamp(0, 1)
    cells = [
        [
            picture(batch.x[number], ctx.class_name(before[number])),
            picture(change[number]),
            picture(x_adv[number], ctx.class_name(after[number])),
        ]
        for number in range(len(batch))
    ]
    labels = [ctx.class_name(label) for label in batch.y.tolist()]
    return Pictures("Before and after", caption, cells, labels, ["clean", "perturbation", "attacked"])
