"""Pictures that several surveys show."""

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from vitadel.attacks import Attack
from vitadel.evaluate.suites.base import Desk
from vitadel.goals import Untargeted
from vitadel.runs.exhibits import Picture, Pictures
from vitadel.threats import Threat

_SIDE = 112  # pixels of a picture
_IMAGES = 6


def picture(image: Tensor, note: str = "") -> Picture:
    """An image [3, H, W] in [0, 1], made smaller if it is large."""
    small = adaptive_avg_pool2d(image[None], _SIDE)[0] if min(image.shape[-2:]) > _SIDE else image
    return Picture.of(small.cpu().numpy(), note=note)


def adversaries(
    desk: Desk, attack: Attack, threat: Threat, before: list[int], after: list[int], caption: str
) -> Pictures:
    """The first images, what an attack adds to them, and what comes of it; chosen before anything is known of them."""
    rows = torch.arange(min(_IMAGES, len(desk.images)))
    x = desk.images.images(rows).to(desk.device)
    goal = Untargeted(desk.images.labels[rows].to(desk.device))
    found = attack(desk.model, x, goal, threat, seed=desk.seed, index_B=rows).x_adv
    change = ((found - x) / (2 * threat.eps) + 0.5).clamp(0, 1)
    names = desk.data.classes
    cells = [
        [picture(x[at], _class(names, before[at])), picture(change[at]), picture(found[at], _class(names, after[at]))]
        for at in range(len(rows))
    ]
    labels = [_class(names, label) for label in desk.images.labels[rows].tolist()]
    return Pictures("Before and after", caption, cells, labels, ["as it is", "change", "attacked"])


def _class(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else str(number)
