"""The summary as rows, and the same rows as Markdown and LaTeX."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitadel.report.reader import collect
from vitadel.report.records import Accuracy, Evaluation, Record

_HEADER = ("Model", "Evaluation", "Threat", "n", "Clean %", "Robust %", "Flags")
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "\n": " ",
        "\N{EN DASH}": "--",
        "\N{MINUS SIGN}": "$-$",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    }
)


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One evaluation of one model; `best` marks the highest robust accuracy among rows that may be compared."""

    model: str
    evaluation: str
    threat: str
    n: int
    clean: Accuracy
    robust: Accuracy | None
    attacks: tuple[str, ...]
    flags: int
    best: bool


def summarize(runs: Sequence[Path]) -> list[SummaryRow]:
    """One row per run and evaluation; a run that only trained has none."""
    return summary_rows(collect(runs))


def summary_rows(records: Sequence[Record]) -> list[SummaryRow]:
    """The rows of records that were read already."""
    pairs = [(record, evaluation) for record in records for evaluation in record.evaluations]
    peers: dict[tuple[str, str, str], list[float]] = {}
    for record, evaluation in pairs:
        if evaluation.robust is not None:
            peers.setdefault(_comparable(record, evaluation), []).append(evaluation.robust.value)
    return [_row(record, evaluation, peers.get(_comparable(record, evaluation), [])) for record, evaluation in pairs]


def markdown(rows: Sequence[SummaryRow]) -> str:
    """The rows as a Markdown table, ready to paste."""
    lines: list[tuple[str, ...]] = [_HEADER, ("---", "---", "---", "---:", "---:", "---:", "---:")]
    lines += [tuple(_marked([markdown_text(cell) for cell in _cells(row)], row, "**{}**")) for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(rows: Sequence[SummaryRow]) -> str:
    """The rows as a LaTeX table in booktabs style, ready to paste."""
    head = " & ".join(map(latex_text, _HEADER))
    cells = [_marked([latex_text(cell) for cell in _cells(row)], row, "\\textbf{{{}}}") for row in rows]
    body = "".join(f"{' & '.join(line)} \\\\\n" for line in cells)
    return (
        "% needs \\usepackage{booktabs}; intervals are 95%\n"
        f"\\begin{{tabular}}{{lllrrrr}}\n\\toprule\n{head} \\\\\n\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
    )


def _comparable(record: Record, evaluation: Evaluation) -> tuple[str, str, str]:
    """Robust accuracies compare only under one threat, one suite and one set of images."""
    hashes = record.manifest.get("hashes")
    data = str(hashes.get("data")) if isinstance(hashes, dict) else ""
    return (evaluation.threat.text if evaluation.threat else "", evaluation.suite, data)


def _row(record: Record, evaluation: Evaluation, peers: Sequence[float]) -> SummaryRow:
    robust = evaluation.robust
    return SummaryRow(
        model=record.label,
        evaluation=evaluation.name,
        threat=evaluation.threat.text if evaluation.threat else "none",
        n=evaluation.n,
        clean=evaluation.clean,
        robust=robust,
        attacks=tuple(attack.name for attack in evaluation.attacks),
        flags=len(evaluation.flags),
        best=robust is not None and len(peers) > 1 and robust.value == max(peers),
    )


def _cells(row: SummaryRow) -> tuple[str, ...]:
    clean, robust = _with_interval(row.clean), _with_interval(row.robust)
    return (row.model, row.evaluation, row.threat, str(row.n), clean, robust, str(row.flags))


def _marked(cells: list[str], row: SummaryRow, strong: str) -> list[str]:
    return [*cells[:5], strong.format(cells[5]) if row.best else cells[5], *cells[6:]]


def _with_interval(accuracy: Accuracy | None) -> str:
    return f"{accuracy.percent} [{accuracy.interval}]" if accuracy else "\N{EN DASH}"


def markdown_text(cell: str) -> str:
    """Text that Markdown prints as it is, in a cell of a table."""
    for sign, safe in (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", " ")):
        cell = cell.replace(sign, safe)
    return re.sub("[*`]", r"\\\g<0>", cell)


def latex_text(cell: str) -> str:
    """Text that LaTeX prints as it is."""
    return cell.translate(_LATEX)
