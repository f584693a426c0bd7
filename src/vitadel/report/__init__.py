"""Tables, figures and pages from run folders alone; the only room that draws."""

from vitadel.report.comparison.tables import write_tables
from vitadel.report.exhibits import Findings
from vitadel.report.page import write_report
from vitadel.report.records import Accuracy
from vitadel.report.studies import read_study, write_figures
from vitadel.report.tables import SummaryRow, latex, markdown, summarize

__all__ = [
    "Accuracy",
    "Findings",
    "SummaryRow",
    "latex",
    "markdown",
    "read_study",
    "summarize",
    "write_figures",
    "write_report",
    "write_tables",
]
