"""`vitadel report`: one page from run folders, and its comparison as tables."""

from pathlib import Path
from typing import Annotated

import typer

from vitadel.cli import show


def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders of train, evaluate and attack", metavar="RUN...")],
    out: Annotated[Path, typer.Option("--out", help="the page to write")] = Path("report.html"),
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="the model, by its name in the page, to measure differences from")
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option("--tables", help="folder for the comparison as LaTeX, Markdown, CSV and JSON, and its figures"),
    ] = None,
) -> None:
    """Write one HTML page, complete in itself, from one or more runs."""
    from vitadel.report import write_report, write_tables

    written = [] if tables is None else write_tables(runs, tables, baseline=baseline)
    for path in (write_report(runs, out, baseline=baseline), *written):
        show.line(str(path))
