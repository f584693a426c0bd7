"""The comparison on the report page: its cells as text, its figures, and the models' distances from trend lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitadel.report.comparison import export
from vitadel.report.comparison.figures import is_numbered, size_drawings, trend_drawings, with_strokes
from vitadel.report.comparison.models import (
    ColumnKind,
    ComparedColumn,
    Comparison,
    ModelRow,
    Score,
    compare_models,
    delta_interval,
    delta_text,
    version_of,
)
from vitadel.report.comparison.trends import SizeTrend, Trend, size_trends, trends
from vitadel.report.figures.style import Drawing
from vitadel.report.reader import RunRecord
from vitadel.report.text import DASH, interval, number, p_text, signed


@dataclass(frozen=True, slots=True)
class CellView:
    """One cell as text; a dash if the model was not measured."""

    column: ComparedColumn
    score: Score | None

    @property
    def value(self) -> str:
        """The number."""
        return number(self.score.value if self.score else None, is_share=self.column.is_share)

    @property
    def version(self) -> str:
        """Which AutoAttack it was, if not the standard one."""
        return version_of(self.score, self.column)

    @property
    def interval(self) -> str:
        """Its 95% interval."""
        return interval(self.score.low, self.score.high, is_share=self.column.is_share) if self.score else ""

    @property
    def delta(self) -> str:
        """The difference to the baseline."""
        return delta_text(self.score, self.column) if self.score else ""

    @property
    def delta_interval(self) -> str:
        """The 95% interval of that difference."""
        return delta_interval(self.score, self.column) if self.score else ""

    @property
    def p(self) -> str:
        """The p-value of that difference."""
        return p_text(self.score.paired.p) if self.score and self.score.paired else ""

    @property
    def evidence(self) -> str:
        """The counts from which the p-value is computed."""
        paired = self.score.paired if self.score else None
        if paired is None:
            return ""
        return f"better on {paired.first_better}, worse on {paired.second_better} of {paired.n} images; {paired.name}"


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model of the table."""

    row: ModelRow
    number: int
    cells: tuple[CellView, ...]


@dataclass(frozen=True, slots=True)
class ComparisonView:
    """The content of the section; every drawing has its formulas."""

    table: Comparison
    models: tuple[ModelView, ...]
    trends: tuple[Trend, ...]
    against_clean: tuple[tuple[Drawing, list[str]], ...]
    against_size: tuple[tuple[Drawing, list[str]], ...]

    @property
    def ranked_by(self) -> ComparedColumn:
        """The column that ranks."""
        return self.table.columns[self.table.ranked_by]

    @property
    def numbered(self) -> bool:
        """Whether points are labeled with ranks, because there are more models than colors."""
        return is_numbered([model.row for model in self.models])

    @property
    def attacked(self) -> bool:
        """Whether there are robust accuracies."""
        return any(column.kind is ColumnKind.BEST_KNOWN for column in self.table.columns)

    @property
    def preprocess(self) -> list[tuple[ModelView, str]]:
        """The preprocessing of each model, if it is not the same for all."""
        ways = [(model, ", ".join(model.row.preprocess) or DASH) for model in self.models]
        return ways if len({way for _, way in ways}) > 1 else []

    @property
    def lines(self) -> list[Trend]:
        """The trends that have a line."""
        return [trend for trend in self.trends if trend.line is not None]

    @property
    def effective_robustness(self) -> list[tuple[ModelView, list[str]]]:
        """For each model its distance from every line."""
        return [(model, [_beyond(line, model.row) for line in self.lines]) for model in self.models]

    @property
    def markdown(self) -> str:
        """The table as Markdown."""
        return export.as_markdown(self.table)

    @property
    def latex(self) -> str:
        """The table as LaTeX."""
        return export.as_latex(self.table)


def comparison_view(
    records: Sequence[RunRecord], numbers: Mapping[str, int], baseline: str | None
) -> ComparisonView | None:
    """The comparison, if there is more than one model to compare; `numbers` choose colors by label."""
    table = compare_models(records, baseline)
    if table is None or len(table.rows) < 2:
        return None
    against, sizes = trends(table), size_trends(table)
    models = [
        ModelView(row, numbers[row.labels[0]], tuple(map(CellView, table.columns, row.scores))) for row in table.rows
    ]
    return ComparisonView(
        table,
        tuple(models),
        tuple(against),
        _with_formulas(trend_drawings(against, numbers), against),
        _with_formulas(size_drawings(sizes, numbers), sizes),
    )


def _with_formulas(
    drawings: Sequence[Drawing], drawn: Sequence[Trend | SizeTrend]
) -> tuple[tuple[Drawing, list[str]], ...]:
    return tuple((drawing, with_strokes(one.formulas)) for drawing, one in zip(drawings, drawn, strict=True))


def _beyond(line: Trend, row: ModelRow) -> str:
    residuals = [line.residual(clean, score) for mine, clean, score in line.points if mine is row]
    return next((signed(one, is_share=line.column.is_share) for one in residuals if one is not None), DASH)
