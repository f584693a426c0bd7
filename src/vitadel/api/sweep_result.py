"""What `vd.sweep` returns: the table of a sweep, and every number beside the published one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitadel.api.results import ShortTable
from vitadel.core.stats import Accuracy
from vitadel.runs.sweep_schema import ColumnRecord, CombinationRecord, SweepRecord

# marks a difference that is not due to the method alone
_OTHER_SCALE = "≠"
_COLUMNS = {"holdout": "hold-out", "test": "test", "published": "published"}


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What `vd.sweep` returns: the run folder and its table, as written to `table.json`."""

    run: Path
    table: SweepRecord

    @property
    def failures(self) -> dict[str, str]:
        """The combinations that failed, and why."""
        return {row.name: row.reason or "" for row in self.table.rows if row.state == "failed"}

    @property
    def combinations(self) -> int:
        """How many combinations there are."""
        return len(self.table.rows)

    def to_dict(self) -> dict[str, object]:
        """The table as plain JSON values."""
        return {"run": str(self.run), **self.table.to_json()}

    def tables(self) -> list[ShortTable]:
        """One row per combination, the best one starred; then every number on test images in a row of its own."""
        table, best, compared = self.table, self.table.best, self._compared()
        labeled = any(row.label for row in table.rows)
        shown = [
            (part, kind)
            for part in _COLUMNS
            for kind in ("clean", "robust")
            if any(_score(row, part, kind) is not None for row in table.rows) and not (compared and part == "published")
        ]
        cells = [
            [
                *(row.values[axis] for axis in table.axes),
                *([row.label] if labeled else []),
                *(self._cell(row, part, kind, interval=compared is None) for part, kind in shown),
            ]
            for row in table.rows
        ]
        columns = [
            *(axis.rpartition(".")[2] for axis in table.axes),
            *(["scale"] if labeled else []),
            *(f"{_COLUMNS[part]} {kind} %" for part, kind in shown),
        ]
        notes = [f"* best {best.measure.replace('.', ' ').replace('holdout', 'hold-out')}"] if best else []
        if published := table.published:
            notes.append(f"published: {published.source}; robust under {published.attack}. {published.note}".strip())
        notes += [f"{name} failed: {reason}" for name, reason in self.failures.items()]
        return [ShortTable(table.recipe, columns, cells, notes), *([compared] if compared else [])]

    def _compared(self) -> ShortTable | None:
        """A row for every number on test images, beside the paper's; None if the first table shows them all."""
        table = self.table
        numbers = [(row, one) for row in table.rows for one in row.columns]
        if not table.published and all(len(row.columns) <= 2 for row in table.rows):
            return None
        rows = [
            [*(row.values[axis] for axis in table.axes), one.column, *_compared_cells(one, row.scale)]
            for row, one in numbers
        ]
        reasons = dict.fromkeys(reason for row in table.rows for reason in row.scale if reason != row.label)
        if any(row.label for row in table.rows):
            reasons = {"the column `scale`": None, **reasons}
        notes = list(table.left_out)
        if reasons:
            notes.append(f"{_OTHER_SCALE} not the paper's scale: {'; '.join(reasons)}")
        columns = [*(axis.rpartition(".")[2] for axis in table.axes), "number", "ours", "95% interval"]
        if table.published:
            columns += ["published", "difference"]
            return ShortTable(f"\nbeside {table.published.source}", columns, rows, notes) if rows else None
        return ShortTable("\non test images", columns, [row[: len(columns)] for row in rows], notes)

    def _cell(self, row: CombinationRecord, part: str, kind: str, *, interval: bool) -> str:
        score, best = _score(row, part, kind), self.table.best
        if score is None:
            return "-"
        if part == "published":
            return f"{score:.2f}"
        star = "*" if best and best.measure == f"{part}.{kind}" and row.name in best.rows else ""
        if isinstance(score, Accuracy):
            return f"{score.percent}{star}" + (f" ({100 * score.low:.1f}-{100 * score.high:.1f})" if interval else "")
        return f"{100 * score:.1f}{star}"

    def __repr__(self) -> str:
        return "\n".join(map(str, self.tables()))


def _compared_cells(one: ColumnRecord, scale: Sequence[str]) -> list[str]:
    """Our number, its interval, the paper's, and the difference, marked if the scale is not the paper's."""
    measure = one.measure
    factor, sign = (100, "%") if measure.is_share else (1, "")

    def as_text(value: float | None) -> str:
        return "-" if value is None else f"{factor * value:.1f}{sign}"

    known = measure.low is not None and measure.high is not None
    published = "-" if one.published is None else f"{one.published:.2f}{sign}"
    difference = "-" if one.difference is None else f"{one.difference:+.1f}{f' {_OTHER_SCALE}' if scale else ''}"
    interval = f"{as_text(measure.low)}-{as_text(measure.high)}" if known else "-"
    return [as_text(measure.value), interval, published, difference]


def _score(row: CombinationRecord, part: str, kind: str) -> Accuracy | float | None:
    score: Accuracy | float | None = getattr(getattr(row, part), kind, None)
    return score
