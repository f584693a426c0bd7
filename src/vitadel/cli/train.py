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
    from vitadel.api.train import train
    from vitadel.runs import Run

    with show.progress(quiet=json) as notify:
        train(recipe, run, data=data, overrides=settings or [], progress=notify, command=command_line())
    done = Run.open(run)
    scores = [{key: entry.values.get(key) for key in ("step", "clean", "robust")} for entry in done.read_log("holdout")]
    if damaged := done.damaged_log_lines:
        show.note(f"{damaged} lines of {done.folder / 'log.jsonl'} are damaged and were left out")
    if json:
        checkpoints = sorted(path.name for path in done.checkpoints.glob("*.safetensors"))
        show.json_object({"run": str(run), "holdout": scores, "checkpoints": checkpoints})
        return
    for score in scores[-1:]:
        accuracies = [
            f"{name} {value:.1%}" for name, value in score.items() if name != "step" and isinstance(value, float)
        ]
        show.line(f"hold-out after step {score['step']}: {', '.join(accuracies)}")
    show.line(f"{recipe} is trained: {run}")
