"""Tables, figures and pages from run folders alone; the only room that draws."""

from vitadel.report.masking_figures import write_figures
from vitadel.report.page import write_report
from vitadel.report.records import Accuracy
from vitadel.report.tables import SummaryRow, latex, markdown, summarise

__all__ = ["Accuracy", "SummaryRow", "latex", "markdown", "summarise", "write_figures", "write_report"]
