r"""Adaptive attention scaling: the search for factors of the attention scores, one per attention layer.

Algorithm 1 of Jain & Dutta (CVPR 2024, "Towards Understanding and Improving Adversarial Robustness of Vision
Transformers") searches factors that move the features of a model as far as possible, and attacks the rescaled model.
It leaves much open; each choice is a field of `Scaling`.

=====================================  ==================================  ===========================================
Algorithm 1                            `Scaling.literal()`                 `Scaling()`, and why
=====================================  ==================================  ===========================================
:math:`\delta \sim N(0, 1)`            start="normal", space="linear"      "decades", "log": between 1e-7 and 1 lie
                                                                           seven magnitudes, and a normal start around
                                                                           1 meets the first of them alone
divides by the product of both norms   distance="literal"                  "unit": the gradient of the other is some
                                                                           1e-4, and ten steps move nothing
no step size                           step_size=1, rule="raw"             the same
:math:`S \leftarrow S'` per batch      reference="drifting"                "original": the reference stays the model
clamp after the step                   through_clamp=False                 True: a clamp has no gradient, and half of
                                                                           the normal starts lie outside
the last S is used                     keep="last"                         "broken": images that a short attack breaks
                                                                           with it, counted on the original model
m factors for m - 1 attention layers   logits=True                         False: one factor for each layer
M mini-batches of n training images    batches=8, batch_size=32            the same: M and n are not given; suites of
                                                                           attacks take them from split="train"
=====================================  ==================================  ===========================================

Of a network without attention the logits are scaled, as the paper's Figure 1b does for a WideResNet: every setting
tries the factors of ``grid``, by default those of `Scaling.manual`, with the short attack. Logits times a factor have
the same predictions and a unit distance of 0, so there is nothing to follow a gradient of.

`Scaling.paper()` is the reading in between: Algorithm 1 with unit distances, a fixed reference, the gradient taken
through the clamp, and the factors of the greatest distance.

Shape letters: B images, K classes, M factors.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from vitadel.attacks.attention_scaling.rescaled_model import HasTaps, RescaledModel, require_taps
from vitadel.attacks.base import Attack
from vitadel.attacks.isolation import isolated
from vitadel.attacks.oracle import in_own_precision
from vitadel.attacks.pgd import PGD
from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.core.numeric import Count, Positive, check_ranges, check_seed
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.losses import cross_entropy, margin

_CHOICES = {
    "loss": ("features", "cross-entropy", "margin", "gama"),
    "distance": ("unit", "literal"),
    "space": ("log", "linear"),
    "start": ("decades", "normal"),
    "rule": ("raw", "sign", "unit"),
    "reference": ("original", "drifting"),
    "keep": ("broken", "distance", "last"),
    "split": ("train", "evaluated"),
}
_GUIDE = 50.0  # GAMA's weight of the distance between outputs
_MILD = 1 / 3  # of a decade between two batches lies above the first factor
_TRIES = 100  # normal starts drawn before giving up on one inside the range


@dataclass(frozen=True, slots=True)
class Scaling:
    """Settings of the search; the default tries factors of all magnitudes with a short attack.

    Args:
        loss: What is maximized: the distance between "features", or as in the paper's Table 2 a loss of the logits,
            "cross-entropy", "margin" or "gama".
        distance: Of features: "unit" between those scaled to unit length; "literal" divides their distance by the
            product of both norms.
        space: Whether steps are taken in "log" or "linear" space.
        start: Starts spread over "decades", or "normal" ones around the reference.
        steps: Gradient steps per start.
        step_size: Their size.
        rule: The direction of a step: the "raw" gradient, its "sign", or of "unit" length.
        through_clamp: Whether the gradient passes the clamp to [low, high].
        reference: "original" features, or "drifting" with the last factors.
        keep: The candidate to keep: with most images "broken", with the largest "distance", or the "last".
        low: The smallest factor.
        high: The largest factor.
        batches: Starts, each on a separate batch.
        batch_size: Images per start.
        trial_images: Images on which the trial attack counts.
        trial_attack: The short attack that tries a candidate.
        blocks: Scale only the first attention layers, this many (Figure 3a).
        logits: Whether the logits are multiplied by a factor too.
        grid: Try these factors, the same for all layers, instead of searching (Table 1).
        split: The images on which a suite of attacks searches: of "train", the training images of the data set, where
            it has some; or the "evaluated" ones, which the result then says.
    """

    former_names: ClassVar[dict[str, str]] = {"batch": "batch_size", "held": "trial_images", "probe": "trial_attack"}

    loss: str = "features"
    distance: str = "unit"
    space: str = "log"
    start: str = "decades"
    steps: Count = 10
    step_size: Positive = 1.0
    rule: str = "raw"
    through_clamp: bool = True
    reference: str = "original"
    keep: str = "broken"
    low: Positive = 1e-7
    high: Positive = 1.0
    batches: Count = 8
    batch_size: Count = 32
    trial_images: Count = 64
    trial_attack: Attack = field(default_factory=lambda: PGD(steps=20))
    blocks: Count | None = None
    logits: bool = False
    grid: tuple[Positive, ...] = ()
    split: str = "train"

    def __post_init__(self) -> None:
        check_ranges(self)
        for name, known in _CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise unknown_name_error(f"Scaling.{name}", value, known)
        if not self.low < self.high:
            raise UsageError(f"Scaling needs 0 < low < high, got low={self.low:g} and high={self.high:g}. Swap them.")
        if self.start == "decades" and self.space == "linear":
            raise UsageError("Scaling.start='decades' counts in magnitudes. Write space='log', or start='normal'.")

    @classmethod
    def paper(cls) -> "Scaling":
        """Algorithm 1 with the smallest changes that make it work."""
        return cls(space="linear", start="normal", keep="distance")

    @classmethod
    def literal(cls) -> "Scaling":
        """Algorithm 1 to the letter."""
        return replace(
            cls.paper(), distance="literal", through_clamp=False, reference="drifting", keep="last", logits=True
        )

    @classmethod
    def manual(cls, *factors: float) -> "Scaling":
        """The best of these factors, the same for all attentions; by default the paper's Table 1 and one more."""
        return cls(grid=factors or (10.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5))


SCALINGS: dict[str, Callable[[], Scaling]] = {
    "aas": Scaling,
    "aas-paper": Scaling.paper,
    "aas-literal": Scaling.literal,
    "manual": Scaling.manual,
}


@dataclass(frozen=True, slots=True)
class Factors:
    """Factors of a model's attention layers and logits.

    Args:
        attentions: One factor per attention layer; none for a network without attention.
        logits: The factor of the logits.
        objective: The loss that was maximized, at these factors.
        broken: Images that a short attack breaks with these factors, counted on the original model; None if not tried.
        num_images: The number of images that were attacked.
    """

    attentions: tuple[float, ...]
    logits: float = 1.0
    objective: float | None = None
    broken: int | None = None
    num_images: int | None = None


@dataclass(frozen=True, slots=True)
class FactorSearchResult:
    """The factors kept, all that were tried, and the cost of the search.

    Args:
        best: The factors kept.
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
    """Search factors on images; nothing of the model changes.

    Args:
        model: The model, with taps.
        x: [B, C, H, W] the images.
        y: [B] their labels.
        scaling: How to search.
        trial: Counts the images that an attack breaks with given factors; without it, `keep="broken"` decides by the
            objective. A network without attention needs it.
        reference: The factors that a drifting reference begins with; by default all are 1.
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
        return (float(factors.broken or 0), -objective)  # of two that break as many, the one that changes less

    return rank


def _logits_rank(factors: Factors) -> tuple[float, float]:
    """The most images broken; of two factors with as many, the one nearer to 1."""
    return (float(factors.broken or 0), -abs(math.log10(factors.logits)))


class FactorSearch:
    """Candidates for one model, one after the other."""

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
        """Start and end of the steps of a mini-batch; with starts by decades, also the decade itself."""
        scaling, batch = self.scaling, self._batch(number)
        reference = self.reference(reference_M, batch[0])
        u_M = self.start(number, reference_M)
        points = [self._evaluated(self._decade(number), batch, reference)] if scaling.start == "decades" else []
        points.append(self._evaluated(self.factors_at(u_M), batch, reference))
        for _ in range(scaling.steps):
            u_M = u_M + scaling.step_size * _direction(self.gradient(u_M, batch, reference), scaling.rule)
            u_M = self.clamped(u_M) if scaling.through_clamp else u_M
        return [*points, self._evaluated(self.factors_at(u_M), batch, reference)]

    def _decade(self, number: int) -> Tensor:
        """The same factor for all, smaller from batch to batch and evenly so in magnitude; the first is mild.

        Without masking, factors near 1 work best; with strong masking, smaller is better.
        """
        span = math.log10(self.scaling.high / self.scaling.low)
        down = span * (number % self.scaling.batches + _MILD) / self.scaling.batches
        return _uniform(self.count, self.scaling.high * 10**-down)

    def start(self, number: int, reference_M: Tensor) -> Tensor:
        """Normal noise around the reference, or in magnitudes around a decade; never the reference itself."""
        for attempt in range(_TRIES):
            stream = RandomStreams.of(fold_seed(self.seed, number, attempt), torch.zeros(1, dtype=torch.int64))
            noise_M = stream.normal(self.count, dtype=torch.float64)[0]
            if self.scaling.start == "decades":
                return self.clamped(self._decade(number).log10() + noise_M)
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
        # a clamp cuts the gradient at its ends too, so where it is to pass nothing is clamped: steps end inside anyway
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
        p_BK, clean_BK = z_BK.softmax(1), reference[-1].softmax(1)
        return (margin(p_BK, y) + _GUIDE * (p_BK - clean_BK).square().sum(1)).mean()


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
