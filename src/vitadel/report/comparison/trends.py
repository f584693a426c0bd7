"""What several models show together: robustness against clean accuracy, and error against size."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitadel.core.stats import LinearFit, PowerLawFit, clip_share, fit_line, fit_power_law, inverse_logit, logit
from vitadel.report.comparison.models import ColumnKind, ComparedColumn, Comparison, ModelRow, Score

MILLION = 1e6
_UNCOUNTED = 10**6  # images to assume of a share that does not say of how many
# kinds of numbers that say how much goes wrong, and so may be drawn against the size of a model
_ERRORS = frozenset({"error", "mCE", "relative mCE"})
_MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True, slots=True)
class Trend:
    """One column against clean accuracy, with a line where at least three models have both.

    The line runs through logits, in which accuracies of many models on two sets of images lie on a line; what is no
    share stays as it is.

    Args:
        column: The column.
        clean: The column of clean accuracy.
        points: Each model with its clean score and its score.
        line: The least-squares line.
    """

    column: ComparedColumn
    clean: ComparedColumn
    points: tuple[tuple[ModelRow, Score, Score], ...]
    line: LinearFit | None

    @property
    def formulas(self) -> list[str]:
        """The line as a formula."""
        if self.line is None:
            return []
        y = f"logit({self.column.title})" if self.column.is_share else self.column.title
        sign = "+" if self.line.intercept >= 0 else _MINUS
        slope = f"{self.line.slope:.3g}".replace("-", _MINUS)
        return [f"{y} = {slope} logit(clean) {sign} {abs(self.line.intercept):.3g}, {self.line.points} models"]

    def residual(self, clean: Score, score: Score) -> float | None:
        """Effective robustness: how much better a model is than the line predicts from its clean accuracy."""
        if self.line is None:
            return None
        y, expected = on_axis(score, self.column), self.line.at(on_axis(clean, self.clean))
        away = inverse_logit(y) - inverse_logit(expected) if self.column.is_share else y - expected
        return away if self.column.higher_is_better else -away


@dataclass(frozen=True, slots=True)
class SizePoint:
    """A model's error with its interval, and how many parameters it has."""

    row: ModelRow
    parameters: int
    error: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class SizeTrend:
    """The error of one column against the size of models.

    Args:
        column: The column.
        points: The models.
        fits: A power law for every family of at least three sizes; where no family has three, one for all, under no
            name.
    """

    column: ComparedColumn
    points: tuple[SizePoint, ...]
    fits: tuple[tuple[str, PowerLawFit], ...]

    @property
    def formulas(self) -> list[str]:
        """The power laws as formulas."""
        return [
            (f"{family}: " if family else "")
            + f"error = {fit.factor:.3g} (parameters / 10\N{SUPERSCRIPT SIX})^"
            + f"{fit.exponent:.3g}".replace("-", _MINUS)
            + f", {fit.points} models"
            for family, fit in self.fits
        ]


def trends(comparison: Comparison) -> list[Trend]:
    """Every column against clean accuracy, except AutoAttack's, which is contained in the best known one."""
    if comparison.clean is None:
        return []
    clean, fits = comparison.columns[comparison.clean], []
    for number, column in enumerate(comparison.columns):
        if column.kind in (ColumnKind.BEST_KNOWN, ColumnKind.SUITE):
            pairs = [(row, row.scores[comparison.clean], row.scores[number]) for row in comparison.rows]
            points = tuple((row, x, y) for row, x, y in pairs if x is not None and y is not None)
            line = fit_line([on_axis(x, clean) for _, x, _ in points], [on_axis(y, column) for _, _, y in points])
            if len(points) > 1:
                fits.append(Trend(column, clean, points, line))
    return fits


def on_axis(score: Score, column: ComparedColumn, value: float | None = None) -> float:
    """The coordinate of a score, or of an end of its interval: the logit of a share, other numbers as they are."""
    value = score.value if value is None else value
    return logit(clip_share(value, score.n or _UNCOUNTED)) if column.is_share else value


def size_trends(comparison: Comparison) -> list[SizeTrend]:
    """Clean error, and that of every column that measures errors; none for fewer than three sizes."""
    fits = []
    for number, column in enumerate(comparison.columns):
        if column.kind is not ColumnKind.AUTOATTACK:
            points = [point for row in comparison.rows if (point := _size_point(row, column, row.scores[number]))]
            if len({point.parameters for point in points}) > 2:
                fits.append(SizeTrend(column, tuple(points), _fits(points)))
    return fits


def _size_point(row: ModelRow, column: ComparedColumn, score: Score | None) -> SizePoint | None:
    if score is None or row.parameters is None:
        return None
    if column.unit == "accuracy":
        low, high = (None if end is None else 1 - end for end in (score.high, score.low))
        return SizePoint(row, row.parameters, clip_share(1 - score.value, score.n or _UNCOUNTED), low, high)
    if column.unit in _ERRORS and score.value > 0:
        return SizePoint(row, row.parameters, score.value, score.low, score.high)
    return None


def _fits(points: Sequence[SizePoint]) -> tuple[tuple[str, PowerLawFit], ...]:
    families = dict.fromkeys(point.row.family for point in points if point.row.family)
    fits = [(name, _power_law([point for point in points if point.row.family == name])) for name in families]
    if all(fit is None for _, fit in fits):
        fits = [("", _power_law(points))]
    return tuple((name, fit) for name, fit in fits if fit is not None)


def _power_law(points: Sequence[SizePoint]) -> PowerLawFit | None:
    return fit_power_law([point.parameters / MILLION for point in points], [point.error for point in points])
