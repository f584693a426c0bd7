"""`vitadel demo`: everything, small."""

from pathlib import Path
from typing import Annotated

import typer

from vitadel.cli.options import OUTPUT, JsonOption, option
from vitadel.cli.parsing import call


def demo(
    context: typer.Context,
    out: Annotated[Path, option("--out", OUTPUT, "DIR", "Folder for the runs and the report.")] = Path("vitadel-demo"),
    json: JsonOption = False,
) -> None:
    """Train a tiny ViT and an adversarially trained copy on digits, evaluate and study both, write the report."""
    from vitadel.api.demo import demo

    call(demo, context.params)
