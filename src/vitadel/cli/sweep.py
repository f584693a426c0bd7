"""`vitadel sweep`: train every combination of some settings."""

from typing import Annotated

import typer

from vitadel.cli.options import ATTACK, TRAINING, JsonOption, RecipeDataOption, RunOption, option
from vitadel.cli.parsing import call


def sweep(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="A name from `vitadel recipes` or `vitadel sweeps`.", metavar="RECIPE")],
    run: RunOption,
    axes: Annotated[
        list[str],
        option("--axis", TRAINING, "PATH=VALUE,...", "What is varied, such as weight-decay=0.05,0.5; repeatable."),
    ] = [],  # noqa: B006 - typer makes a new list for every call
    overrides: Annotated[
        list[str], option("--set", TRAINING, "PATH=VALUE", "A setting of all combinations; repeatable.")
    ] = [],  # noqa: B006
    data: RecipeDataOption = None,
    suite: Annotated[
        str | None, option("--suite", ATTACK, "NAME", "Attacks to evaluate each on the test images.")
    ] = None,
    threat: Annotated[
        str | None,
        option("--threat", ATTACK, "NORM:EPS", "Norm and radius of the suite: linf:8/255 (default), l2:0.5, l1:12."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train every combination of some settings and tabulate the results."""
    from vitadel.api.sweep import sweep
    from vitadel.core.errors import UsageError

    result = call(sweep, context.params)
    if failed := result.failures:
        raise UsageError(
            f"{len(failed)} of {result.combinations} combinations failed: {', '.join(failed)}. "
            "The same command tries them again."
        )
