"""`vitadel sweep`: train every combination of some settings."""

from typing import Annotated

import typer

from vitadel.cli.options import ATTACK, DATA, MODEL, TRAINING, JsonOption, RecipeDataOption, RunOption, option
from vitadel.cli.parsing import call


def sweep(
    context: typer.Context,
    run: RunOption,
    recipe: Annotated[
        str | None, typer.Argument(help="A name from `vitadel recipes` or `vitadel sweeps`.", metavar="[RECIPE]")
    ] = None,
    models: Annotated[
        list[str],
        option(
            "--model",
            MODEL,
            "[LABEL=]MODEL",
            "Evaluate this model in place of trained ones; repeatable. The label of a table's row makes it that row.",
        ),
    ] = [],  # noqa: B006
    axes: Annotated[
        list[str],
        option("--axis", TRAINING, "PATH=VALUE,...", "What is varied, such as weight-decay=0.05,0.5; repeatable."),
    ] = [],  # noqa: B006 - typer makes a new list for every call
    overrides: Annotated[
        list[str], option("--set", TRAINING, "PATH=VALUE", "A setting of all combinations; repeatable.")
    ] = [],  # noqa: B006
    data: RecipeDataOption = None,
    test_data: Annotated[
        list[str],
        option(
            "--test-data",
            DATA,
            "DATA",
            "Test images in place of those of --data; repeatable for imagenet-a:DIR, imagenet-r:DIR, cue-conflict:DIR.",
        ),
    ] = [],  # noqa: B006
    attack: Annotated[
        list[str],
        option("--attack", ATTACK, "NAME", "Evaluate each with this attack, as `vitadel attack`; repeatable."),
    ] = [],  # noqa: B006
    suite: Annotated[
        list[str],
        option(
            "--suite",
            ATTACK,
            "NAMES",
            "Evaluate each with these suites; repeatable. By default as the paper of a table does; `none` for nothing.",
        ),
    ] = [],  # noqa: B006
    threat: Annotated[
        str | None,
        option("--threat", ATTACK, "NORM:EPS", "Norm and radius: by default the table's, or linf:8/255."),
    ] = None,
    study: Annotated[
        list[str],
        option("--study", ATTACK, "NAME", "Study each, as `vitadel analyze`, for figures and no number; repeatable."),
    ] = [],  # noqa: B006
    small: Annotated[
        bool,
        option("--small", TRAINING, None, "At a scale of an hour on one GPU: small models, CIFAR, 1000 test images."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Train every combination of some settings and tabulate the results."""
    from vitadel.api.sweep import sweep
    from vitadel.core.errors import UsageError

    result = call(sweep, context.params)
    if failed := result.failures:
        raise UsageError(
            f"{len(failed)} of {result.combinations} combinations failed: {', '.join(failed)}. "
            "Run the same command again to repeat them."
        )
