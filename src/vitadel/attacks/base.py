"""The contract every attack inherits: an author writes `search`, the rest is done here, once.

Shape letters: B images, K classes.
"""

import time
from abc import ABC, abstractmethod
from typing import ClassVar, final

import torch
from torch import Tensor

from vitadel.attacks.counting import CountingOracle, zero_gradient_flags
from vitadel.attacks.isolation import frozen, isolated
from vitadel.attacks.oracle import Model, Oracle
from vitadel.attacks.result import AttackResult
from vitadel.core.errors import UsageError
from vitadel.core.numeric import check_seed
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal
from vitadel.losses import Loss, cross_entropy
from vitadel.threats import Threat


class Attack(ABC):
    """A search for an image in the threat that reaches the goal; holds no model and leaves no trace on one."""

    __slots__ = ()

    # what it climbs where nobody says otherwise
    default_loss: ClassVar[Loss] = staticmethod(cross_entropy)

    @abstractmethod
    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> Tensor:
        """Return the best candidate per image. Need not be exact about the threat: the caller projects and judges."""

    @final
    def __call__(
        self, model: Model, x0: Tensor, goal: Goal, threat: Threat, *, seed: int, index_B: Tensor | None = None
    ) -> AttackResult:
        """Attack the images `x0` and judge what was found.

        The model is judged as it is, in its own precision, and its logits are compared in float32 or float64. Images of
        half precision are searched and returned in float32.

        `index_B` are the images' numbers in their data set: what is drawn for an image depends on them and on `seed`,
        never on the batch. A seed is an int in [-2**63, 2**63 - 1]. Nothing of the caller's changes: modes, gradients,
        hooks, random state, `x0`.
        """
        check_seed(seed)
        _check_pixels(x0)
        started = time.perf_counter()
        counted = CountingOracle(model, _highest_class(goal, len(x0)))
        with isolated(model, seed, x0.device):
            x0 = _wide(x0.clone() if x0.is_inference() else x0.detach())
            if goal.classes.is_inference():  # made by a caller in inference mode, and of no use in a gradient
                goal = goal.at(torch.arange(len(x0), device=x0.device))
            x = self._candidate(counted, x0, goal, threat, seed, index_B)
            # a search may run in half precision, a success counts only in full
            with torch.no_grad(), torch.autocast(x0.device.type, enabled=False):
                z_BK = counted(x)
        _check_finite(counted.blind(), x, z_BK)
        prediction, success, size = z_BK.argmax(1), goal.success(z_BK), threat.distance(x, x0)
        zero = counted.zero_gradients()  # waits for the device, so the time below is real
        seconds = time.perf_counter() - started
        flags = zero_gradient_flags(zero, counted.backwards)
        return AttackResult(x, success, prediction, size, counted.forwards, counted.backwards, seconds, zero, flags)

    @final
    def craft(
        self, model: Model, x0: Tensor, goal: Goal, threat: Threat, *, seed: int, index_B: Tensor | None = None
    ) -> Tensor:
        """The images alone, unjudged and with pixels trusted: for training, where a forward more per step is dear."""
        check_seed(seed)
        with frozen(model):
            return self._candidate(Oracle(model), _wide(x0.detach()), goal, threat, seed, index_B)

    def _candidate(
        self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, seed: int, index_B: Tensor | None
    ) -> Tensor:
        index_B = torch.arange(len(x0)) if index_B is None else index_B
        with torch.enable_grad():
            found = self.search(model, x0, goal, threat, RandomStreams.of(seed, index_B.to(x0.device)))
        return threat.project(found.detach(), x0)


def _wide(x0: Tensor) -> Tensor:
    """Half precision has too few bits for the edge of a ball."""
    return x0.float() if x0.dtype in (torch.float16, torch.bfloat16) else x0


def _check_pixels(x0: Tensor) -> None:
    if not isinstance(x0, Tensor):
        raise UsageError(f"attacks take images as a tensor, got {type(x0).__name__}. Write torch.as_tensor(images).")
    if not x0.is_floating_point() or x0.ndim < 2:
        raise UsageError(f"attacks take a batch of float images, got {x0.dtype} of shape {list(x0.shape)}.")
    if x0.is_meta:
        raise UsageError("the images are on the meta device and have no values. Make them outside of it.")
    if len(x0) == 0:
        raise UsageError("attacks take at least one image, got an empty batch. Is the data set or the selection empty?")
    low, high = x0.min().item(), x0.max().item()
    if not (low >= 0 and high <= 1):
        raise UsageError(
            f"attacks take pixels in [0, 1], got [{low:.3g}, {high:.3g}]. "
            "Normalization belongs inside the model: vitadel.models.wrap(net, mean=..., std=...)."
        )


def _highest_class(goal: Goal, images: int) -> int:
    classes = goal.classes
    if not isinstance(classes, Tensor):
        raise UsageError(f"a goal takes labels as a tensor, got {type(classes).__name__}. Write torch.tensor(labels).")
    if classes.dtype != torch.int64:
        raise UsageError(f"labels must be class numbers in torch.int64, got {classes.dtype}. Write labels.long().")
    if len(classes) != images:
        raise UsageError(f"the goal speaks of {len(classes)} images, got {images}. Give one label per image.")
    if classes.is_meta:
        raise UsageError("the labels are on the meta device and have no values. Make them outside of it.")
    if (lowest := int(classes.min())) < 0:
        raise UsageError(f"label {lowest} is out of range. Labels must lie in 0..classes-1.")
    return int(classes.max())


def _check_finite(blind: int, x: Tensor, z_BK: Tensor) -> None:
    bad = int((~z_BK.isfinite()).any(1).sum())
    # a step along such a gradient leads nowhere, and the attack would report the image as robust
    if blind or (not bad and not bool(x.isfinite().all())):
        raise UsageError("the attack met NaN or infinite gradients. Check the model's backward pass on these images.")
    if bad:
        raise UsageError(
            f"the model returned NaN or infinite logits for {bad} of {len(z_BK)} images. "
            "Check its weights and precision: a NaN would count as a success of the attack."
        )
