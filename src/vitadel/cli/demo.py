"""`vitadel demo`: everything, small."""

from pathlib import Path
from typing import Annotated

import typer

from vitadel.cli import show
from vitadel.cli.options import JsonOption
from vitadel.cli.parsing import command_line


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the runs and the report.", metavar="DIR")] = Path(
        "vitadel-demo"
    ),
    json: JsonOption = False,
) -> None:
    """Train a tiny ViT and its adversarially trained twin on digits, evaluate and study both, write the report."""
    from vitadel.api.demo import demo

    with show.progress(quiet=json) as notify:
        result = demo(out, progress=notify, command=command_line())
    show.result(result, as_json=json)
