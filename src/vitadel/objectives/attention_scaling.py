r"""AAS-AT: training with factors on the scores of every attention layer, searched again every few epochs.

Jain & Dutta (CVPR 2024, "Towards Understanding and Improving Adversarial Robustness of Vision Transformers"), section
5. The algorithm is in a supplement that is not available, and there is no public code: this is a reconstruction.

==============================================  =======================================================================
the paper                                       here
==============================================  =======================================================================
AAS every :math:`\lambda` epochs; 5 to 40 work  ``period``; epochs ``period``, ``2 period``, ... counted from 0, not in
                                                the first epoch, nor in the last, after which the weights would not be
                                                trained any more; a period as long as the training is one search, at
                                                its end (Figure 5: 110)
"perturb the scaling factors", else train       a search epoch uses its batches for the factors, and the weights stay;
                                                with ``batches`` only its first ones
:math:`S' = \mathrm{clamp}(S + \delta)`         the reference is the network without factors, as in `Scaling.paper`:
                                                new factors replace the old ones and do not drift over the epochs;
                                                ``scaling.reference=drifting`` continues from the model's own instead
one S per mini-batch, the last is kept          each ``scaling.batch_size`` images give a candidate; of all
                                                candidates of an epoch the one with the largest distance is kept, or
                                                with ``scaling.keep=last`` the last
m factors for m - 1 attention blocks            one factor each; with ``scaling.logits`` one more, of the logits
the old factors are replaced (line 17)          they are part of the model, saved and evaluated with it
                                                (``Scope.DEPLOYED``), or used in attacks during training only
                                                (``Scope.ATTACK``)
==============================================  =======================================================================

The literal form is ``replace(Scaling.literal(), batches=1, batch_size=64)``, or on the command line
``--set objective.scaling=aas-literal:batches=1,batch_size=64``.

Shape letters: B images, M attention layers and, if there is one, the factor of the logits, C candidates.
"""

import enum
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from vitadel.attacks import Scaling
from vitadel.attacks.attention_scaling.config import Factors
from vitadel.attacks.attention_scaling.factor_search import maximize_factors
from vitadel.attacks.attention_scaling.rescaled_model import RescaledModel
from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range, check_ranges
from vitadel.core.rng import fold_seed
from vitadel.models import Model, attention_scales
from vitadel.objectives.base import (
    Examples,
    LossOutput,
    Objective,
    TrainingTime,
    WrappedObjective,
    hard_labels,
    unwrapped,
)

_NOT_PREPARED = "the trainer calls `prepare_model` first"


class Scope(enum.Enum):
    """What uses the factors."""

    DEPLOYED = "the model, in training and evaluation"
    ATTACK = "attacks during training"


@dataclass(frozen=True, slots=True)
class AttentionScaling(WrappedObjective):
    """AAS-AT around any objective: some epochs search for attention scaling factors, the others train `inner`.

    Args:
        inner: The objective that trains the weights.
        period: Epochs from one search to the next.
        scope: What uses the factors.
        scaling: How they are searched: every batch of `batch_size` images gives a candidate, from `batches` random
            starts. The search uses no attack, so the settings of trial attacks have no effect.
        batches: The number of updates of a search epoch used for the search; none for all.
    """

    inner: Objective
    period: Annotated[int, Range(ge=1, hint="It counts epochs.")] = 10
    scope: Scope = Scope.DEPLOYED
    scaling: Scaling = field(default_factory=lambda: replace(Scaling.paper(), batches=1, batch_size=64))
    batches: Annotated[int, Range(ge=1, hint="Write none for all.")] | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if isinstance(self.inner, AttentionScaling):
            raise UsageError("AttentionScaling cannot hold another one. Give it the objective that trains.")
        if self.scaling.reference == "drifting" and self.scaling.keep != "last":
            raise UsageError(
                "a drifting reference is what the model keeps, and that is the last candidate, got scaling.keep="
                f"{self.scaling.keep}. Write scaling.keep=last, or scaling.reference=original."
            )

    def prepare_model(self, model: nn.Module) -> None:
        """Set initial factors of 1, unless the model has factors."""
        net = _model(model).net
        if attention_scales.buffer(net, self._buffer) is None:
            attention_scales.set_factors(net, self._buffer, 1.0)
        logits = attention_scales.LOGITS[self._buffer]
        if self.scaling.logits and attention_scales.buffer(net, logits) is None:
            attention_scales.set_logits_factor(net, logits, 1.0)
        attention_scales.set_buffer(net, attention_scales.SEARCH_RECORD, torch.zeros(2))
        self.inner.prepare_model(model)

    def at(self, time: TrainingTime) -> Objective:
        if self.searches_at(time):
            return _FactorSearch(self.scaling, self._buffer, time.epoch_index)
        inner = self.inner.at(time)
        return inner if self.scope is Scope.DEPLOYED else _AttackedRescaled(inner)

    def searches_at(self, time: TrainingTime) -> bool:
        """Whether this update searches for factors."""
        epoch, last = time.epoch_index, time.epochs - 1
        due = 0 < epoch < last and epoch % self.period == 0
        # of a period as long as the training, the only search is the one at its end
        due = due or (0 < epoch == last <= self.period <= time.epochs)
        return due and (self.batches is None or time.update_in_epoch < self.batches)

    @property
    def _buffer(self) -> str:
        return attention_scales.ATTENTION if self.scope is Scope.DEPLOYED else attention_scales.ATTACK

    @property
    def passes(self) -> float:
        """The mean over a period; with `batches`, whose cost depends on the length of an epoch, that of `inner`."""
        if self.batches is not None:
            return self.inner.passes
        return ((self.period - 1) * self.inner.passes + search_passes(self.scaling)) / self.period

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        inner = self.inner if self.scope is Scope.DEPLOYED else _AttackedRescaled(self.inner)
        return inner.prepare(model, x, y, seed=seed, index_B=index_B)


def search_passes(scaling: Scaling) -> float:
    """Cost of a search per image, in forward passes: per start the reference, both end points, and 2 per step."""
    if scaling.grid:
        return 2.0 * len(scaling.grid)
    start = 1.0 if scaling.start == "decades" else 0.0
    return scaling.batches * (3.0 + start + 2.0 * scaling.steps)


def _model(model: nn.Module) -> Model:
    local = unwrapped(model)
    if not isinstance(local, Model):
        raise UsageError(
            f"attention is scaled inside a Model, and this {type(local).__name__} is none. "
            "Load it with vitadel.models.load, or give its network to vitadel.models.wrap."
        )
    return local


def _buffers(net: nn.Module, name: str) -> list[Tensor]:
    """The buffer with the factors of the attention layers, and that of the logits if there is one."""
    factors_M = attention_scales.buffer(net, name)
    assert factors_M is not None, _NOT_PREPARED
    logits = attention_scales.buffer(net, attention_scales.LOGITS[name])
    return [factors_M] if logits is None else [factors_M, logits]


def _factors(net: nn.Module, name: str) -> Factors:
    factors_M, *logits = _buffers(net, name)
    return Factors(tuple(factors_M.tolist()), float(logits[0]) if logits else 1.0)


@dataclass(frozen=True, slots=True)
class _AttackedRescaled(WrappedObjective):
    """Attacks are made on the rescaled model; the loss is that of the model itself."""

    inner: Objective

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        local: Any = unwrapped(model)  # the model, or the trainer's copy for attacks
        factors_M, *logits = _buffers(local.net, attention_scales.ATTACK)
        rescaled = RescaledModel(local, factors_M, *logits)
        return self.inner.prepare(rescaled, x, y, seed=seed, index_B=index_B)


@dataclass(frozen=True, slots=True)
class _SearchImages(Examples):
    """A batch with its seed and the indices of its images."""

    seed: int
    index_B: Tensor


@dataclass(frozen=True, slots=True)
class _FactorSearch(Objective):
    """A batch used to search for factors, kept in `buffer` if they are the best of this epoch so far."""

    scaling: Scaling
    buffer: str
    epoch: int

    @property
    def loss_passes(self) -> float:
        return search_passes(self.scaling)

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        return _SearchImages(x, y, x, seed, torch.arange(len(x), device=x.device) if index_B is None else index_B)

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        assert isinstance(examples, _SearchImages)
        local = _model(model)
        value, kept_M = self._keep(local.net, self._candidate(local, _of_all_ranks(examples)))
        logs = {"attention_scale_min": kept_M.min(), "attention_scale_mean": kept_M.mean(), "attention_distance": value}
        return LossOutput(value, logs, trains=False)

    def _candidate(self, model: Model, images: _SearchImages) -> Tensor:
        """[2 + M]: score, distance and factors of the best candidate of the batch, the same for all ranks."""
        # with a drifting reference, each candidate depends on the one before, so ranks cannot search in parallel
        ranks = Ranks() if self._drifts else Ranks.current()
        size, device = self.scaling.batch_size, images.x.device
        reference = _factors(model.net, self.buffer)
        candidates = [self._row(-math.inf, replace(reference, objective=0.0), device)]
        for begin in range(ranks.rank * size, len(images.x), ranks.world_size * size):
            part = slice(begin, begin + size)
            x, y = images.x[part], hard_labels(images.y[part])
            # seeded by the first image, so that a batch divided among ranks has the same starts
            seed, scaling = fold_seed(images.seed, int(images.index_B[begin])), replace(self.scaling, batch_size=len(x))
            with _without_factors(_buffers(model.net, self.buffer)):
                best = maximize_factors(model, x, y, scaling, reference=reference, seed=seed).best
            assert best.objective is not None
            if math.isfinite(best.objective):
                score = float(begin) if self.scaling.keep == "last" else best.objective
                candidates.append(self._row(score, best, device))
                reference = best
        return _best(Ranks.current().gather(_best(torch.stack(candidates))))

    @property
    def _drifts(self) -> bool:
        return self.scaling.reference == "drifting"

    def _row(self, score: float, factors: Factors, device: torch.device) -> Tensor:
        logits = [factors.logits] * self.scaling.logits
        return torch.tensor([score, factors.objective or 0.0, *factors.attentions, *logits], device=device)

    def _keep(self, net: nn.Module, candidate: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the candidate if it is better; returns the distance and the factors kept. The record has their epoch."""
        record = attention_scales.buffer(net, attention_scales.SEARCH_RECORD)
        assert record is not None, _NOT_PREPARED
        score, value, factors_M = candidate[0], candidate[1], candidate[2:]
        better = int(record[0]) != self.epoch or self.scaling.keep == "last" or bool(value > record[1])
        if better and bool(score.isfinite()):
            attentions, *logits = _buffers(net, self.buffer)
            attentions.copy_(factors_M[: len(attentions)])
            if self.scaling.logits:
                logits[0].copy_(factors_M[-1])
            attention_scales.set_buffer(
                net, attention_scales.SEARCH_RECORD, torch.stack([torch.full_like(value, self.epoch), value])
            )
        return record[1].clone(), _buffers(net, self.buffer)[0].clone()


def _best(candidates_CM: Tensor) -> Tensor:
    return candidates_CM[candidates_CM[:, 0].argmax()]


@contextmanager
def _without_factors(buffers: Sequence[Tensor]) -> Iterator[None]:
    """Context manager: inside, the current factors are 1."""
    before = [factors.clone() for factors in buffers]
    for factors in buffers:
        factors.fill_(1.0)
    try:
        yield
    finally:
        for factors, value in zip(buffers, before, strict=True):
            factors.copy_(value)


def _of_all_ranks(images: _SearchImages) -> _SearchImages:
    """The whole batch in the order of one process; every rank holds every `world_size`-th image of it."""
    tensors = [Ranks.current().gather(local) for local in (images.x, images.y, images.index_B)]
    x, y, index_B = (gathered.transpose(0, 1).flatten(0, 1) for gathered in tensors)
    return _SearchImages(x, y, x, images.seed, index_B)
