"""Report pages, figures and tables from run folders."""

from vitadel.report.comparison.export import write_tables
from vitadel.report.figures.exhibits import write_exhibit, write_figures
from vitadel.report.page import write_report
from vitadel.report.summary import SummaryRow, latex, markdown, summarize

__all__ = [
    "SummaryRow",
    "latex",
    "markdown",
    "summarize",
    "write_exhibit",
    "write_figures",
    "write_report",
    "write_tables",
]
