"""The search for the factors of adaptive attention scaling; `config` has the settings and the paper's algorithm.

Shape letters: B images, K classes, M factors.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitadel.attacks.attention_scaling.config import Factors, Scaling
from vitadel.attacks.attention_scaling.rescaled_model import HasTaps, RescaledModel, require_taps
from vitadel.attacks.gama import GUIDANCE_WEIGHT, guided_margin
from vitadel.attacks.isolation import isolated
from vitadel.attacks.oracle import in_own_precision
from vitadel.core.errors import UsageError
from vitadel.core.numeric import check_seed
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.losses import cross_entropy, margin

# distance of the first start from the largest factor, as a fraction of the log-spacing of the starts
_FIRST_START = 1 / 3
_TRIES = 100  # normal starts drawn before giving up on one inside the range


@dataclass(frozen=True, slots=True)
class FactorSearchResult:
    """The best factors, all candidates, and the cost of the search.

    Args:
        best: The best factors, as `Scaling.keep` defines them.
        tried: All candidates.
        forwards: Forward passes, counted in images.
        backwards: Backward passes, counted in images.
        seconds: Duration.
    """

    best: Factors
    tried: tuple[Factors, ...]
    forwards: int
    backwards: int
    seconds: float


# factors -> how many images a short attack breaks with them, of how many
Trial = Callable[[Factors], tuple[int, int]]


def maximize_factors(
    model: object,
    x: Tensor,
    y: Tensor,
    scaling: Scaling,
    *,
    trial: Trial | None = None,
    reference: Factors | None = None,
    seed: int = 0,
) -> FactorSearchResult:
    """Search factors on images; the model is not changed.

    Args:
        model: The model, with taps.
        x: [B, C, H, W] the images.
        y: [B] their labels.
        scaling: How to search.
        trial: Counts the images that an attack breaks with given factors; without it, `keep="broken"` decides by the
            objective. A network without attention needs it.
        reference: The initial factors of a drifting reference; by default all are 1.
        seed: Seed of the search.

    Raises:
        UsageError: If the model has no taps, no start lies inside the range, or logits are scaled without a trial.
    """
    check_seed(seed)
    inner, started = require_taps(model), time.perf_counter()
    with isolated(model, seed, x.device), torch.autocast(x.device.type, enabled=False):
        search = FactorSearch(inner, scaling, in_own_precision(inner, x), y, seed, reference)
        if trial is None and not search.attentions:
            raise UsageError(
                "the model has no attention Vitadel supports, and a factor of its logits is chosen by an attack, got "
                "no trial. Call find_attack_factors."
            )
        tried = [_tried(one, trial) for one in search.candidates()]
    if not search.attentions:
        best = max(tried, key=_logits_rank)
    else:
        best = tried[-1] if scaling.keep == "last" else max(tried, key=_rank_by(scaling.keep, trial))
    return FactorSearchResult(best, tuple(tried), search.forwards, search.backwards, time.perf_counter() - started)


def _tried(factors: Factors, trial: Trial | None) -> Factors:
    if trial is None:
        return factors
    broken, num_images = trial(factors)
    return replace(factors, broken=broken, num_images=num_images)


def _rank_by(keep: str, trial: Trial | None) -> Callable[[Factors], tuple[float, ...]]:
    def rank(factors: Factors) -> tuple[float, ...]:
        objective = -math.inf if factors.objective is None else factors.objective
        if keep != "broken" or trial is None:
            return (objective,)
        return (float(factors.broken or 0), -objective)  # among equals, the factors that change features less

    return rank


def _logits_rank(factors: Factors) -> tuple[float, float]:
    """By the number of images broken, and among equals by nearness to 1."""
    return (float(factors.broken or 0), -abs(math.log10(factors.logits)))


class FactorSearch:
    """Generates candidates for one model, one after the other."""

    def __init__(
        self, model: HasTaps, scaling: Scaling, x: Tensor, y: Tensor, seed: int, first_reference: Factors | None = None
    ) -> None:
        self.model, self.scaling, self.x, self.y, self.seed = model, scaling, x, y, seed
        self.first_reference = first_reference
        self.attentions = len(model.taps.attentions())
        self.scaled = min(self.attentions, scaling.blocks or self.attentions)
        self.names = [f"{name.removesuffix('.attn')}.out" for name in model.taps.attentions()]
        self.forwards = self.backwards = 0

    def candidates(self) -> Iterator[Factors]:
        if not self.attentions:
            for factor in self.scaling.grid or Scaling.manual().grid:
                yield Factors((), factor)
            return
        if self.scaling.grid:
            for factor in self.scaling.grid:
                yield self._evaluated(_uniform(self.count, factor), self._batch(0))
            return
        reference_M = _uniform(self.count, 1.0)
        if self.scaling.reference == "drifting" and self.first_reference is not None:
            reference_M = self._searched_factors(self.first_reference)
        for number in range(self.scaling.batches):
            *earlier, last = self.maximize(number, reference_M)
            if self.scaling.keep == "broken":
                yield from earlier
            yield last
            if self.scaling.reference == "drifting":
                reference_M = self._searched_factors(last)

    def _batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Images and labels of batch `number`, cyclically."""
        size = min(self.scaling.batch_size, len(self.x))
        index_B = (torch.arange(number * size, (number + 1) * size) % len(self.x)).to(self.x.device)
        return self.x[index_B], self.y[index_B]

    @property
    def count(self) -> int:
        """How many factors are searched for."""
        return self.scaled + self.scaling.logits

    def _all_factors(self, searched_M: Tensor, value: float) -> Factors:
        factors = [float(one) for one in searched_M]
        rest = [1.0] * (self.attentions - self.scaled)
        logits = factors[self.scaled] if self.scaling.logits else 1.0
        return Factors((*factors[: self.scaled], *rest), logits, value)

    def _searched_factors(self, factors: Factors) -> Tensor:
        kept = [*factors.attentions[: self.scaled], *([factors.logits] * self.scaling.logits)]
        return torch.tensor(kept, dtype=torch.float64)

    # ------------------------------------------------------- gradient ascent

    def maximize(self, number: int, reference_M: Tensor) -> list[Factors]:
        """First and last point of the steps of a mini-batch; with log-spaced starts, also the start without noise."""
        scaling, batch = self.scaling, self._batch(number)
        reference = self.reference(reference_M, batch[0])
        u_M = self.start(number, reference_M)
        points = (
            [self._evaluated(self._log_spaced_start(number), batch, reference)] if scaling.start == "decades" else []
        )
        points.append(self._evaluated(self.factors_at(u_M), batch, reference))
        for _ in range(scaling.steps):
            u_M = u_M + scaling.step_size * _direction(self.gradient(u_M, batch, reference), scaling.rule)
            u_M = self.clamped(u_M) if scaling.through_clamp else u_M
        return [*points, self._evaluated(self.factors_at(u_M), batch, reference)]

    def _log_spaced_start(self, number: int) -> Tensor:
        """The same factor for all layers, log-spaced over the batches from near `high` down to near `low`.

        Without gradient masking, factors near 1 work best; with strong masking, smaller ones do.
        """
        span = math.log10(self.scaling.high / self.scaling.low)
        down = span * (number % self.scaling.batches + _FIRST_START) / self.scaling.batches
        return _uniform(self.count, self.scaling.high * 10**-down)

    def start(self, number: int, reference_M: Tensor) -> Tensor:
        """The reference plus noise, or a log-spaced start with noise in log space; never the reference itself."""
        for attempt in range(_TRIES):
            stream = RandomStreams.of(fold_seed(self.seed, number, attempt), torch.zeros(1, dtype=torch.int64))
            noise_M = stream.normal(self.count, dtype=torch.float64)[0]
            if self.scaling.start == "decades":
                return self.clamped(self._log_spaced_start(number).log10() + noise_M)
            u_M = self._into_space(reference_M) + noise_M
            if bool((self.factors_at(u_M) != reference_M).any()):
                return self.clamped(u_M) if self.scaling.through_clamp else u_M
        raise UsageError(f"no start inside [{self.scaling.low:g}, {self.scaling.high:g}] was drawn. Widen the range.")

    def _into_space(self, factors_M: Tensor) -> Tensor:
        return factors_M.log10() if self.scaling.space == "log" else factors_M

    def clamped(self, u_M: Tensor) -> Tensor:
        low, high = self.scaling.low, self.scaling.high
        return u_M.clamp(math.log10(low), math.log10(high)) if self.scaling.space == "log" else u_M.clamp(low, high)

    def factors_at(self, u_M: Tensor) -> Tensor:
        """The factors at a point of the search space."""
        return self._from_space(self.clamped(u_M))

    def _from_space(self, u_M: Tensor) -> Tensor:
        return 10**u_M if self.scaling.space == "log" else u_M

    def gradient(self, u_M: Tensor, batch: tuple[Tensor, Tensor], reference: Sequence[Tensor]) -> Tensor:
        u_M = u_M.detach().requires_grad_()
        # a clamp has no gradient at its ends either; with `through_clamp` every point is inside the range already
        factors = self._from_space if self.scaling.through_clamp else self.factors_at
        with torch.enable_grad():
            (grad_M,) = torch.autograd.grad(self.objective(factors(u_M), batch, reference), u_M)
        self.backwards += len(batch[0])
        return grad_M

    # -------------------------------------------------------------- objective

    @torch.no_grad()
    def _evaluated(
        self, factors_M: Tensor, batch: tuple[Tensor, Tensor], reference: Sequence[Tensor] | None = None
    ) -> Factors:
        reference = self.reference(_uniform(self.count, 1.0), batch[0]) if reference is None else reference
        return self._all_factors(factors_M, float(self.objective(factors_M, batch, reference)))

    @torch.no_grad()
    def reference(self, factors_M: Tensor, x: Tensor) -> list[Tensor]:
        """Reference features after every block, and last the logits."""
        return self._forward(factors_M, x)

    def _forward(self, factors_M: Tensor, x: Tensor) -> list[Tensor]:
        self.forwards += len(x)
        factors_M = factors_M.to(x)
        scales_M = torch.cat([factors_M[: self.scaled], torch.ones(self.attentions - self.scaled).to(x)])
        logits = factors_M[self.scaled] if self.scaling.logits else 1.0
        with ExitStack() as stack:
            seen = [stack.enter_context(self.model.taps.read(name)) for name in self.names]
            z_BK = RescaledModel(self.model, scales_M, logits)(x)
        return [*(one[name] for one, name in zip(seen, self.names, strict=True)), z_BK]

    def objective(self, factors_M: Tensor, batch: tuple[Tensor, Tensor], reference: Sequence[Tensor]) -> Tensor:
        (x, y), scaling = batch, self.scaling
        *features, z_BK = self._forward(factors_M, x)
        if scaling.loss == "features":
            pairs = zip(features, reference, strict=False)
            return torch.stack([_distance(a, b, scaling.distance) for a, b in pairs]).sum(0).mean()
        if scaling.loss == "cross-entropy":
            return cross_entropy(z_BK, y).mean()
        if scaling.loss == "margin":
            return margin(z_BK, y).mean()
        return guided_margin(z_BK, y, reference[-1].softmax(1), GUIDANCE_WEIGHT).mean()


def _uniform(count: int, factor: float) -> Tensor:
    # float64: a factor of 1e-5 should read 1e-5 in a report
    return torch.full((count,), factor, dtype=torch.float64)


def _distance(here: Tensor, there: Tensor, distance: str) -> Tensor:
    """[B] distances between features of the same images."""
    here, there = here.flatten(1), there.flatten(1)
    if distance == "unit":
        return torch.linalg.vector_norm(_unit(here) - _unit(there), dim=1)
    norms = torch.linalg.vector_norm(here, dim=1) * torch.linalg.vector_norm(there, dim=1)
    return torch.linalg.vector_norm(here - there, dim=1) / norms


def _unit(features: Tensor) -> Tensor:
    return features / torch.linalg.vector_norm(features, dim=1, keepdim=True).clamp_min(
        torch.finfo(features.dtype).tiny
    )


def _direction(grad_M: Tensor, rule: str) -> Tensor:
    if rule == "sign":
        return grad_M.sign()
    if rule == "unit":
        return grad_M / grad_M.norm().clamp_min(torch.finfo(grad_M.dtype).tiny)
    return grad_M
