"""`vitadel train`: carry out a recipe."""

from pathlib import Path
from typing import Annotated

import typer

from vitadel.cli import show
from vitadel.cli.arguments import JsonOption, RunOption


def train(
    recipe: Annotated[str, typer.Argument(help="a name from `vitadel recipes`")],
    run: RunOption,
    data: Annotated[str | None, typer.Option("--data", help="instead of the recipe's data")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="path=value, such as plan.epochs=3")] = None,
    json: JsonOption = False,
) -> None:
    """Train a model by a recipe; killed at any moment, the same command goes on."""
    from vitadel.core.errors import unknown
    from vitadel.recipes import RECIPES, carry_out, override
    from vitadel.runs import Run

    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    chosen = override(RECIPES[recipe](), settings or [])
    with show.progress(quiet=json) as notify:
        carry_out(chosen, run, data_spec=data, notify=notify)
    done = Run.open(run)
    scores = [{key: entry.get(key) for key in ("step", "clean", "robust")} for entry in done.read_log("holdout")]
    if damaged := done.damaged_log_lines:
        show.note(f"{damaged} lines of {done.folder / 'log.jsonl'} are damaged and left out")
    if json:
        show.as_json({"run": str(run), "holdout": scores, "checkpoints": _names(done.checkpoints)})
        return
    for score in scores[-1:]:
        told = [f"{name} {value:.1%}" for name, value in score.items() if name != "step" and isinstance(value, float)]
        show.line(f"hold-out after step {score['step']}: {', '.join(told)}")
    show.line(f"{recipe} is trained: {run}")


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.safetensors"))
