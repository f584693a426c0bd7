"""`vitadel report`: one page from run folders, and its comparison as tables."""

from pathlib import Path
from typing import Annotated

import typer

from vitadel.cli import show
from vitadel.cli.options import DATA, OUTPUT, option


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of trainings, evaluations and studies.", metavar="RUN...")
    ],
    baseline: Annotated[
        str | None,
        option("--baseline", DATA, "MODEL", "The model, by its name in the page, that differences are measured from."),
    ] = None,
    out: Annotated[Path, option("--out", OUTPUT, "FILE", "The page to write.")] = Path("report.html"),
    tables: Annotated[
        Path | None,
        option(
            "--tables", OUTPUT, "DIR", "Folder for the comparison as LaTeX, Markdown, CSV and JSON, and its figures."
        ),
    ] = None,
) -> None:
    """Write one self-contained HTML page from one or more runs."""
    from vitadel.api.report import report

    for path in report(list(runs), out, baseline=baseline, tables=tables):
        show.line(str(path))
