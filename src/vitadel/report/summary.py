"""The attack evaluations as rows, and the same rows as Markdown and LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitadel.core.stats import Accuracy
from vitadel.report.reader import EvaluatedSuite, RunRecord, read_runs
from vitadel.report.text import DASH, latex_text, markdown_text

_HEADER = ("Model", "Evaluation", "Threat", "n", "Clean %", "Robust %", "Flags")


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One evaluation of one model.

    Args:
        model: The model's label.
        evaluation: The evaluation's name, such as `autoattack-linf-8_255`.
        threat: The threat as text.
        n: Images.
        clean: Clean accuracy.
        robust: Robust accuracy; None without attacks.
        attacks: The names of the attacks.
        flags: The number of flags.
        best: Whether the robust accuracy is the highest of those that may be compared.
    """

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
    return summary_rows(read_runs(runs))


def summary_rows(records: Sequence[RunRecord]) -> list[SummaryRow]:
    """The rows of records."""
    pairs, peers = [(run, one) for run in records for one in run.attacks], dict[tuple[str, str, str], list[float]]()
    for record, evaluation in pairs:
        if evaluation.record.robust is not None:
            peers.setdefault(_comparable(record, evaluation), []).append(evaluation.record.robust.accuracy)
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


def _comparable(record: RunRecord, evaluation: EvaluatedSuite) -> tuple[str, str, str]:
    """Robust accuracies with the same key are comparable: same threat, suite and images."""
    threat = evaluation.record.threat
    return (threat.text if threat else "", evaluation.record.suite, record.manifest.hashes.get("data", ""))


def _row(record: RunRecord, evaluation: EvaluatedSuite, peers: Sequence[float]) -> SummaryRow:
    suite, robust = evaluation.record, evaluation.record.robust
    return SummaryRow(
        model=record.label,
        evaluation=evaluation.name,
        threat=suite.threat.text if suite.threat else "none",
        n=suite.n,
        clean=evaluation.clean,
        robust=robust,
        attacks=tuple(attack.name for attack in suite.attacks),
        flags=len(suite.flags),
        best=robust is not None and len(peers) > 1 and robust.accuracy == max(peers),
    )


def _cells(row: SummaryRow) -> tuple[str, ...]:
    clean, robust = _with_interval(row.clean), _with_interval(row.robust)
    return (row.model, row.evaluation, row.threat, str(row.n), clean, robust, str(row.flags))


def _marked(cells: list[str], row: SummaryRow, strong: str) -> list[str]:
    return [*cells[:5], strong.format(cells[5]) if row.best else cells[5], *cells[6:]]


def _with_interval(accuracy: Accuracy | None) -> str:
    return f"{accuracy.percent} [{accuracy.interval}]" if accuracy else DASH
