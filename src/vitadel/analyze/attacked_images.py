"""What an attack adds to images: made some images at a time, kept across kills, shown as pictures.

Shape letters: B images, C channels, H rows, W columns.
"""

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from vitadel.analyze.study import Bench
from vitadel.attacks import PGD
from vitadel.core.device import device_of
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range
from vitadel.core.oom import in_batches
from vitadel.evaluate.images import Images
from vitadel.goals import Untargeted
from vitadel.threats import Linf, Threat

_CHUNK = 16  # images of a part on a CPU: what a kill costs at most
_VALUES = 1 << 21  # pixel values attacked at once, where nobody says otherwise
_SIDE = 112  # pixels of a small picture
_LUMA = (0.299, 0.587, 0.114)
_Z = 1.959963984540054  # the 97.5% quantile of the normal distribution


class Sign(enum.Enum):
    """Which way round a perturbation is shown: as papers write it, or as Debenedetti's code stores it."""

    ADDED = "adversarial-clean"
    REMOVED = "clean-adversarial"


class Stretch(enum.Enum):
    """What becomes black and white.

    `eps`: the radius (Debenedetti 2022), (d + eps) / (2 eps). `level`: one of 255 gray levels whatever the radius
    (Bhojanapalli et al. 2021), what is larger is cut off; at a radius of 1/255 both are the same.
    """

    EPS = "eps"
    LEVEL = "level"


@dataclass(frozen=True, slots=True)
class AttackedBatch:
    """Images, what an attack made of them, and whether that fools the model; on the CPU."""

    x: Tensor
    adversarial: Tensor
    fooled_B: Tensor


StepSize = Annotated[float, Range(gt=0, hint="Leave it out for 1.5 eps / steps.")]


@dataclass(frozen=True, slots=True)
class ImageAttacker:
    """Attacks images by their rows; what is drawn for an image depends on its row and the seed alone."""

    model: nn.Module
    images: Images
    attack: PGD
    threat: Threat
    seed: int
    batch: int | None

    def __call__(self, rows: Tensor) -> AttackedBatch:
        device = device_of(self.model)
        at_once = self.batch or _at_once(self.images)

        def run_attack(at: Tensor) -> AttackedBatch:
            x, label_B = self.images.images(at).to(device), self.images.labels[at].to(device)
            found = self.attack(self.model, x, Untargeted(label_B), self.threat, seed=self.seed, index_B=at)
            return AttackedBatch(x.cpu(), found.x_adv.cpu(), found.success.cpu())

        made = [one for _, one in in_batches(rows, at_once, run_attack)]
        return AttackedBatch(
            *(torch.cat([getattr(one, name) for one in made]) for name in ("x", "adversarial", "fooled_B"))
        )


def pgd(steps: int, step_size: float | None, threat: Threat, *, random_start: bool = True) -> PGD:
    """The attack of Debenedetti's studies: steps of 1.5 eps / steps where nobody says otherwise, and a random start."""
    return PGD(steps=steps, step_size=step_size or 1.5 * threat.eps / steps, random_start=random_start)


def check_images(images: Images) -> None:
    if len(images) == 0:
        raise UsageError("there are no images to study. Choose a longer slice of the data.")


def gathered(
    bench: Bench, name: str, make: Callable[[Tensor], Mapping[str, Sequence[object]]]
) -> dict[str, list[object]]:
    """What `make` tells of every image: lists with one entry each, made in parts."""
    told: dict[str, list[object]] = {}
    n = len(bench.images)
    # a GPU has hardly begun with so few
    size = _CHUNK if device_of(bench.model).type == "cpu" else max(_CHUNK, _at_once(bench.images))
    for first in range(0, n, size):
        rows = torch.arange(first, min(n, first + size))
        part = bench.parts.once(f"{name}-{first:06d}-{len(rows)}", lambda rows=rows: make(rows))  # type: ignore[misc]
        for key, values in part.items():
            if isinstance(values, list):
                told.setdefault(key, []).extend(values)
        bench.notify(name, int(rows[-1]) + 1, n, {})
    return told


def _at_once(images: Images) -> int:
    return max(1, _VALUES // images.images(torch.arange(1)).numel())


def as_bytes(delta: Tensor, threat: Threat, stretch: Stretch, sign: Sign) -> Tensor:
    """uint8 [B, C, H, W]: perturbations as images, 0 in the middle.

    Threats other than Linf bound no single pixel: there every image is stretched to its own largest value.
    """
    turned = delta if sign is Sign.ADDED else -delta
    if stretch is Stretch.LEVEL:
        reach = torch.full((len(delta), 1, 1, 1), 1 / 255)
    elif isinstance(threat, Linf):
        reach = torch.full((len(delta), 1, 1, 1), threat.eps)
    else:
        reach = delta.abs().amax((1, 2, 3), keepdim=True).clamp_min(torch.finfo(delta.dtype).tiny)
    return (255 * ((turned + reach) / (2 * reach)).clamp(0, 1)).round().byte()


def gray(x: Tensor) -> Tensor:
    """[B, 1, H, W]: the brightness of images in color."""
    weights = torch.tensor(_LUMA if x.shape[1] == 3 else [1 / x.shape[1]] * x.shape[1])
    return (x.float() * weights.view(1, -1, 1, 1)).sum(1, keepdim=True)


def small(image: Tensor) -> Tensor:
    """An image [C, H, W] of a size that a page of many can bear."""
    side = max(image.shape[-2:])
    if side <= _SIDE:
        return image
    height, width = (max(1, round(length * _SIDE / side)) for length in image.shape[-2:])
    return nn.functional.adaptive_avg_pool2d(image, (height, width))


def how_stretched(threat: Threat, stretch: Stretch, sign: Sign) -> str:
    """A sentence for captions."""
    turned = "adversarial minus clean" if sign is Sign.ADDED else "clean minus adversarial, as the authors' code has it"
    if stretch is Stretch.LEVEL:
        reach = "one gray level in either direction is black or white, more is cut off"
    elif isinstance(threat, Linf):
        reach = "black is -eps, white is +eps"
    else:
        reach = "black and white are the largest change in either direction of that image"
    return f"Perturbations are {turned}; mid-gray is no change, {reach}."


def mean_interval(values: Sequence[float]) -> dict[str, float]:
    """The mean over images that have a value and the normal 95% interval of it; the interval of one image is a gap."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return {"mean": math.nan, "low": math.nan, "high": math.nan}
    mean = sum(known) / len(known)
    spread = math.sqrt(sum((v - mean) ** 2 for v in known) / (len(known) - 1)) if len(known) > 1 else math.nan
    reach = _Z * spread / math.sqrt(len(known))
    return {"mean": mean, "low": mean - reach, "high": mean + reach}


def numbers(values: Tensor) -> list[float | None]:
    """Numbers for a part: JSON has none that are not finite."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def floats(values: Sequence[object]) -> list[float]:
    """Numbers from a part, nan where it has none."""
    return [math.nan if value is None else float(str(value)) for value in values]
