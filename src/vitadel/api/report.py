"""`vd.report`: write an HTML report of run folders, and its comparison as tables."""

from collections.abc import Sequence
from pathlib import Path

from vitadel.api.arguments import check_types
from vitadel.report import write_report, write_tables


def report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path = "report.html",
    *,
    baseline: str | None = None,
    tables: str | Path | None = None,
) -> list[Path]:
    """Write one self-contained HTML report of one or more run folders.

    Args:
        runs: Folders of trainings, evaluations, studies and sweeps.
        out: The HTML file.
        baseline: The model to show differences from, by its name in the report.
        tables: A folder for the comparison as LaTeX, Markdown, CSV and JSON, with its figures.

    Returns:
        The written files, the report first.

    Raises:
        UsageError: If one of the folders is not a run, or a file cannot be written.

    Example:
        >>> report(["runs/vit", "runs/robust"], "report.html")
        [PosixPath('report.html')]
    """
    check_types(report, locals())
    folders = [Path(one) for one in ([runs] if isinstance(runs, str | Path) else runs)]
    written = [] if tables is None else write_tables(folders, Path(tables), baseline=baseline)
    return [write_report(folders, Path(out), baseline=baseline), *written]
