from pathlib import Path

from vitadel.core.stats import Accuracy
from vitadel.report import SummaryRow, latex, markdown, summarize


def row(model: str, *, best: bool = False) -> SummaryRow:
    clean, robust = Accuracy(95, 100, 0.95, 0.888, 0.978), Accuracy(50, 100, 0.5, 0.404, 0.596)
    return SummaryRow(model, "linf-8_255", "linf:8/255", 100, clean, robust, ("pgd",), 0, best)


def test_markdown_is_one_table_with_the_best_in_bold() -> None:
    assert markdown([row("a|b<i>", best=True), row("c")]).splitlines() == [
        "| Model | Evaluation | Threat | n | Clean % | Robust % | Flags |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
        "| a\\|b&lt;i> | linf-8_255 | linf:8/255 | 100 | 95.0 [88.8–97.8] | **50.0 [40.4–59.6]** | 0 |",  # noqa: RUF001
        "| c | linf-8_255 | linf:8/255 | 100 | 95.0 [88.8–97.8] | 50.0 [40.4–59.6] | 0 |",  # noqa: RUF001
    ]


def test_latex_escapes_names_and_marks_the_best() -> None:
    lines = latex([row("a_b & 50% \\ {x}", best=True)]).splitlines()
    assert (
        r"a\_b \& 50\% \textbackslash{} \{x\} & linf-8\_255 & linf:8/255 & 100 "
        r"& 95.0 [88.8--97.8] & \textbf{50.0 [40.4--59.6]} & 0 \\"
    ) in lines
    assert lines[-1] == r"\end{tabular}"


def test_summaries_come_in_order_of_eps_with_clean_first(two_runs: list[Path]) -> None:
    rows = summarize(two_runs)
    assert [r.evaluation for r in rows[:4]] == ["clean", "linf-1_255", "linf-4_255", "linf-8_255"]
    assert rows[0].robust is None
    assert rows[0].threat == "none"
    assert rows[-1].robust is not None
    assert (rows[-1].model, rows[-1].robust.accuracy, rows[-1].n) == ("twin", 19 / 40, 40)
