"""The comparison to paste and to compute with: LaTeX, Markdown, CSV and JSON."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from vitadel.core.errors import UsageError, spelled
from vitadel.report.comparison.figures import write_comparison_figures
from vitadel.report.comparison.models import (
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
from vitadel.report.figures.style import PALETTE
from vitadel.report.labels import color_numbers, identities
from vitadel.report.reader import read_runs
from vitadel.report.text import DASH, interval, latex_text, markdown_text, number, p_text, parameters_text, write_file

Safe = Callable[[str], str]  # text as a format prints it unchanged

_SCHEMA = 1  # of comparison.json
# what formulas begin with in spreadsheets, some of which skip white space or read wide characters
_FORMULA = (*"=+-@\t\r\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def write_tables(runs: Sequence[Path], folder: Path, *, baseline: str | None = None) -> list[Path]:
    """Write the comparison of the models in `runs` into `folder` as LaTeX, Markdown, CSV and JSON, and its figures.

    Args:
        runs: Run folders.
        folder: Where to write.
        baseline: The model that differences are measured from.

    Returns:
        The files that were written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{spelled('tables', folder)} needs a folder, got a file. Choose another name.")
    records = read_runs(runs)
    comparison = compare_models(records, baseline)
    if comparison is None:
        raise UsageError("there is nothing to compare: no model was evaluated. Give runs of vitadel evaluate.")
    forms = {"tex": as_latex, "md": as_markdown, "csv": as_csv, "json": as_json}
    paths = [write_file(folder / f"comparison.{ending}", form(comparison)) for ending, form in forms.items()]
    numbers = color_numbers(identities(records), len(PALETTE))
    return [*paths, *write_comparison_figures(trends(comparison), size_trends(comparison), numbers, folder / "figures")]


def as_markdown(comparison: Comparison) -> str:
    """A table with the best number of every column in bold."""
    heads = [markdown_text(head) for head in _heads(comparison)]
    lines = [heads, ["---:", "---", "---:", *("---:" for _ in comparison.columns), "---"]]
    lines += [_cells(row, comparison, markdown_text, "**{}**") for row in comparison.rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_latex(comparison: Comparison) -> str:
    """A table in booktabs style with two header lines: titles and `about`."""
    above = [
        "",
        "Model",
        "Parameters",
        *(f"{column.title} %" if column.is_share else column.title for column in comparison.columns),
        "Flags",
    ]
    below = ["", "", "", *(column.about for column in comparison.columns), ""]
    heads = [" & ".join(map(latex_text, line)) + r" \\" for line in (above, below) if any(line)]
    body = [" & ".join(_cells(row, comparison, latex_text, "\\textbf{{{}}}")) + r" \\" for row in comparison.rows]
    base = f"; differences are from {' '.join(comparison.baseline.split())}" if comparison.baseline else ""
    return "\n".join(
        [
            f"% needs \\usepackage{{booktabs}}; in brackets 95% intervals{base}",
            f"\\begin{{tabular}}{{rlr{'r' * len(comparison.columns)}l}}",
            "\\toprule",
            *heads,
            "\\midrule",
            *body,
            "\\bottomrule",
            "\\end{tabular}\n",
        ]
    )


def as_csv(comparison: Comparison) -> str:
    """Plain numbers, shares in [0, 1]; empty if a model was not measured."""
    more = ["delta", "delta low", "delta high", "p"] if comparison.baseline else []
    parts = ["", "low", "high", "n", *more]
    heads = [f"{column.key} {part}".strip() for column in comparison.columns for part in parts]
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["rank", "model", "parameters", *map(_plain_text, heads), "flags", "potentially unreliable"])
    for row in comparison.rows:
        numbers = [value for score in row.scores for value in _numbers(score, len(parts))]
        label = _plain_text(row.label)
        writer.writerow([row.rank, label, row.parameters, *numbers, len(row.flags), int(row.unreliable)])
    return written.getvalue()


def _plain_text(text: str) -> str:
    """A name as a cell that spreadsheets take for text: one that begins like a formula is executed otherwise."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def as_json(comparison: Comparison) -> str:
    """Everything in the comparison, its fits and its flags included."""
    columns = comparison.columns
    content = {
        "version": _SCHEMA,
        "baseline": comparison.baseline,
        "ranked_by": columns[comparison.ranked_by].key,
        "columns": [
            {
                "key": column.key,
                "title": column.title,
                "about": column.about,
                "kind": column.unit,
                "higher_is_better": column.higher_is_better,
            }
            for column in columns
        ],
        "models": [_model(row, columns) for row in comparison.rows],
        "trends": [_trend(one) for one in trends(comparison) if one.line is not None],
        "scalings": [fit for one in size_trends(comparison) for fit in _size_trend(one)],
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _model(row: ModelRow, columns: Sequence[ComparedColumn]) -> dict[str, object]:
    scores = zip(columns, row.scores, strict=True)
    return {
        "rank": row.rank,
        "model": row.label,
        "parameters": row.parameters,
        "potentially_unreliable": row.unreliable,
        "flags": [{"evaluation": name, "code": flag.code, "sentence": flag.sentence} for name, flag in row.flags],
        "scores": {column.key: _score(score) for column, score in scores if score is not None},
    }


def _score(score: Score) -> dict[str, object]:
    content: dict[str, object] = {"value": score.value, "low": score.low, "high": score.high, "n": score.n}
    if score.note:
        content["found_by"] = score.note
    if score.delta is not None:
        content |= {"delta": score.delta, "delta_low": score.delta_low, "delta_high": score.delta_high}
    if (paired := score.paired) is not None:
        counts = {"n": paired.n, "better": paired.first_better, "worse": paired.second_better}
        content["paired"] = {**counts, "p": paired.p, "test": paired.name}
    return content


def _trend(trend: Trend) -> dict[str, object]:
    assert trend.line is not None
    beyond = {row.label: trend.residual(clean, score) for row, clean, score in trend.points}
    line = {"slope": trend.line.slope, "intercept": trend.line.intercept, "models": trend.line.points}
    return {"column": trend.column.key, "formula": trend.formulas[0], **line, "effective_robustness": beyond}


def _size_trend(trend: SizeTrend) -> list[dict[str, object]]:
    return [
        {
            "column": trend.column.key,
            "family": family or None,
            "formula": formula,
            "factor": fit.factor,
            "exponent": fit.exponent,
            "models": fit.points,
        }
        for (family, fit), formula in zip(trend.fits, trend.formulas, strict=True)
    ]


def _heads(comparison: Comparison) -> list[str]:
    titles = [" ".join(filter(None, (f"{c.title} %" if c.is_share else c.title, c.about))) for c in comparison.columns]
    return ["", "Model", "Parameters", *titles, "Flags"]


def _cells(row: ModelRow, comparison: Comparison, safe: Safe, strong: str) -> list[str]:
    rank = DASH if row.rank is None else str(row.rank)
    flags = f"{len(row.flags)}, potentially unreliable" if row.unreliable else str(len(row.flags))
    scores = [_cell(score, column, safe, strong) for score, column in zip(row.scores, comparison.columns, strict=True)]
    return [safe(rank), safe(row.label), safe(parameters_text(row.parameters)), *scores, safe(flags)]


def _cell(score: Score | None, column: ComparedColumn, safe: Safe, strong: str) -> str:
    if score is None:
        return safe(DASH)
    value = safe(number(score.value, is_share=column.is_share))
    parts = [strong.format(value) if score.best else value]
    if version := version_of(score, column):
        parts.append(safe(version))
    if ends := interval(score.low, score.high, is_share=column.is_share):
        parts.append(safe(f"[{ends}]"))
    if score.delta is not None:
        ends = delta_interval(score, column)
        p = "" if score.paired is None else f", {p_text(score.paired.p)}"
        parts.append(safe(f"({delta_text(score, column)}{f' [{ends}]' if ends else ''}{p})"))
    return " ".join(parts)


def _numbers(score: Score | None, width: int) -> list[float | None]:
    if score is None:
        return [None] * width
    p = None if score.paired is None else score.paired.p
    differences = [score.delta, score.delta_low, score.delta_high, p]
    return [score.value, score.low, score.high, score.n, *differences][:width]
