r"""Training with factors on the scores of every attention, found anew every few epochs.

AAS-AT of Jain & Dutta (CVPR 2024, "Towards Understanding and Improving Adversarial Robustness of Vision Transformers"),
section 5. Its algorithm is in a supplement that is not to be had and its code is not public: this is a reconstruction.

==============================================  =======================================================================
the paper                                       here
==============================================  =======================================================================
AAS every :math:`\lambda` epochs; 5 to 40 do    ``period``; epochs ``period``, ``2 period``, ... counted from 0, never
                                                the first and never the last, after which nothing would train
"perturb the scaling factors", else train       an epoch of scaling spends its batches on the factors, and the weights
                                                stay; ``batches`` spends only its first ones
:math:`S' = \mathrm{clamp}(S + \delta)`         the reference is the network without factors, as in `Scaling.paper`:
                                                factors replace the old ones, and never drift away over the epochs
one S per mini-batch, the last is kept          each ``scaling.batch`` images give a candidate; of all candidates of an
                                                epoch the one with the greatest distance is kept
the old factors are replaced (line 17)          they are part of the model: saved with it and evaluated with it
                                                (``Scope.DEPLOYED``), or used where attacks are crafted alone
                                                (``Scope.ATTACK``)
==============================================  =======================================================================

Shape letters: B images, M attentions.
"""

import enum
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor, distributed, nn

from vitadel.attacks import RescaledModel, Scaling, find_factors
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range, check_ranges
from vitadel.core.rng import fold_seed
from vitadel.models import Model, attention_scales
from vitadel.objectives.base import Examples, Objective, Step, hard_labels, undistributed
from vitadel.objectives.schedule import TrainingTime


class Scope(enum.Enum):
    """Who works with the factors."""

    DEPLOYED = "the model, for good"
    ATTACK = "attacks while they are crafted"


@dataclass(frozen=True, slots=True)
class AttentionScaling(Objective):
    """AAS-AT around any objective: now and then factors for the attention are searched for, else `inner` trains.

    `scaling` says how; `batch` images give a candidate there, from `batches` starts. It needs no labels and no attack,
    so what it says about trials does not count. `batches` of this objective counts updates of a scaling epoch.
    """

    inner: Objective
    period: Annotated[int, Range(ge=1, hint="It counts epochs.")] = 10
    scope: Scope = Scope.DEPLOYED
    scaling: Scaling = field(default_factory=lambda: replace(Scaling.paper(), batches=1, batch=64))
    batches: Annotated[int, Range(ge=1, hint="Write null for all.")] | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if isinstance(self.inner, AttentionScaling):
            raise UsageError("AttentionScaling cannot hold another one. Give it the objective that trains.")
        if self.scaling.logits:
            raise UsageError("a model keeps factors for its attention alone. Write scaling.logits=false.")
        if self.scaling.reference == "drifting":
            raise UsageError("factors are measured from the network without any. Write scaling.reference=original.")

    def begin(self, model: nn.Module) -> None:
        """Factors of 1 to begin with, or those that the model brings along."""
        net = _model(model).net
        if attention_scales.get(net, self._name) is None:
            attention_scales.set_factors(net, self._name, 1.0)
        attention_scales.set_buffer(net, attention_scales.RECORD, torch.zeros(2))
        self.inner.begin(model)

    def at(self, moment: TrainingTime) -> Objective:
        if self.scales_at(moment):
            return _Search(self.scaling, self._name, moment.whole_epoch)
        inner = self.inner.at(moment)
        return inner if self.scope is Scope.DEPLOYED else _OnRescaled(inner)

    def scales_at(self, moment: TrainingTime) -> bool:
        """Whether this update searches for factors."""
        epoch = moment.whole_epoch
        due = 0 < epoch < moment.epochs - 1 and epoch % self.period == 0
        return due and (self.batches is None or moment.update_in_epoch < self.batches)

    @property
    def selective(self) -> bool:
        return self.inner.selective

    @property
    def _name(self) -> str:
        return attention_scales.ATTENTION if self.scope is Scope.DEPLOYED else attention_scales.ATTACK

    @property
    def passes(self) -> float:
        """The mean over a period; of `inner` where only some batches of an epoch are spent, which depends on data."""
        if self.batches is not None:
            return self.inner.passes
        return ((self.period - 1) * self.inner.passes + search_passes(self.scaling)) / self.period

    @property
    def loss_passes(self) -> float:
        return self.inner.loss_passes

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        own = self.inner if self.scope is Scope.DEPLOYED else _OnRescaled(self.inner)
        return own.prepare(model, x, y, seed=seed, index_B=index_B)

    def loss(self, model: nn.Module, examples: Examples) -> Step:
        return self.inner.loss(model, examples)


def search_passes(scaling: Scaling) -> float:
    """What a search costs an image: per start a reference, the start, the end, and steps there and back."""
    if scaling.grid:
        return 2.0 * len(scaling.grid)
    decade = 1.0 if scaling.start == "decades" else 0.0
    return scaling.batches * (3.0 + decade + 2.0 * scaling.steps)


def _model(model: nn.Module) -> Model:
    local = undistributed(model)
    if not isinstance(local, Model):
        raise UsageError(
            f"attention is scaled inside a Model, and this {type(local).__name__} is none. "
            "Load it with vitadel.models.load, or give its network to vitadel.models.wrap."
        )
    return local


@dataclass(frozen=True, slots=True)
class _OnRescaled(Objective):
    """Attacks learn from the rescaled model; the loss is the model's own."""

    inner: Objective

    @property
    def passes(self) -> float:
        return self.inner.passes

    @property
    def loss_passes(self) -> float:
        return self.inner.loss_passes

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        local: Any = undistributed(model)  # the model, or a copy of it with taps of its own
        factors_M = attention_scales.get(local.net, attention_scales.ATTACK)
        assert factors_M is not None, "the loop calls `begin` first"
        return self.inner.prepare(RescaledModel(local, factors_M), x, y, seed=seed, index_B=index_B)

    def loss(self, model: nn.Module, examples: Examples) -> Step:
        return self.inner.loss(model, examples)


@dataclass(frozen=True, slots=True)
class _Drawn(Examples):
    """A batch, and what its draws depend on."""

    seed: int
    index_B: Tensor


@dataclass(frozen=True, slots=True)
class _Search(Objective):
    """A batch spent on factors, which are kept under `name` if they are the best of epoch `epoch` so far."""

    scaling: Scaling
    name: str
    epoch: int

    @property
    def loss_passes(self) -> float:
        return search_passes(self.scaling)

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        return _Drawn(x, y, x, seed, torch.arange(len(x), device=x.device) if index_B is None else index_B)

    def loss(self, model: nn.Module, examples: Examples) -> Step:
        assert isinstance(examples, _Drawn)
        local = _model(model)
        value, kept_M = self._keep(local.net, self._candidate(local, _of_all_ranks(examples)))
        logs = {"attention_scale_min": kept_M.min(), "attention_scale_mean": kept_M.mean(), "attention_distance": value}
        return Step(value, logs, trains=False)

    def _candidate(self, model: Model, drawn: _Drawn) -> Tensor:
        """[2 + M]: what a candidate is worth, its distance and its factors; the best of the batch for all ranks."""
        rank, world = _place()
        size, device = self.scaling.batch, drawn.x.device
        found = [torch.tensor([-math.inf, 0.0, *self._kept(model.net)], device=device)]
        for begin in range(rank * size, len(drawn.x), world * size):
            rows = slice(begin, begin + size)
            x, y = drawn.x[rows], hard_labels(drawn.y[rows])
            # by its first image, so that a batch in parts gives the same starts
            seed = fold_seed(drawn.seed, int(drawn.index_B[begin]))
            with _without_factors(self._kept(model.net)):
                best = find_factors(model, x, y, replace(self.scaling, batch=len(x)), seed=seed).best
            assert best.value is not None
            worth = float(begin) if self.scaling.keep == "last" else best.value
            if math.isfinite(best.value):
                found.append(torch.tensor([worth, best.value, *best.attentions], device=device))
        return _best(_gathered(_best(torch.stack(found))))

    def _keep(self, net: nn.Module, found: Tensor) -> tuple[Tensor, Tensor]:
        """Distance and factors that are kept now; the record says which epoch they are of."""
        record = attention_scales.get(net, attention_scales.RECORD)
        assert record is not None, "the loop calls `begin` first"
        worth, value, factors_M = found[0], found[1], found[2:]
        better = int(record[0]) != self.epoch or self.scaling.keep == "last" or bool(value > record[1])
        if better and bool(worth.isfinite()):
            attention_scales.set_buffer(net, self.name, factors_M)
            attention_scales.set_buffer(
                net, attention_scales.RECORD, torch.stack([torch.full_like(value, self.epoch), value])
            )
        return record[1].clone(), self._kept(net).clone()

    def _kept(self, net: nn.Module) -> Tensor:
        factors_M = attention_scales.get(net, self.name)
        assert factors_M is not None, "the loop calls `begin` first"
        return factors_M


def _best(found_CM: Tensor) -> Tensor:
    return found_CM[found_CM[:, 0].argmax()]


@contextmanager
def _without_factors(factors_M: Tensor) -> Iterator[None]:
    """Inside, the factors that are to be replaced are 1."""
    before_M = factors_M.clone()
    factors_M.fill_(1.0)
    try:
        yield
    finally:
        factors_M.copy_(before_M)


# ------------------------------------------------------------------- ranks


def _place() -> tuple[int, int]:
    """Which of how many processes this is."""
    if not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _gathered(value: Tensor) -> Tensor:
    """The tensors of all ranks, one after the other."""
    _, world = _place()
    if world == 1:
        return value[None]
    every = [torch.empty_like(value) for _ in range(world)]
    distributed.all_gather(every, value.contiguous())
    return torch.stack(every)


def _of_all_ranks(drawn: _Drawn) -> _Drawn:
    """The whole batch in its order, of which every rank holds every so-many-th image: candidates as of one process."""
    x, y, index_B = (_gathered(part).transpose(0, 1).flatten(0, 1) for part in (drawn.x, drawn.y, drawn.index_B))
    return _Drawn(x, y, x, drawn.seed, index_B)
