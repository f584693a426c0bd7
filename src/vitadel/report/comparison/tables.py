"""The comparison to paste and to compute with: LaTeX, Markdown, CSV and JSON."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from vitadel.core.errors import UsageError
from vitadel.core.files import write_whole
from vitadel.report import identity
from vitadel.report.comparison.compare import (
    Column,
    Comparison,
    Row,
    Score,
    compare_models,
    delta_text,
    p_text,
    version_of,
)
from vitadel.report.comparison.figures import write_comparison_figures
from vitadel.report.comparison.trends import Scaling, Trend, millions, scalings, trends
from vitadel.report.reader import collect
from vitadel.report.surveys import figure
from vitadel.report.tables import latex_text, markdown_text

Safe = Callable[[str], str]  # text as a format prints it unchanged

_NONE = "\N{EN DASH}"
_VERSION = 1


def write_tables(runs: Sequence[Path], folder: Path, *, baseline: str | None = None) -> list[Path]:
    """Write the comparison of the models in `runs` into `folder` in every form, and its figures beside."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--tables wants a folder, got the file {folder}. Choose another name.")
    records = collect(runs)
    found = compare_models(records, baseline)
    if found is None:
        raise UsageError("there is nothing to compare: no model was evaluated. Give runs of vitadel evaluate.")
    forms = {"tex": as_latex, "md": as_markdown, "csv": as_csv, "json": as_json}
    paths = [_write(folder / f"comparison.{ending}", form(found)) for ending, form in forms.items()]
    numbers = identity.numbers(identity.identities(records))
    return [*paths, *write_comparison_figures(trends(found), scalings(found), numbers, folder / "figures")]


def as_markdown(comparison: Comparison) -> str:
    """A table with the best of every column in bold."""
    heads = [markdown_text(head) for head in _heads(comparison)]
    lines = [heads, ["---:", "---", "---:", *("---:" for _ in comparison.columns), "---"]]
    lines += [_cells(row, comparison, markdown_text, "**{}**") for row in comparison.rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_latex(comparison: Comparison) -> str:
    """A table in booktabs style; what is under a column's title stands in a second line of the head."""
    above = ["", "Model", "Parameters", *(column.title + _unit(column) for column in comparison.columns), "Flags"]
    below = ["", "", "", *(column.about for column in comparison.columns), ""]
    heads = [" & ".join(map(latex_text, line)) + r" \\" for line in (above, below) if any(line)]
    body = [" & ".join(_cells(row, comparison, latex_text, "\\textbf{{{}}}")) + r" \\" for row in comparison.rows]
    told = f"; differences are from {comparison.baseline}" if comparison.baseline else ""
    return "\n".join(
        [
            f"% needs \\usepackage{{booktabs}}; in brackets 95% intervals{_one_line(told)}",
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
    """Bare numbers, shares in [0, 1]; empty where a model was not measured."""
    more = ["delta", "p"] if comparison.baseline else []
    parts = ["", "low", "high", "n", *more]
    heads = [f"{column.key} {part}".strip() for column in comparison.columns for part in parts]
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["rank", "model", "parameters", *heads, "flags", "potentially unreliable"])
    for row in comparison.rows:
        numbers = [number for score in row.scores for number in _numbers(score, len(parts))]
        writer.writerow([row.rank, row.label, row.parameters, *numbers, len(row.flags), int(row.unreliable)])
    return written.getvalue()


def as_json(comparison: Comparison) -> str:
    """Everything in the comparison, its fits and its flags included."""
    columns = comparison.columns
    told = {
        "version": _VERSION,
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
        "scalings": [fit for one in scalings(comparison) for fit in _scaling(one)],
    }
    return json.dumps(told, indent=2, allow_nan=False) + "\n"


def _model(row: Row, columns: Sequence[Column]) -> dict[str, object]:
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
    told: dict[str, object] = {"value": score.value, "low": score.low, "high": score.high, "n": score.n}
    if score.note:
        told["found_by"] = score.note
    if score.delta is not None:
        told["delta"] = score.delta
    if (paired := score.paired) is not None:
        counts = {"n": paired.n, "better": paired.first_better, "worse": paired.second_better}
        told["paired"] = {**counts, "p": paired.p, "test": paired.name}
    return told


def _trend(trend: Trend) -> dict[str, object]:
    assert trend.line is not None
    beyond = {row.label: trend.residual(clean, score) for row, clean, score in trend.points}
    line = {"slope": trend.line.slope, "intercept": trend.line.intercept, "models": trend.line.points}
    return {"column": trend.column.key, "formula": trend.formulas[0], **line, "effective_robustness": beyond}


def _scaling(scaling: Scaling) -> list[dict[str, object]]:
    return [
        {
            "column": scaling.column.key,
            "family": family or None,
            "formula": formula,
            "factor": fit.factor,
            "exponent": fit.exponent,
            "models": fit.points,
        }
        for (family, fit), formula in zip(scaling.fits, scaling.formulas, strict=True)
    ]


def _heads(comparison: Comparison) -> list[str]:
    titles = [" ".join(filter(None, (c.title + _unit(c), c.about))) for c in comparison.columns]
    return ["", "Model", "Parameters", *titles, "Flags"]


def _unit(column: Column) -> str:
    return " %" if column.is_share else ""


def _cells(row: Row, comparison: Comparison, safe: Safe, strong: str) -> list[str]:
    rank = _NONE if row.rank is None else str(row.rank)
    size = _NONE if row.parameters is None else millions(row.parameters)
    flags = f"{len(row.flags)}, potentially unreliable" if row.unreliable else str(len(row.flags))
    scores = [_cell(score, column, safe, strong) for score, column in zip(row.scores, comparison.columns, strict=True)]
    return [safe(rank), safe(row.label), safe(size), *scores, safe(flags)]


def _cell(score: Score | None, column: Column, safe: Safe, strong: str) -> str:
    if score is None:
        return safe(_NONE)
    value = safe(figure(score.value, is_share=column.is_share))
    parts = [strong.format(value) if score.best else value]
    if version := version_of(score, column):
        parts.append(safe(version))
    if score.low is not None and score.high is not None:
        ends = (figure(end, is_share=column.is_share) for end in (score.low, score.high))
        parts.append(safe(f"[{_NONE.join(ends)}]"))
    if score.delta is not None:
        p = "" if score.paired is None else f", {p_text(score.paired.p)}"
        parts.append(safe(f"({delta_text(score, column)}{p})"))
    return " ".join(parts)


def _numbers(score: Score | None, width: int) -> list[float | None]:
    if score is None:
        return [None] * width
    p = None if score.paired is None else score.paired.p
    return [score.value, score.low, score.high, score.n, score.delta, p][:width]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _write(path: Path, text: str) -> Path:
    write_whole(path, lambda beside: _fill(beside, text))
    return path


def _fill(beside: Path, text: str) -> None:
    beside.write_text(text, encoding="utf-8", errors="backslashreplace")
