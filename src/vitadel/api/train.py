"""`vd.train`: a recipe into a run folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from vitadel.api.arguments import progress_of
from vitadel.core.errors import unknown_name_error
from vitadel.core.progress import ProgressCallback
from vitadel.models import Model
from vitadel.recipes import RECIPES, Recipe, train_recipe


def train(
    recipe: str | Recipe,
    run: str | Path,
    *,
    data: str | None = None,
    overrides: Mapping[str, object] | Sequence[str] = (),
    progress: bool | ProgressCallback | None = None,
    command: str | None = None,
) -> Model:
    """Train a recipe into a run folder; interrupted at any time, the same call resumes.

    Args:
        recipe: A name from `vitadel recipes`, or a `Recipe`.
        run: The run folder; one of another run is refused.
        data: A data set in place of the recipe's.
        overrides: Settings to change, such as `{"plan.epochs": 3, "selection.threat": "linf:4/255"}`.
        progress: None shows bars on a terminal, False shows nothing; or a callback.
        command: What the manifest records as the command.

    Returns:
        The model to evaluate: the best checkpoint by the hold-out, or the last weights without one.

    Raises:
        UsageError: If there is no such recipe or setting, or the folder belongs to another run.

    Example:
        >>> model = train("digits-adversarial", "runs/robust", overrides={"plan.epochs": 3})
    """
    with progress_of(progress) as notify:
        model = train_recipe(
            as_recipe(recipe), Path(run), data_spec=data, overrides=overrides, notify=notify, command=command
        )
    model.source = str(run)
    return model


def as_recipe(recipe: str | Recipe) -> Recipe:
    """A recipe, or the one of this name."""
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in RECIPES:
        raise unknown_name_error("recipe", recipe, RECIPES)
    return RECIPES[recipe]()
