"""Lines through models: effective robustness, and how error falls with size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST = 3  # points; a line goes through any two


@dataclass(frozen=True, slots=True)
class Line:
    """`slope * x + intercept`, the least squares of `points` points."""

    slope: float
    intercept: float
    points: int

    def at(self, x: float) -> float:
        return self.slope * x + self.intercept


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """`factor * size ** exponent`, a line through the logarithms of `points` points."""

    factor: float
    exponent: float
    points: int

    def at(self, size: float) -> float:
        return float(self.factor * size**self.exponent)


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line | None:
    """The line with the least squared error in y; None for fewer than three points or only one x."""
    if len(x) < LEAST or len(set(x)) < 2:
        return None
    away = np.asarray(x, np.float64) - np.mean(x)
    slope = float(away @ (np.asarray(y, np.float64) - np.mean(y)) / (away @ away))
    return Line(slope, float(np.mean(y) - slope * np.mean(x)), len(x))


def fit_power_law(sizes: Sequence[float], errors: Sequence[float]) -> PowerLaw | None:
    """None unless there are three different sizes."""
    if len(set(sizes)) < LEAST:
        return None
    line = fit_line([math.log(size) for size in sizes], [math.log(error) for error in errors])
    return None if line is None else PowerLaw(math.exp(line.intercept), line.slope, line.points)


def logit(share: float) -> float:
    return math.log(share / (1 - share))


def inverse_logit(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def inside(share: float, n: int) -> float:
    """A share that has a logit and a logarithm: none and all of `n` images count as half an image from there."""
    return min(max(share, 0.5 / n), 1 - 0.5 / n)
