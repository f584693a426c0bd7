r"""ARD and PRM: warm-up of the attack in adversarial training, by dropped attention gradients and masked patches.

Mo et al. (NeurIPS 2022, "When Adversarial Training Meets Vision Transformers: Recipes from Training to Architecture"),
read with their code, github.com/mo666666/When-Adversarial-Training-Meets-Vision-Transformers, train_cifar.py.

=======================================================  =============================================================
their code                                               here
=======================================================  =============================================================
warm-up: ``drop_rate`` = t / n_w, then 1                 the same, with n_w in ``warmup_epochs``; `kept_share`
ARD: at every backward pass of the attack, each          the same, drawn for each image: random numbers do not depend
attention's gradient is 0 with probability               on the batch
1 - ``drop_rate``; one draw for the whole batch
PRM: before every step of the attack, the perturbation   the same, patches drawn for each image
of int(N (1 - ``drop_rate``)) of N patches is set to 0;
one draw for the whole batch
the gradient of a masked patch is not masked, so the     the same
step that follows moves it from 0
the update of the weights is the usual one               the same
=======================================================  =============================================================

Shape letters: B images, G rows and columns of patches, N patches of an image.
"""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from vitadel.attacks import PGD
from vitadel.attacks.attention_scaling.rescaled_model import RescaledModel
from vitadel.attacks.engine.iterative import Query, StepContext
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range, check_ranges
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.models import Taps, family_of
from vitadel.models.taps import Edit
from vitadel.objectives.adversarial import AdversarialObjective
from vitadel.objectives.base import Examples, Objective, TrainingTime, WrappedObjective, unwrapped
from vitadel.objectives.tora import TORATraining

# streams of the seed of an update, and of the random start of its attack
_ARD, _PRM = 11, 12


@dataclass(frozen=True, slots=True)
class ARDPRM(WrappedObjective):
    r"""Attention random dropping and perturbation random masking around an objective with an attack (Mo et al. 2022).

    For the first `warmup_epochs` epochs the attack is weaker: a share :math:`1 - t / n_w` of the attention layers
    passes no gradient back (ARD), and the perturbation of the same share of patches is set to 0 before each of its
    steps (PRM). Both are random for every step and every image. After that, and without a training time (`at`), it is
    `inner`.

    Args:
        inner: Adversarial training, TRADES or MART with PGD that returns the last iterate.
        ard: Attention random dropping.
        prm: Perturbation random masking.
        warmup_epochs: :math:`n_w`, the epochs after which nothing is dropped or masked.

    Example:
        >>> attack = PGD(steps=10, step_size=2 / 255, keep_best=False)
        >>> objective = ARDPRM(Adversarial(attack, Linf(8 / 255)), warmup_epochs=10)
    """

    inner: AdversarialObjective
    ard: bool = True
    prm: bool = True
    warmup_epochs: Annotated[float, Range(gt=0, hint="It counts epochs.")] = 10.0

    def __post_init__(self) -> None:
        check_ranges(self)
        kind = type(self.inner).__name__
        if not isinstance(self.inner, AdversarialObjective) or isinstance(self.inner, TORATraining):
            raise UsageError(
                f"ARDPRM needs an objective with an attack inside, such as Adversarial, TRADES or MART, got {kind}. "
                "Put AWP and AttentionScaling around it: AWP(ARDPRM(...))."
            )
        if not (self.ard or self.prm):
            raise UsageError("ARDPRM has neither ard nor prm, which leaves nothing to do. Take its inner objective.")
        attack = self.inner.attack
        if attack is not None and (type(attack) is not PGD or attack.keep_best or attack.targets):
            raise UsageError(
                "ARDPRM drops and masks at every step of PGD that returns the last iterate, got "
                f"{type(attack).__name__}. Write objective.inner.attack=pgd:steps=10,keep_best=false."
            )

    def kept_share(self, time: TrainingTime) -> float:
        """The share of attention layers that pass gradients back, and of patches whose perturbation is kept."""
        return min(1.0, time.epoch / self.warmup_epochs)

    def prepare_model(self, model: nn.Module) -> None:
        """Refuse a model without attention or patches."""
        self.inner.prepare_model(model)
        if self.ard and not _taps(model).attentions():
            raise UsageError(
                "ARD drops gradients of attention, and this model has no attention Vitadel supports. "
                "Set objective.ard=false, or take a ViT, DeiT, CaiT, XCiT, Swin or LeViT."
            )
        if self.prm:
            _patch_size(model)

    def at(self, time: TrainingTime) -> Objective:
        inner, kept = self.inner.at(time), self.kept_share(time)
        return inner if kept >= 1 or inner.attack is None else _WarmUp(inner, self.ard, self.prm, kept)

    @property
    def uses_taps(self) -> bool:
        return self.ard

    @property
    def capturable(self) -> bool:
        return self.inner.capturable


@dataclass(frozen=True, slots=True)
class _WarmUp(WrappedObjective):
    """An update of the warm-up: `kept` is the share of gradients and patches that are kept."""

    inner: AdversarialObjective
    ard: bool
    prm: bool
    kept: float

    @property
    def capturable(self) -> bool:
        return self.inner.capturable

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        index_B = torch.arange(len(x), device=x.device) if index_B is None else index_B
        attack, inner = self.inner.attack, self.inner
        assert isinstance(attack, PGD)
        if self.prm:
            inner = replace(inner, attack=_MaskedPGD.of(attack, _patch_size(model), self.kept))
        with ExitStack() as dropping:
            if self.ard:
                streams = RandomStreams.of(fold_seed(seed, _ARD), index_B)
                dropping.enter_context(dropped_attention_gradients(_taps(model), streams, self.kept))
            return inner.prepare(model, x, y, seed=seed, index_B=index_B)


@contextmanager
def dropped_attention_gradients(taps: Taps, streams: RandomStreams, kept: float) -> Iterator[None]:
    """Context manager: every attention layer passes the gradient of an image back with probability `kept` per pass.

    Outputs do not change, and neither do gradients along the residual stream.

    Args:
        taps: The taps of the model.
        streams: A random stream for each image.
        kept: The probability.
    """
    with ExitStack() as edits:
        for number, name in enumerate(taps.attentions()):
            edits.enter_context(taps.edit(f"{name}.out", _gradient_dropping(streams.fold(number), kept)))
        yield


def _gradient_dropping(streams: RandomStreams, kept: float) -> Edit:
    """An edit that returns its argument, and sets the gradient of randomly chosen images to 0."""
    passes = itertools.count()

    def edit(value: Tensor) -> Tensor:
        if value.requires_grad:
            keep_B = streams.fold(next(passes)).uniform(1)[:, 0] < kept
            # attention in windows has several rows for an image, one after the other
            keep_B = keep_B.repeat_interleave(len(value) // len(keep_B))
            value.register_hook(lambda grad: grad * keep_B.view(-1, *[1] * (grad.ndim - 1)))
        return value

    return edit


@dataclass(frozen=True, slots=True)
class _MaskedPGD(PGD):
    """PGD that sets the perturbation of randomly drawn patches to 0 before each of its steps."""

    patch_size: Annotated[int, Range(ge=1)] = 1
    kept: Annotated[float, Range(ge=0, le=1)] = 1.0

    @classmethod
    def of(cls, attack: PGD, patch_size: int, kept: float) -> "_MaskedPGD":
        settings: dict[str, Any] = {one.name: getattr(attack, one.name) for one in fields(attack)}
        return cls(**settings, patch_size=patch_size, kept=kept)

    def _gradient_step(
        self, model: Oracle, ctx: StepContext, x: Tensor, step: float | Tensor
    ) -> tuple[Tensor, Query, Tensor]:
        keep = patch_mask(ctx.rng.fold(_PRM).fold(ctx.step_B), x.shape[-2:], self.patch_size, self.kept)
        masked = torch.where(keep, x, ctx.x0)
        return PGD._gradient_step(self, model, ctx, masked, step)


def patch_mask(streams: RandomStreams, size: torch.Size, patch_size: int, kept: float) -> Tensor:
    """[B, 1, H, W] true where the perturbation is kept: all but int(N (1 - kept)) of the N patches of each image."""
    rows, columns = (side // patch_size for side in size)
    # 1 - 0.9 of 10 patches is 1, not 0, in spite of rounding errors
    masked = int((rows * columns) * (1 - kept) + 1e-6)
    rank_BN = streams.uniform(rows * columns).argsort(1).argsort(1)
    keep = (rank_BN >= masked).view(-1, 1, rows, columns)
    return keep.repeat_interleave(patch_size, 2).repeat_interleave(patch_size, 3)


def _local(model: nn.Module) -> Any:
    """The model itself, without wrappers."""
    local: Any = unwrapped(model)
    local = local.model if isinstance(local, RescaledModel) else local
    if not hasattr(local, "taps"):
        raise UsageError(
            f"ARDPRM knows attention and patches of a Model, and this {type(local).__name__} is none. "
            "Load it with vitadel.models.load, or give its network to vitadel.models.wrap."
        )
    return local


def _taps(model: nn.Module) -> Taps:
    taps = _local(model).taps
    assert isinstance(taps, Taps)
    return taps


def _patch_size(model: nn.Module) -> int:
    net = _local(model).net
    size = family_of(net).patch_size(net)
    if size is None:
        raise UsageError(
            f"PRM masks the perturbation of patches, and a {type(net).__name__} has none. Set objective.prm=false."
        )
    return size
