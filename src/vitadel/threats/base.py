"""What every threat can do."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from vitadel.core.rng import RandomStreams


class Threat(Protocol):
    """Where an adversary may move an image; the box [0, 1] is always part of it."""

    @property
    def eps(self) -> float:
        """The radius: the largest `size` allowed."""

    def project(self, x: Tensor, x0: Tensor) -> Tensor:
        """The nearest allowed image to `x`, for the original `x0`."""

    def ascend(self, x: Tensor, grad: Tensor, step: float | Tensor) -> Tensor:
        """`x` moved by a length of `step`, [B] if each image has its own, where `grad` rises fastest."""

    def sample(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        """A random allowed image, the same for an image in every batch."""

    def distance(self, x: Tensor, x0: Tensor) -> Tensor:
        """[B] distances of `x` from `x0`, to be compared with the threat's radius."""


def with_eps(threat: Threat, eps: float) -> Threat:
    """The same threat with another radius."""
    return replace(threat, eps=eps)  # type: ignore[type-var]


def check_size(threat: Threat, shape: Sequence[int]) -> None:
    """Refuse a threat that holds every image of this shape; `project` refuses it, too, but only in an attack."""
    blank = torch.zeros(1, *shape)
    threat.project(blank, blank)


def diameter(threat: Threat, shape: Sequence[int]) -> float:
    """The distance between an image of zeros and one of ones: no two images of this shape are farther apart."""
    return float(
        threat.distance(torch.ones(1, *shape, dtype=torch.float64), torch.zeros(1, *shape, dtype=torch.float64))
    )


def bounds_each_pixel(threat: Threat) -> bool:
    """Whether every pixel may change by the radius whatever the others do, as in L-infinity."""
    pixel = torch.zeros(1, 1, 1, 2)
    pixel[..., 0] = 1
    return bool(threat.distance(pixel, torch.zeros_like(pixel)) == diameter(threat, (1, 1, 2)))


def per_image(v_B: Tensor, like: Tensor) -> Tensor:
    """One number per image, shaped to multiply a batch of images."""
    return v_B.view(-1, *(1 for _ in like.shape[1:]))


def spread(value: float | Tensor, like: Tensor) -> float | Tensor:
    """One number for all images, or one per image shaped to multiply them."""
    return per_image(value, like) if isinstance(value, Tensor) else value
