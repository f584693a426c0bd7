r"""Settings of adaptive attention scaling, and the factors that a search returns.

Algorithm 1 of Jain & Dutta (CVPR 2024, "Towards Understanding and Improving Adversarial Robustness of Vision
Transformers") searches factors that move the features of a model as far as possible, and attacks the rescaled model.
It leaves much open; each choice is a field of `Scaling`.

=====================================  ==================================  ===========================================
Algorithm 1                            `Scaling.literal()`                 `Scaling()`, and why
=====================================  ==================================  ===========================================
:math:`\delta \sim N(0, 1)`            start="normal", space="linear"      "decades", "log": between 1e-7 and 1 lie
                                                                           seven decades, and a normal start around 1
                                                                           reaches the first of them only
divides by the product of both norms   distance="literal"                  "unit": gradients of the literal one are
                                                                           about 1e-4, too small for ten steps
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
the same predictions and a unit distance of 0, so there is no gradient to follow.

`Scaling.paper()` is the reading in between: Algorithm 1 with unit distances, a fixed reference, the gradient taken
through the clamp, and the factors of the greatest distance.

Shape letters: B images, K classes, M factors.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from vitadel.attacks.base import Attack
from vitadel.attacks.pgd import PGD
from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.core.numeric import Count, Positive, Steps, check_ranges

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


@dataclass(frozen=True, slots=True)
class Scaling:
    """Settings of the search; the default tries factors of all magnitudes with a short attack.

    Args:
        loss: What is maximized: the distance between "features", or as in the paper's Table 2 a loss of the logits,
            "cross-entropy", "margin" or "gama".
        distance: Of features: "unit" between those scaled to unit length; "literal" divides their distance by the
            product of both norms.
        space: Whether steps are taken in "log" or "linear" space.
        start: "decades" for log-spaced starts, or "normal" for random ones around the reference.
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
        trial_images: Images that the trial attack attacks.
        trial_attack: The short attack that tries a candidate.
        blocks: Scale only the first attention layers, this many (Figure 3a).
        logits: Whether the logits are multiplied by a factor too.
        grid: Try these factors, the same for all layers, instead of searching (Table 1).
        split: The images on which a suite of attacks searches: of "train", the training images of the data set, where
            it has some; or the "evaluated" ones, which the record then states.
    """

    former_names: ClassVar[dict[str, str]] = {"batch": "batch_size", "held": "trial_images", "probe": "trial_attack"}

    loss: str = "features"
    distance: str = "unit"
    space: str = "log"
    start: str = "decades"
    steps: Steps = 10
    step_size: Positive = 1.0
    rule: str = "raw"
    through_clamp: bool = True
    reference: str = "original"
    keep: str = "broken"
    low: Positive = 1e-7
    high: Positive = 1.0
    batches: Steps = 8
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
            raise UsageError("Scaling.start='decades' is log-spaced. Write space='log', or start='normal'.")

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
        """The best of these factors, the same for all layers; by default the paper's Table 1 and one more."""
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
