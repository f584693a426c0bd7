"""`vitadel report`: one page from run folders."""

from pathlib import Path
from typing import Annotated

import typer

from vitadel.cli import show


def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders of train, evaluate and attack", metavar="RUN...")],
    out: Annotated[Path, typer.Option("--out", help="the page to write")] = Path("report.html"),
) -> None:
    """Write one HTML page, complete in itself, from one or more runs."""
    from vitadel.report import write_report

    show.line(str(write_report(runs, out)))
