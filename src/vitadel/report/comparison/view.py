"""The comparison as the page shows it: its cells in words, its figures, and how far models lie from the lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitadel.report.comparison import tables
from vitadel.report.comparison.compare import (
    Column,
    Comparison,
    Kind,
    Row,
    Score,
    compare_models,
    delta_text,
    p_text,
    version_of,
)
from vitadel.report.comparison.figures import is_numbered, scaling_drawings, trend_drawings, with_strokes
from vitadel.report.comparison.trends import Scaling, Trend, millions, scalings, trends
from vitadel.report.figures import base
from vitadel.report.records import Record
from vitadel.report.surveys import figure, signed

_NONE = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell in words; a dash where a model was not measured."""

    column: Column
    score: Score | None

    @property
    def value(self) -> str:
        return _NONE if self.score is None else figure(self.score.value, is_share=self.column.is_share)

    @property
    def version(self) -> str:
        return version_of(self.score, self.column)

    @property
    def interval(self) -> str:
        if self.score is None or self.score.low is None or self.score.high is None:
            return ""
        return _NONE.join(figure(end, is_share=self.column.is_share) for end in (self.score.low, self.score.high))

    @property
    def delta(self) -> str:
        return "" if self.score is None else delta_text(self.score, self.column)

    @property
    def chance(self) -> str:
        return "" if self.score is None or self.score.paired is None else p_text(self.score.paired.p)

    @property
    def evidence(self) -> str:
        """What the p rests on."""
        paired = None if self.score is None else self.score.paired
        if paired is None:
            return ""
        counts = f"better on {paired.first_better}, worse on {paired.second_better} of {paired.n} images"
        return f"{counts}; {paired.name}"


@dataclass(frozen=True, slots=True)
class Entrant:
    """One model of the table."""

    row: Row
    number: int
    cells: tuple[Entry, ...]

    @property
    def size(self) -> str:
        return _NONE if self.row.parameters is None else millions(self.row.parameters)

    @property
    def glyph(self) -> str:
        return base.glyph(self.number)

    @property
    def color(self) -> str:
        return base.color(self.number)


@dataclass(frozen=True, slots=True)
class Board:
    """Everything in the section; every drawing comes with its formulas."""

    table: Comparison
    entrants: tuple[Entrant, ...]
    trends: tuple[Trend, ...]
    against_clean: tuple[tuple[base.Drawing, list[str]], ...]
    against_size: tuple[tuple[base.Drawing, list[str]], ...]

    @property
    def ranked_by(self) -> Column:
        return self.table.columns[self.table.ranked_by]

    @property
    def numbered(self) -> bool:
        return is_numbered([entrant.row for entrant in self.entrants])

    @property
    def attacked(self) -> bool:
        return any(column.kind is Kind.BEST_KNOWN for column in self.table.columns)

    @property
    def preprocess(self) -> list[tuple[Entrant, str]]:
        """How the models saw the images, if not all in one way."""
        ways = [(entrant, ", ".join(entrant.row.preprocess) or _NONE) for entrant in self.entrants]
        return ways if len({way for _, way in ways}) > 1 else []

    @property
    def lines(self) -> list[Trend]:
        return [trend for trend in self.trends if trend.line is not None]

    @property
    def effective(self) -> list[tuple[Entrant, list[str]]]:
        """Per model how far it lies from every line."""
        return [(entrant, [_beyond(line, entrant.row) for line in self.lines]) for entrant in self.entrants]

    @property
    def markdown(self) -> str:
        return tables.as_markdown(self.table)

    @property
    def latex(self) -> str:
        return tables.as_latex(self.table)


def board(records: Sequence[Record], numbers: Mapping[str, int], baseline: str | None) -> Board | None:
    """The comparison, if there is more than one model to compare; `numbers` choose colors by label."""
    table = compare_models(records, baseline)
    if table is None or len(table.rows) < 2:
        return None
    against, sizes = trends(table), scalings(table)
    return Board(
        table,
        tuple(Entrant(row, numbers[row.also[0]], tuple(map(Entry, table.columns, row.scores))) for row in table.rows),
        tuple(against),
        _with_formulas(trend_drawings(against, numbers), against),
        _with_formulas(scaling_drawings(sizes, numbers), sizes),
    )


def _with_formulas(
    drawings: Sequence[base.Drawing], drawn: Sequence[Trend | Scaling]
) -> tuple[tuple[base.Drawing, list[str]], ...]:
    return tuple((drawing, with_strokes(one.formulas)) for drawing, one in zip(drawings, drawn, strict=True))


def _beyond(line: Trend, row: Row) -> str:
    found = [line.residual(clean, score) for mine, clean, score in line.points if mine is row]
    return next((signed(one, is_share=line.column.is_share) for one in found if one is not None), _NONE)
