"""Small random changes to training images, made on the device, drawn per image."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vitadel.draws import Draws
from vitadel.errors import UsageError


class Augment(Protocol):
    """Pixels in [0, 1] to pixels in [0, 1] of the same shape."""

    def __call__(self, x: Tensor, rng: Draws) -> Tensor:
        """The same change for an image in every batch."""


@dataclass(frozen=True, slots=True)
class PadCrop:
    """A window of the image's size, shifted by up to `pad` pixels over a frame of grey `fill`, and maybe flipped."""

    pad: int = 4
    fill: float = 0.0
    flip: bool = True

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise UsageError(f"PadCrop.pad must not be negative, got {self.pad}.")

    def __call__(self, x: Tensor, rng: Draws) -> Tensor:
        height, width = x.shape[-2:]
        framed = F.pad(x, [self.pad] * 4, value=self.fill)
        offset = rng.fold(0).below(2 * self.pad + 1, 2)
        rows = offset[:, 0, None] + torch.arange(height, device=x.device)
        columns = offset[:, 1, None] + torch.arange(width, device=x.device)
        if self.flip:
            mirrored = rng.fold(1).uniform() < 0.5
            columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        image = torch.arange(len(x), device=x.device)[:, None, None]
        return framed.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
