"""Numbers with their uncertainty, as other rooms know them too, and those that compare models."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from vitadel.core.errors import UsageError
from vitadel.core.stats import Accuracy, accuracy, expected_accuracy, mcnemar_p

__all__ = [
    "ALEXNET",
    "ALEXNET_CLEAN",
    "Accuracy",
    "McNemar",
    "Trend",
    "accuracy",
    "effective_robustness",
    "expected_accuracy",
    "fit_trend",
    "logit",
    "mcnemar",
    "mean_corruption_error",
    "probit",
    "relative_corruption_error",
]

# AlexNet's errors on ImageNet-C, the mean of five severities, and on the clean images: what mCE divides by. Nobody has
# published trustworthy ones for the extra four corruptions, and there are none for CIFAR.
ALEXNET: Mapping[str, float] = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
ALEXNET_CLEAN = 0.4348

_NORMAL = NormalDist()


def mean_corruption_error(errors: Mapping[str, float]) -> float:
    r"""mCE of Hendrycks & Dietterich 2019 (arXiv:1903.12261), 1 for AlexNet; `errors` are means over five severities.

    .. math:: \mathrm{mCE} = \frac{1}{15} \sum_c \frac{\sum_s E_{c,s}}{\sum_s E^{\mathrm{AlexNet}}_{c,s}}

    Errors go by name: a list in another order gives another number and no warning.
    """
    _refuse_others(errors)
    return sum(errors[name] / base for name, base in ALEXNET.items()) / len(ALEXNET)


def relative_corruption_error(errors: Mapping[str, float], clean: float) -> float:
    """The same for what corruption adds to the error on clean images, in the model and in AlexNet."""
    _refuse_others(errors)
    added = ((errors[name] - clean) / (base - ALEXNET_CLEAN) for name, base in ALEXNET.items())
    return sum(added) / len(ALEXNET)


def _refuse_others(errors: Mapping[str, float]) -> None:
    if absent := [name for name in ALEXNET if name not in errors]:
        raise UsageError(f"mCE is the mean over 15 corruptions, and {', '.join(absent)} are missing.")


@dataclass(frozen=True, slots=True)
class McNemar:
    """Two models on the same images: how many each alone is right about, and how often chance does that (two-sided)."""

    first_only: int
    second_only: int
    p: float


def mcnemar(first: Sequence[bool | float], second: Sequence[bool | float]) -> McNemar:
    """McNemar's paired test (1947) on two lists of verdicts, image by image; exact (`vitadel.core.stats.mcnemar_p`)."""
    if len(first) != len(second):
        raise UsageError(f"a paired test wants the same images twice, got {len(first)} and {len(second)} verdicts.")
    odd = next((one for one in (*first, *second) if one not in (0, 1)), None)
    if odd is not None:
        raise UsageError(f"McNemar's test counts verdicts that are 0 or 1, got {odd}. Shares have no such test.")
    pairs = [(bool(one), bool(other)) for one, other in zip(first, second, strict=True)]
    ours, theirs = pairs.count((True, False)), pairs.count((False, True))
    return McNemar(ours, theirs, mcnemar_p(ours, theirs))


def logit(share: float) -> float:
    return math.log(share / (1 - share))


def probit(share: float) -> float:
    return _NORMAL.inv_cdf(share)


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through the accuracies of several models, on an axis where such points lie on a line."""

    slope: float
    intercept: float
    points: int
    axis: Callable[[float], float] = logit

    def expected(self, clean: float) -> float:
        """The accuracy under the shift that the line gives a model of this clean accuracy."""
        height = self.slope * self.axis(clean) + self.intercept
        return _NORMAL.cdf(height) if self.axis is probit else 1 / (1 + math.exp(-height))


def fit_trend(clean: Sequence[float], shifted: Sequence[float], axis: Callable[[float], float] = logit) -> Trend:
    """The least-squares line from clean to shifted accuracy (Taori et al. 2020, arXiv:2007.00644), `axis` on both."""
    if len(clean) != len(shifted) or len(clean) < 2 or len(set(clean)) < 2:
        raise UsageError(
            f"a trend needs two or more models of different clean accuracy, got {len(clean)} and {len(shifted)} points."
        )
    edge = next((one for one in (*clean, *shifted) if not 0 < one < 1), None)
    if edge is not None:
        raise UsageError(f"an accuracy of {edge:g} has no place on a {axis.__name__} axis. Leave that model out.")
    x, y = [axis(one) for one in clean], [axis(one) for one in shifted]
    center_x, center_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - center_x) * (b - center_y) for a, b in zip(x, y, strict=True))
    slope /= sum((a - center_x) ** 2 for a in x)
    return Trend(slope, center_y - slope * center_x, len(x), axis)


def effective_robustness(trend: Trend, clean: float, shifted: float) -> float:
    """How far a model lies above the trend: its accuracy under the shift less what its clean accuracy makes likely."""
    return shifted - trend.expected(clean)
