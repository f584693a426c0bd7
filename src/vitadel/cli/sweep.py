"""`vitadel sweep`: train every combination of some settings and tabulate the results."""

from typing import Annotated

import typer

from vitadel.cli.commands import call
from vitadel.cli.options import DATA, EVALUATION, MODEL, TRAINING, JsonOption, RecipeDataOption, RunOption, option


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
            "Evaluate this model in place of trained ones; repeatable. LABEL assigns it to a row of a published table. "
            "A path that exists may hold an = itself.",
        ),
    ] = [],  # noqa: B006
    axes: Annotated[
        list[str],
        option("--axis", TRAINING, "PATH=VALUE,...", "A setting and its values, such as beta=1,6; repeatable."),
    ] = [],  # noqa: B006 - typer makes a new list for every call
    overrides: Annotated[
        list[str], option("--set", TRAINING, "PATH=VALUE", "A setting to change in all combinations; repeatable.")
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
        option(
            "--attack", EVALUATION, "NAME", "Evaluate every row with this attack (see `vitadel attacks`); repeatable."
        ),
    ] = [],  # noqa: B006
    suite: Annotated[
        list[str],
        option(
            "--suite",
            EVALUATION,
            "NAMES",
            "Evaluate every row with these suites; repeatable. By default as in the paper of a table; `none` to skip.",
        ),
    ] = [],  # noqa: B006
    threat: Annotated[
        str | None,
        option("--threat", EVALUATION, "NORM:EPS", "Norm and radius; by default the table's, or linf:8/255."),
    ] = None,
    study: Annotated[
        list[str],
        option("--study", EVALUATION, "NAME", "Run this study on every row (adds figures, no numbers); repeatable."),
    ] = [],  # noqa: B006
    small: Annotated[
        bool,
        option(
            "--small", TRAINING, None, "Reduced scale, about an hour on one GPU: small models, CIFAR, 1000 test images."
        ),
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
            "Run the same command again to retry them."
        )
