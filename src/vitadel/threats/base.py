"""The threat model: which images an adversary may choose, and the geometry of that set that attacks need.

Shape letters: B images.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.numeric import check_ranges, pixel_text
from vitadel.core.rng import RandomStreams


@dataclass(frozen=True, slots=True)
class Threat(ABC):
    """The images within a distance of `eps` of the original, in the box [0, 1].

    `project`, `ascend`, `sample` and `distance` are what PGD needs. `random_direction`, `sample_boundary` and
    `sample_vertex` are the starting points of other attacks, `dual_norm` and `project_on_hyperplane` are used by FAB,
    `square_start` and `square_proposal` by the Square attack. No attack depends on which norm it has been given.
    """

    # the name in texts such as "linf:8/255"
    name: ClassVar[str]
    # a usual radius in this norm, as an example in errors
    usual_eps: ClassVar[str] = "8/255"
    # the unit that reports show a radius in: 1/255 if it bounds every pixel value, else empty
    eps_unit: ClassVar[str] = ""
    # no image needs an eps beyond this one
    largest_eps: ClassVar[float] = math.inf
    # whether single steps should change few values: APGD and AutoAttack then follow Croce & Hein 2021
    sparse: ClassVar[bool] = False
    # the smallest window of the Square attack; odd sizes only if it is more than a pixel
    square_min_side: ClassVar[int] = 1

    eps: float

    def __post_init__(self) -> None:
        check_ranges(self)

    def __str__(self) -> str:
        """The shortest text that `parse_threat` reads back: 8/255 rather than 0.0313725, 0.05 rather than 12.75/255."""
        return f"{self.name}:{pixel_text(self.eps)}"

    def with_eps(self, eps: float) -> Self:
        """The same threat with another radius."""
        return replace(self, eps=eps)

    # ------------------------------------------------------------ gradient attacks

    @abstractmethod
    def project(self, x: Tensor, x0: Tensor) -> Tensor:
        """The point of the threat model around `x0` nearest to `x`."""

    @abstractmethod
    def ascend(self, x: Tensor, grad: Tensor, step: float | Tensor) -> Tensor:
        """One step of steepest ascent of length `step` (a number, or [B]); not projected."""

    @abstractmethod
    def sample(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        """A random point of the threat model, for PGD's random start."""

    @abstractmethod
    def distance(self, x: Tensor, x0: Tensor) -> Tensor:
        """[B] distances of `x` from `x0`, at most `eps` within the threat model."""

    def diameter(self, shape: Sequence[int]) -> float:
        """The distance between opposite corners of the box of images [C, H, W]: a larger eps allows every image."""
        corners = torch.zeros(1, *shape, dtype=torch.float64), torch.ones(1, *shape, dtype=torch.float64)
        return float(self.distance(*corners))

    # ------------------------------------------------------------- starting points

    def random_direction(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        """A random perturbation of any length; normal noise by default."""
        return rng.normal(*x0.shape[1:], dtype=x0.dtype)

    def sample_boundary(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        """A random image at distance `eps`, before it is clipped to the box; where APGD starts."""
        direction = self.random_direction(x0, rng)
        length_B = self.distance(direction, torch.zeros_like(direction)).clamp_min(1e-12)
        return self.project(x0 + direction * per_image(self.eps / length_B, x0), x0)

    def sample_vertex(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        """A random vertex of the ball if it has vertices, else a random image; where GAMA starts."""
        return self.sample(x0, rng)

    # ------------------------------------------------------------------ FAB

    @abstractmethod
    def dual_norm(self, grad: Tensor) -> Tensor:
        """[B] the dual norm of the gradient: the largest rate of change per unit of distance."""

    @abstractmethod
    def project_on_hyperplane(self, x: Tensor, normal: Tensor, offset_B: Tensor) -> Tensor:
        """The shortest displacement of `x` to the hyperplane `normal . v = offset_B` within the box.

        If the plane does not intersect the box, to the corner nearest to the plane. `eps` has no effect.
        """

    # --------------------------------------------------------------- Square attack

    @abstractmethod
    def square_start(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        """The first point of the Square attack on images [B, C, H, W]."""

    @abstractmethod
    def square_proposal(self, best: Tensor, x0: Tensor, side_B: Tensor, rng: RandomStreams) -> Tensor:
        """`best` changed in a random square window of side `side_B`, within the threat model."""

    # ------------------------------------------------------- sparse threats only

    def project_within(self, x: Tensor, x0: Tensor, eps_B: Tensor) -> Tensor:
        """As `project`, with a radius per image; for APGD's schedule of sparse threats."""
        raise NotImplementedError(f"{type(self).__name__} is not sparse")

    def sparse_step(self, x: Tensor, grad: Tensor, step_B: Tensor, share_B: Tensor) -> Tensor:
        """A step of length `step_B`, divided among the fraction `share_B` of values with the largest gradients."""
        raise NotImplementedError(f"{type(self).__name__} is not sparse")


def check_size(threat: Threat, shape: Sequence[int]) -> None:
    """Refuse a threat that allows every image of this shape.

    Raises:
        UsageError: If `eps` is larger than the box.
    """
    if threat.eps > (limit := threat.diameter(shape)):
        raise UsageError(
            f"{type(threat).__name__}.eps of {threat.eps:g} allows every image of shape {tuple(shape)} (the box has "
            f"diameter {limit:.4g}). Pixels lie in [0, 1]: divide an eps meant for [0, 255] by 255."
        )


def bounds_each_pixel(threat: Threat) -> bool:
    """Whether every pixel may change by the radius independently of the others, as in L-infinity."""
    pixel = torch.zeros(1, 1, 1, 2)
    pixel[..., 0] = 1
    return bool(threat.distance(pixel, torch.zeros_like(pixel)) == threat.diameter((1, 1, 2)))


def per_image(v_B: Tensor, like: Tensor) -> Tensor:
    """One number per image [B], reshaped to broadcast against a batch of images."""
    return v_B.view(-1, *(1 for _ in like.shape[1:]))


def broadcast_per_image(value: float | Tensor, like: Tensor) -> float | Tensor:
    """A number for all images, or [B] numbers reshaped to broadcast against a batch of images."""
    return per_image(value, like) if isinstance(value, Tensor) else value
