"""`vitadel sweep`: train every combination of some settings."""

from typing import Annotated

import typer

from vitadel.cli import show
from vitadel.cli.options import JsonOption, RunOption
from vitadel.cli.parsing import command_line


def sweep(
    recipe: Annotated[str, typer.Argument(help="A name from `vitadel recipes` or `vitadel sweeps`.", metavar="RECIPE")],
    run: RunOption,
    axes: Annotated[
        list[str] | None,
        typer.Option(
            "--axis", help="What is varied, such as weight-decay=0.05,0.5; repeatable.", metavar="PATH=VALUE,..."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of all combinations; repeatable.", metavar="PATH=VALUE"),
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="Data in place of the recipe's.", metavar="DATA")] = None,
    suite: Annotated[
        str | None, typer.Option("--suite", help="Attacks to evaluate each on the test images.", metavar="NAME")
    ] = None,
    threat: Annotated[
        str | None, typer.Option("--threat", help="Of the suite: linf:8/255, l2:0.5, l1:12.", metavar="NORM:EPS")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train every combination of some settings and tabulate the results."""
    from vitadel.api.sweep import sweep
    from vitadel.core.errors import UsageError

    with show.progress(quiet=json) as notify:
        result = sweep(
            recipe,
            run,
            axes=axes or [],
            overrides=settings or [],
            data=data,
            suite=suite,
            threat=threat,
            progress=notify,
            command=command_line(),
        )
    show.result(result, as_json=json)
    if failed := result.failures:
        raise UsageError(
            f"{len(failed)} of {result.combinations} combinations failed: {', '.join(failed)}. "
            "The same command tries them again."
        )
