"""`vitadel train`: train a model with a recipe."""

from typing import Annotated

import typer

from vitadel.cli import show
from vitadel.cli.commands import command_line
from vitadel.cli.options import TRAINING, JsonOption, RecipeDataOption, RunOption, option


def train(
    recipe: Annotated[str, typer.Argument(help="A name from `vitadel recipes`.", metavar="RECIPE")],
    run: RunOption,
    data: RecipeDataOption = None,
    settings: Annotated[
        list[str] | None,
        option("--set", TRAINING, "PATH=VALUE", "A setting to change, such as plan.epochs=3; repeatable."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train a model with a recipe. An interrupted run resumes when you repeat the command."""
    from vitadel.api.train import TrainingSummary, train

    with show.progress(quiet=json) as notify:
        train(recipe, run, data=data, overrides=settings or [], progress=notify, command=command_line())
    summary = TrainingSummary.read(run, recipe)
    for warning in summary.warnings:
        show.note(warning)
    show.result(summary, as_json=json)
