"""What several models say together: robustness against clean accuracy, and error against size."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitadel.core.stats import LinearFit, PowerLawFit, clip_share, fit_line, fit_power_law, inverse_logit, logit
from vitadel.report.comparison.compare import Column, Comparison, Kind, Row, Score
from vitadel.report.surveys import ERRORS

MILLION = 1e6
_UNCOUNTED = 10**6  # images to assume of a share that does not say of how many


@dataclass(frozen=True, slots=True)
class Trend:
    """One column against clean accuracy, with a line where at least three models have both.

    The line runs through logits, in which accuracies on two sets of images of many models are known to lie on one;
    what is no share stays as it is.
    """

    column: Column
    clean: Column
    points: tuple[tuple[Row, Score, Score], ...]
    line: LinearFit | None

    @property
    def formulas(self) -> list[str]:
        if self.line is None:
            return []
        y = f"logit({self.column.title})" if self.column.is_share else self.column.title
        sign = "+" if self.line.intercept >= 0 else "\N{MINUS SIGN}"
        slope = f"{self.line.slope:.3g}".replace("-", "\N{MINUS SIGN}")
        return [f"{y} = {slope} logit(clean) {sign} {abs(self.line.intercept):.3g}, {self.line.points} models"]

    def residual(self, clean: Score, score: Score) -> float | None:
        """Effective robustness: how much better a model is than its clean accuracy says by the line."""
        if self.line is None:
            return None
        away = self.told(self.across_y(score)) - self.told(self.line.at(across(clean)))
        return away if self.column.higher_is_better else -away

    def across_y(self, score: Score) -> float:
        return across(score) if self.column.is_share else score.value

    def told(self, value: float) -> float:
        """A value of the line as the column's number."""
        return inverse_logit(value) if self.column.is_share else value


@dataclass(frozen=True, slots=True)
class Size:
    """A model's error and its interval; `parameters` is how many it has."""

    row: Row
    parameters: int
    error: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Scaling:
    """The error of one column against the size of models; a power law for every family of at least three sizes.

    Where no family has three, one for all, under no name.
    """

    column: Column
    points: tuple[Size, ...]
    fits: tuple[tuple[str, PowerLawFit], ...]

    @property
    def formulas(self) -> list[str]:
        return [
            (f"{family}: " if family else "")
            + f"error = {fit.factor:.3g} (parameters / 10\N{SUPERSCRIPT SIX})^"
            + f"{fit.exponent:.3g}".replace("-", "\N{MINUS SIGN}")
            + f", {fit.points} models"
            for family, fit in self.fits
        ]


def trends(comparison: Comparison) -> list[Trend]:
    """Every column but AutoAttack's, which the best known one is as good as, against clean accuracy."""
    at = comparison.clean
    if at is None:
        return []
    found = []
    for place, column in enumerate(comparison.columns):
        if column.kind in (Kind.BEST_KNOWN, Kind.SURVEY):
            pairs = [(row, row.scores[at], row.scores[place]) for row in comparison.rows]
            points = [(row, x, y) for row, x, y in pairs if x is not None and y is not None]
            if len(points) > 1:
                found.append(_trend(column, comparison.columns[at], points))
    return found


def _trend(column: Column, clean: Column, points: Sequence[tuple[Row, Score, Score]]) -> Trend:
    bare = Trend(column, clean, tuple(points), None)
    line = fit_line([across(x) for _, x, _ in points], [bare.across_y(y) for _, _, y in points])
    return Trend(column, clean, tuple(points), line)


def across(score: Score) -> float:
    """A share as its logit."""
    return logit(clip_share(score.value, score.n or _UNCOUNTED))


def scalings(comparison: Comparison) -> list[Scaling]:
    """Clean error, and that of every column that says how often a model errs; none for fewer than three sizes."""
    found = []
    for place, column in enumerate(comparison.columns):
        if column.kind is Kind.AUTOATTACK:
            continue
        points = [point for row in comparison.rows if (point := _size(row, column, row.scores[place])) is not None]
        if len({point.parameters for point in points}) > 2:
            found.append(Scaling(column, tuple(points), _fits(points)))
    return found


def _size(row: Row, column: Column, score: Score | None) -> Size | None:
    if score is None or row.parameters is None:
        return None
    if column.unit == "accuracy":
        ends = [None if end is None else 1 - end for end in (score.high, score.low)]
        return Size(row, row.parameters, clip_share(1 - score.value, score.n or _UNCOUNTED), ends[0], ends[1])
    if column.unit in ERRORS and score.value > 0:
        return Size(row, row.parameters, score.value, score.low, score.high)
    return None


def _fits(points: Sequence[Size]) -> tuple[tuple[str, PowerLawFit], ...]:
    families = dict.fromkeys(point.row.family for point in points if point.row.family)
    fits = [(name, _power_law([point for point in points if point.row.family == name])) for name in families]
    if all(fit is None for _, fit in fits):
        fits = [("", _power_law(points))]
    return tuple((name, fit) for name, fit in fits if fit is not None)


def _power_law(points: Sequence[Size]) -> PowerLawFit | None:
    return fit_power_law([point.parameters / MILLION for point in points], [point.error for point in points])


def millions(parameters: int) -> str:
    """A number of parameters as people say it: 86.6M, 5.4k."""
    return f"{parameters / MILLION:.3g}M" if parameters >= 10_000 else f"{parameters / 1000:.3g}k"
