"""`vitadel demo`: a small end-to-end example."""

from pathlib import Path
from typing import Annotated

import typer

from vitadel.cli.commands import call
from vitadel.cli.options import OUTPUT, JsonOption, option


def demo(
    context: typer.Context,
    out: Annotated[Path, option("--out", OUTPUT, "DIR", "Folder for the runs and the report.")] = Path("vitadel-demo"),
    json: JsonOption = False,
) -> None:
    """Train a tiny ViT on digits, normally and adversarially; evaluate and analyze both and write a report."""
    from vitadel.api.demo import demo

    call(demo, context.params)
