"""`vitadel report`: one page from run folders, and its comparison as tables."""

from pathlib import Path
from typing import Annotated

import typer

from vitadel.cli import show


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of trainings, evaluations and studies.", metavar="RUN...")
    ],
    out: Annotated[Path, typer.Option("--out", help="The page to write.", metavar="FILE")] = Path("report.html"),
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            help="The model, by its name in the page, that differences are measured from.",
            metavar="MODEL",
        ),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(
            "--tables",
            help="Folder for the comparison as LaTeX, Markdown, CSV and JSON, and its figures.",
            metavar="DIR",
        ),
    ] = None,
) -> None:
    """Write one HTML page, complete in itself, from one or more runs."""
    from vitadel.api.report import report

    for path in report(list(runs), out, baseline=baseline, tables=tables):
        show.line(str(path))
