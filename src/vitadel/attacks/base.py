"""The base class of attacks: an author writes `search`; this file checks, isolates, projects and judges.

Shape letters: B images, C channels, H rows and W columns of pixels, K classes.
"""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import torch
from torch import Tensor

from vitadel.attacks.isolation import eval_without_weight_gradients, isolated
from vitadel.attacks.oracle import CountingOracle, Model, Oracle, zero_gradient_flags
from vitadel.attacks.other_libraries import (
    call_advice,
    construction_advice,
    missing_attribute,
    settings_by_name,
    written_call,
)
from vitadel.attacks.result import AttackResult
from vitadel.core.device import check_not_meta
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.core.numeric import check_ranges, check_seed
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal, Labels, Target, as_goal
from vitadel.losses import Loss, cross_entropy, kl_divergence
from vitadel.threats import Threat, as_threat


class Attack(ABC):
    """A search for adversarial images; it holds settings but no model, and restores everything it changes on a model.

    Call it to get a judged `AttackResult`; in a training loop of your own, `craft` returns the images alone.

    Example:
        >>> attack = PGD(steps=20)
        >>> result = attack(model, x, y, "linf:8/255")
    """

    __slots__ = ()

    # the loss that is maximized where the goal is given as labels
    default_loss: ClassVar[Loss] = staticmethod(cross_entropy)

    @property
    def goal_loss(self) -> Loss:
        """The loss that is maximized where the goal is given as labels: `default_loss`, or that of a wrapped attack."""
        return type(self).default_loss

    @property
    def has_own_objective(self) -> bool:
        """Whether the attack has its own objective, so that neither a loss nor a target can be chosen."""
        return False

    def __new__(cls, *args: object, **settings: object) -> Self:
        """Refuse arguments of other attack libraries; the error has the line to write instead."""
        known = [one.name for one in fields(cls) if one.init] if is_dataclass(cls) else list(settings)
        holds_model = bool(args) and callable(args[0]) and not isinstance(args[0], Attack)
        if holds_model or set(settings) - set(known):
            raise UsageError(construction_advice(cls.__name__, known, args, settings))
        return super().__new__(cls)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__repr__" not in vars(cls):  # else @dataclass writes one of its own, with the addresses of functions
            cls.__repr__ = cls.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """The class and its settings; a function among them by its name."""
        return written_call(type(self).__name__, settings_by_name(self))

    if not TYPE_CHECKING:  # a type checker would allow any name

        def __getattr__(self, name: str) -> object:
            """Refuse methods of other attack libraries; the error has the line to write instead."""
            raise missing_attribute(self, name)

    def __post_init__(self) -> None:
        """Refuse settings outside the ranges that their annotations declare."""
        check_ranges(self)

    @abstractmethod
    def search(self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, rng: RandomStreams) -> Tensor:
        """The best candidate per image; the caller projects and judges it.

        Args:
            model: Call it for logits, or its `gradient` for the gradient of the goal's objective.
            x0: [B, C, H, W] the original images.
            goal: The adversary's goal.
            threat: The threat model.
            rng: Random streams, one per image.
        """

    def model_flags(self, model: Model) -> tuple[Flag, ...]:
        """Flags for what this attack does differently on this model."""
        return ()

    @final
    def __call__(
        self,
        model: Model,
        x: Tensor,
        y: Labels | Goal | None = None,
        threat: Threat | str | None = None,
        *,
        seed: int = 0,
        index_B: Tensor | None = None,
        **other: object,
    ) -> AttackResult:
        """Attack a batch of images.

        Success is judged by the unmodified model in the precision of its weights; logits are compared in float32, or in
        float64 if model and `x` are. Training modes, gradients, hooks, random state and `x` are as before.

        Args:
            model: Takes [B, C, H, W] pixels in [0, 1] and returns logits [B, K].
            x: [B, C, H, W] the images.
            y: [B] labels for an untargeted attack, or a goal such as `Targeted(classes)` or `Untargeted(y, margin)`.
            threat: A threat, or a text such as "linf:8/255". Like `y` it is required; the error says what to write.
            seed: Seed of the random numbers, an int in [-2**63, 2**63 - 1].
            index_B: The images' indices in their data set, by default 0, 1, ...; random numbers depend on these and the
                seed, not on the batch.

        Returns:
            The adversarial images, whether they are successful, and the cost.

        Raises:
            UsageError: If pixels are not in [0, 1], labels do not fit, or the model returns NaN or no logits.
        """
        if y is None or threat is None or other or not callable(model):
            raise UsageError(call_advice(self, model, y, threat, other))
        check_seed(seed)
        check_images(x)
        goal, threat = as_goal(y, self.goal_loss), as_threat(threat)
        started = time.perf_counter()
        oracle = CountingOracle(model, _highest_class(goal, len(x)))
        with isolated(model, seed, x.device):
            x0 = _at_least_float32(x.clone() if x.is_inference() else x.detach())
            if goal.classes.is_inference():  # made in inference mode, autograd cannot use it
                goal = goal.at(torch.arange(len(x0), device=x0.device))
            x_adv = self._candidate(oracle, x0, goal, threat, seed, index_B)
            # a search may run under autocast, the judge does not
            with torch.no_grad(), torch.autocast(x0.device.type, enabled=False):
                z_BK = oracle(x_adv)
        _check_finite(oracle.nonfinite_gradients(), x_adv, z_BK)
        prediction, success, distance = z_BK.argmax(1), goal.success(z_BK), threat.distance(x_adv, x0)
        zero = oracle.zero_gradients()  # waits for the device, so the time below is real
        seconds = time.perf_counter() - started
        flags = (*zero_gradient_flags(zero, oracle.backwards), *self.model_flags(model))
        return AttackResult(
            x_adv, success, prediction, distance, oracle.forwards, oracle.backwards, seconds, zero, flags
        )

    @final
    def craft(
        self, model: Model, x0: Tensor, goal: Goal, threat: Threat, *, seed: int, index_B: Tensor | None = None
    ) -> Tensor:
        """The adversarial images alone, without checks and judging, which saves forward passes in training.

        Args:
            model: Takes [B, C, H, W] pixels in [0, 1] and returns logits [B, K].
            x0: [B, C, H, W] the images.
            goal: The adversary's goal.
            threat: The threat model.
            seed: Seed of the random numbers; another one for every update.
            index_B: The images' indices in their data set, by default 0, 1, ...

        Returns:
            [B, C, H, W] adversarial images within the threat, detached. The model's modes and gradients are as before.

        Example:
            >>> x_adv = PGD(steps=10).craft(model, x, Untargeted(y), Linf(8 / 255), seed=step)
            >>> loss = torch.nn.functional.cross_entropy(model(x_adv), y)
        """
        check_seed(seed)
        with eval_without_weight_gradients(model):
            return self._candidate(Oracle(model), _at_least_float32(x0.detach()), goal, threat, seed, index_B)

    def _candidate(
        self, model: Oracle, x0: Tensor, goal: Goal, threat: Threat, seed: int, index_B: Tensor | None
    ) -> Tensor:
        index_B = torch.arange(len(x0)) if index_B is None else index_B
        with torch.enable_grad():
            x = self.search(model, x0, goal, threat, RandomStreams.of(seed, index_B.to(x0.device)))
        return threat.project(x.detach(), x0)


@dataclass(frozen=True, slots=True)
class NamedAttack:
    """An attack with its name, loss and target class: the entries of suites and of AutoAttack.

    Args:
        name: The name in tables and records; it also seeds the random numbers.
        attack: The attack.
        loss: The loss that it maximizes, by default the attack's own; an attack with `targets` ignores it. With
            `kl_divergence`, the reference is the prediction on the clean image.
        target: Chooses the target class from the clean logits; untargeted if not given.

    Raises:
        UsageError: If the loss takes no target and one is given.

    Example:
        >>> robustness(model, x, y, "linf:8/255", suite=NamedAttack("pgd-margin", PGD(steps=50), margin))
    """

    name: str
    attack: Attack
    loss: Loss = None  # type: ignore[assignment]  # replaced by the attack's own
    target: Target | None = None

    def __post_init__(self) -> None:
        if self.loss is None:
            object.__setattr__(self, "loss", self.attack.goal_loss)
        if self.loss is kl_divergence and self.target is not None:
            raise UsageError("the KL divergence leads away from the clean prediction and has no target. Leave one out.")


def check_images(x: Tensor) -> None:
    """Refuse anything but images that can be attacked: a batch of floats in [0, 1].

    Args:
        x: [B, ...] the images.

    Raises:
        UsageError: If they are something else; the message says how to convert them.
    """
    if not isinstance(x, Tensor):
        raise UsageError(f"attacks take images as a tensor, got {type(x).__name__}. Write torch.as_tensor(images).")
    if not x.is_floating_point():
        raise UsageError(
            f"attacks take a batch of float images, got {x.dtype} of shape {list(x.shape)}. "
            "Write x.float() / 255 for bytes."
        )
    if x.ndim < 2:
        raise UsageError(
            f"attacks take a batch of float images, got {x.dtype} of shape {list(x.shape)}. "
            "Write x.unsqueeze(0) for one image."
        )
    check_not_meta("images", x)
    if len(x) == 0:
        raise UsageError("attacks take at least one image, got an empty batch. Check how the images were chosen.")
    low, high = x.min().item(), x.max().item()
    if not (low >= 0 and high <= 1):
        raise UsageError(
            f"attacks take pixels in [0, 1], got [{low:.3g}, {high:.3g}]. Normalization belongs inside the model: "
            "write vitadel.models.wrap(net, mean=..., std=...). Divide bytes by 255."
        )


def _at_least_float32(x0: Tensor) -> Tensor:
    """Half precision cannot represent the boundary of a small ball."""
    return x0.float() if x0.dtype in (torch.float16, torch.bfloat16) else x0


def _highest_class(goal: Goal, images: int) -> int:
    classes = goal.classes
    if not isinstance(classes, Tensor):
        raise UsageError(f"a goal takes labels as a tensor, got {type(classes).__name__}. Write torch.tensor(labels).")
    if classes.dtype != torch.int64:
        raise UsageError(f"labels must be class numbers in torch.int64, got {classes.dtype}. Write labels.long().")
    if len(classes) != images:
        raise UsageError(f"the goal has labels for {len(classes)} images, got {images}. Give one label per image.")
    check_not_meta("labels", classes)
    if (lowest := int(classes.min())) < 0:
        raise UsageError(f"label {lowest} is out of range. Write labels from 0 to classes - 1.")
    return int(classes.max())


def _check_finite(nonfinite_gradients: int, x: Tensor, z_BK: Tensor) -> None:
    bad = int((~z_BK.isfinite()).any(1).sum())
    # with such gradients the attack would fail and report the image as robust
    if nonfinite_gradients or (not bad and not bool(x.isfinite().all())):
        raise UsageError("the attack met NaN or infinite gradients. Check the model's backward pass on these images.")
    if bad:
        raise UsageError(
            f"the model returned NaN or infinite logits for {bad} of {len(z_BK)} images. "
            "Check its weights and precision: a NaN would count as a success of the attack."
        )
