"""`vitadel report`: write an HTML report of run folders."""

from pathlib import Path
from typing import Annotated

import typer

from vitadel.cli import show
from vitadel.cli.options import OUTPUT, JsonOption, option


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of trainings, evaluations, studies and sweeps.", metavar="RUN...")
    ],
    baseline: Annotated[
        str | None,
        option("--baseline", OUTPUT, "MODEL", "Show differences from this model, given by its name in the report."),
    ] = None,
    out: Annotated[Path, option("--out", OUTPUT, "FILE", "The HTML file.")] = Path("report.html"),
    tables: Annotated[
        Path | None,
        option(
            "--tables", OUTPUT, "DIR", "Folder for the comparison as LaTeX, Markdown, CSV and JSON, with its figures."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write one self-contained HTML report of one or more runs."""
    from vitadel.api.report import report

    written = [str(path) for path in report(list(runs), out, baseline=baseline, tables=tables)]
    if json:
        show.json_object({"files": written})
        return
    for path in written:
        show.line(path)
