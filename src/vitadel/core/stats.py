"""Statistics of evaluations: accuracies with intervals, paired tests, corruption errors, and fits through many models.

accuracy(812, 1000)                      # Wilson's interval
mcnemar(12, 3)                           # images that only one of two models classifies correctly
paired_difference(12, 3, 100)            # by how much the first is better, of 100 images
paired_test({"a.png": 1.0}, {"a.png": 0.0})
mean_corruption_error(errors)            # mCE, by name
fit_line(x, y), fit_power_law(parameters, errors)
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from vitadel.core.errors import UsageError

# the 97.5% quantile of the normal distribution
Z95 = 1.959963984540054

# ------------------------------------------------------------- accuracies


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The proportion of correct predictions with its 95% interval."""

    correct: int
    n: int
    accuracy: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    @property
    def percent(self) -> str:
        """The accuracy in percent, with one decimal."""
        return f"{100 * self.accuracy:.1f}"

    @property
    def interval(self) -> str:
        """The ends of the interval in percent."""
        return f"{100 * self.low:.1f}\N{EN DASH}{100 * self.high:.1f}"


def accuracy(correct: int, n: int) -> Accuracy:
    r"""The proportion `correct / n` with Wilson's score interval (1927), valid for few images and near 0 and 1.

    .. math:: \frac{\hat p + z^2/2n \pm z \sqrt{\hat p (1 - \hat p)/n + z^2/4n^2}}{1 + z^2/n}

    Raises:
        UsageError: If `n` is zero.
    """
    if n < 1:
        raise UsageError("no images were evaluated, so there is no accuracy. Choose a longer slice of the data.")
    share = correct / n
    center = share + Z95**2 / (2 * n)
    half_width = Z95 * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n**2))
    scale = 1 + Z95**2 / n
    # at 0 and 1 one end is exact, and the formula would miss it by a rounding error
    low = 0.0 if correct == 0 else (center - half_width) / scale
    high = 1.0 if correct == n else (center + half_width) / scale
    return Accuracy(correct, n, share, low, high)


def expected_accuracy(shares: Sequence[float]) -> Accuracy:
    """The mean of proportions per image, such as how often a randomized model is correct, with the interval of a mean.

    The variance between images includes both that they differ and that each was sampled a finite number of times.
    """
    mean, low, high = mean_interval(shares)
    return Accuracy(round(sum(shares)), len(shares), mean, max(0.0, low), min(1.0, high))


def accuracy_of(scores: Sequence[float]) -> Accuracy:
    """The accuracy of one score per image: Wilson's interval if all are 0 or 1, else that of a mean."""
    if all(score in (0, 1) for score in scores):
        return accuracy(int(sum(scores)), len(scores))
    return expected_accuracy(scores)


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean and the ends of its normal 95% interval; both ends are the mean if there is one value only."""
    n, mean = len(values), sum(values) / len(values)
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, n - 1))
    half_width = Z95 * std / math.sqrt(n)
    return mean, mean - half_width, mean + half_width


# ----------------------------------------------------------- paired tests

# the smallest float with full precision: p-values are never 0
SMALLEST_P = sys.float_info.min


def mcnemar(first_only: int, second_only: int, alternative: Literal["two-sided", "greater"] = "two-sided") -> float:
    r"""The p-value of McNemar's exact test (1947) of two models, or two attacks, on the same images.

    If neither is better, each image on which they differ is a fair coin toss, so the counts are binomial. The tail is
    a regularized incomplete beta function, which is exact to 12 digits however many images differ.

    .. math:: P = \min\Big(1,\; 2^{1-m} \sum_{k \ge \max(a, b)} \binom{m}{k}\Big), \qquad
        2^{-m} \sum_{k \ge a} \binom{m}{k} = I_{1/2}(a, b + 1), \qquad m = a + b

    Args:
        first_only: Images that only the first classifies correctly (or that only the first attack breaks), a.
        second_only: Images of the second alone, b.
        alternative: `two-sided`, or `greater` to test whether the first is better.

    Returns:
        The probability of counts at least this uneven, at least `SMALLEST_P`.
    """
    from scipy.special import betainc  # takes a while to import, and few commands need it

    if alternative == "two-sided":
        more, fewer = max(first_only, second_only), min(first_only, second_only)
        return min(1.0, 2 * mcnemar(more, fewer, "greater"))
    if not first_only:
        return 1.0
    return max(SMALLEST_P, float(betainc(first_only, second_only + 1, 0.5)))


@dataclass(frozen=True, slots=True)
class PairedTest:
    """A test of whether two models differ on the images that both have scores for.

    Args:
        n: The images of both.
        first_better: Those on which the first model has the higher score.
        second_better: Those on which the second has.
        p: The two-sided p-value.
        exact: Whether it is McNemar's test of scores that are 0 or 1; otherwise a normal test of proportions.
    """

    n: int
    first_better: int
    second_better: int
    p: float
    exact: bool

    @property
    def name(self) -> str:
        """The name of the test."""
        return "McNemar, exact" if self.exact else "paired, for shares"


def paired_test(first: Mapping[str, float], second: Mapping[str, float]) -> PairedTest | None:
    """Compare scores by image id, on the images that have finite ones of both; None if there are none.

    Scores of 0 and 1 are compared by McNemar's exact test. For other proportions the statistic is the sum of
    differences divided by the root of the sum of their squares, which is normal if neither model is better, and which
    is McNemar's for scores of 0 and 1.
    """
    pairs = [(first[key], second[key]) for key in first if key in second]
    pairs = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    if not pairs:
        return None
    gained, lost = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    exact = all(score in (0, 1) for pair in pairs for score in pair)
    p = mcnemar(gained, lost) if exact else _normal_p([a - b for a, b in pairs])
    return PairedTest(len(pairs), gained, lost, p, exact)


def _normal_p(differences: Sequence[float]) -> float:
    squares = math.fsum(difference**2 for difference in differences)
    if not squares:
        return 1.0
    return max(SMALLEST_P, math.erfc(abs(math.fsum(differences)) / math.sqrt(2 * squares)))


# ------------------------------------------------- differences of accuracies


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much one accuracy is higher than another, with its 95% interval.

    Args:
        value: The difference.
        low: The lower end of the interval.
        high: The upper end.
        p: The two-sided p-value of an exact test of no difference, where there is one.
    """

    value: float
    low: float
    high: float
    p: float | None = None


def independent_difference(first: Accuracy, second: Accuracy) -> Difference:
    r"""The difference of accuracies on different images, or where it is not known which images were correct.

    The interval of Newcombe (1998, method 10), from both Wilson intervals :math:`[l, u]`:

    .. math:: \Big[d - \sqrt{(p_1 - l_1)^2 + (u_2 - p_2)^2},\; d + \sqrt{(u_1 - p_1)^2 + (p_2 - l_2)^2}\Big]
    """
    value = first.accuracy - second.accuracy
    below = math.hypot(first.accuracy - first.low, second.high - second.accuracy)
    above = math.hypot(first.high - first.accuracy, second.accuracy - second.low)
    return Difference(value, value - below, value + above)


def paired_difference(first_only: int, second_only: int, n: int) -> Difference:
    r"""The difference of accuracies on the same images, with McNemar's exact p-value.

    The interval of Bonett & Price (2012), which adds an image to each kind on which the models differ, so that it has
    a width even if there are none:

    .. math:: p_1 = \frac{a + 1}{n + 2},\quad p_2 = \frac{b + 1}{n + 2},\qquad
        p_1 - p_2 \pm z \sqrt{\frac{p_1 + p_2 - (p_1 - p_2)^2}{n + 2}}

    Args:
        first_only: Images that only the first classifies correctly, a.
        second_only: Images of the second alone, b.
        n: All images.
    """
    if n < 1 or first_only + second_only > n:
        raise UsageError(
            f"two models differ on {first_only + second_only} of {n} images, which cannot be. "
            "Pass the number of all images as n."
        )
    one, other = (first_only + 1) / (n + 2), (second_only + 1) / (n + 2)
    half_width = Z95 * math.sqrt((one + other - (one - other) ** 2) / (n + 2))
    center = one - other
    value = (first_only - second_only) / n
    return Difference(value, center - half_width, center + half_width, mcnemar(first_only, second_only))


def crossed_interval(scores: NDArray[np.float64]) -> tuple[float, float, float]:
    r"""The mean of scores [S, N] of S trainings on the same N images, and its 95% interval over both.

    Trainings and images are both samples, so both variances of the mean are added, and the degrees of freedom follow
    Welch and Satterthwaite. The interaction of training and image is counted in both variances, so the interval is
    conservative. With one training the interval is over images only.

    .. math:: v_S = \frac{\operatorname{var}_s \bar x_{s \cdot}}{S}, \quad
        v_N = \frac{\operatorname{var}_i \bar x_{\cdot i}}{N}, \qquad
        \bar x \pm t_{0.975,\nu} \sqrt{v_S + v_N}, \quad
        \nu = \frac{(v_S + v_N)^2}{v_S^2 / (S - 1) + v_N^2 / (N - 1)}
    """
    from scipy.special import stdtrit

    trainings, images = scores.shape
    mean = float(scores.mean())
    parts = [(trainings, scores.mean(1)), (images, scores.mean(0))]
    variances = [(float(np.var(means, ddof=1)) / count, count - 1) for count, means in parts if count > 1]
    total = sum(variance for variance, _ in variances)
    if not total:
        return mean, mean, mean
    freedom = total**2 / sum(variance**2 / degrees for variance, degrees in variances)
    half_width = float(stdtrit(freedom, 0.975)) * math.sqrt(total)
    return mean, mean - half_width, mean + half_width


# ------------------------------------------------------ corruption errors

# AlexNet's errors on ImageNet-C, the mean of five severities, and on the clean images: what mCE divides by. Nobody has
# published trustworthy ones for the extra four corruptions, and there are none for CIFAR.
ALEXNET_ERRORS: Mapping[str, float] = MappingProxyType(
    {
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
)
ALEXNET_CLEAN_ERROR = 0.4348

Errors = TypeVar("Errors", float, NDArray[np.float64])


def mean_corruption_error(errors: Mapping[str, Errors]) -> Errors:
    r"""mCE of Hendrycks & Dietterich 2019 (arXiv:1903.12261), 1 for AlexNet.

    .. math:: \mathrm{mCE} = \frac{1}{15} \sum_c \frac{\sum_s E_{c,s}}{\sum_s E^{\mathrm{AlexNet}}_{c,s}}

    Args:
        errors: By corruption, the mean error over five severities; of a model, or [n] of single images. They are
            matched by name, so that their order does not matter.

    Raises:
        UsageError: If one of the fifteen corruptions is missing.
    """
    _require_all(errors)
    ratios = [errors[name] / base for name, base in ALEXNET_ERRORS.items()]
    return sum(ratios[1:], ratios[0]) / len(ratios)


def relative_mean_corruption_error(errors: Mapping[str, Errors], clean_error: Errors) -> Errors:
    """As `mean_corruption_error` for the increase over the clean error, of the model and of AlexNet."""
    _require_all(errors)
    ratios = [(errors[name] - clean_error) / (base - ALEXNET_CLEAN_ERROR) for name, base in ALEXNET_ERRORS.items()]
    return sum(ratios[1:], ratios[0]) / len(ratios)


def _require_all(errors: Mapping[str, object]) -> None:
    if absent := [name for name in ALEXNET_ERRORS if name not in errors]:
        raise UsageError(
            f"mCE is the mean over 15 corruptions, and {', '.join(absent)} are missing. Evaluate them too."
        )


# --------------------------------------------------- fits through models

_LEAST_POINTS = 3  # a line goes through any two


@dataclass(frozen=True, slots=True)
class LinearFit:
    """`slope * x + intercept`, the least squares of `points` points."""

    slope: float
    intercept: float
    points: int

    def at(self, x: float) -> float:
        """The value at `x`."""
        return self.slope * x + self.intercept


@dataclass(frozen=True, slots=True)
class PowerLawFit:
    """`factor * size ** exponent`, a line through the logarithms of `points` points."""

    factor: float
    exponent: float
    points: int

    def at(self, size: float) -> float:
        """The value at `size`."""
        return float(self.factor * size**self.exponent)


def fit_line(x: Sequence[float], y: Sequence[float]) -> LinearFit | None:
    """The line with the least squared error in y; None for fewer than three points or only one x."""
    if len(x) < _LEAST_POINTS or len(set(x)) < 2:
        return None
    centered = np.asarray(x, np.float64) - np.mean(x)
    slope = float(centered @ (np.asarray(y, np.float64) - np.mean(y)) / (centered @ centered))
    return LinearFit(slope, float(np.mean(y) - slope * np.mean(x)), len(x))


def fit_power_law(sizes: Sequence[float], errors: Sequence[float]) -> PowerLawFit | None:
    """The power law through errors of models by size; None unless there are three different sizes."""
    if len(set(sizes)) < _LEAST_POINTS:
        return None
    line = fit_line([math.log(size) for size in sizes], [math.log(error) for error in errors])
    return None if line is None else PowerLawFit(math.exp(line.intercept), line.slope, line.points)


def logit(share: float) -> float:
    """The axis on which accuracies of many models under two distributions lie on a line (Taori et al. 2020)."""
    return math.log(share / (1 - share))


def inverse_logit(value: float) -> float:
    """The share whose logit this is."""
    return 1 / (1 + math.exp(-value))


def clip_share(share: float, n: int) -> float:
    """A share that has a logit and a logarithm: none and all of `n` images count as half an image from there."""
    return min(max(share, 0.5 / n), 1 - 0.5 / n)
