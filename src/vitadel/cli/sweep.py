"""`vitadel sweep`: train every combination of some settings; `vitadel sweeps`: the tables of papers as sweeps."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from vitadel.cli import show
from vitadel.cli.arguments import JsonOption, RunOption

if TYPE_CHECKING:
    from vitadel.evaluate import Suite
    from vitadel.recipes.sweep import Axis, Published, Sweep

_COLUMNS = {"holdout": "hold-out", "test": "test", "published": "published"}


def sweep(
    recipe: Annotated[str, typer.Argument(help="a name from `vitadel recipes` or `vitadel sweeps`")],
    run: RunOption,
    axes: Annotated[list[str] | None, typer.Option("--axis", help="path=value,value or weight-decay=0.05,0.5")] = None,
    data: Annotated[str | None, typer.Option("--data", help="instead of the recipe's data")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="path=value, for all combinations")] = None,
    suite: Annotated[str | None, typer.Option("--suite", help="evaluate each on the test images, too")] = None,
    threat: Annotated[str | None, typer.Option("--threat", help="of the suite: linf:8/255, l2:0.5, l1:12")] = None,
    json: JsonOption = False,
) -> None:
    """Train every combination of some settings and tabulate what comes of it; the same command goes on."""
    from vitadel.core.errors import UsageError
    from vitadel.recipes.sweep import carry_out_sweep, failures

    chosen = _chosen(recipe, axes or [], settings or [], data, suite, threat)
    with show.progress(quiet=json) as notify:
        table = carry_out_sweep(chosen, run, notify=notify)
    tried = len(chosen.members())
    show.as_json({"run": str(run), **table}) if json else _show(table)
    if failed := failures(table):
        for name, reason in failed.items() if not json else ():
            show.line(f"{name} failed: {reason}")
        names = ", ".join(failed)
        raise UsageError(f"{len(failed)} of {tried} combinations failed: {names}. The same command tries them again.")


def sweeps(
    name: Annotated[str | None, typer.Argument(help="one of them, to see its published numbers")] = None,
    json: JsonOption = False,
) -> None:
    """List the sweeps that papers print as tables, or show one with its numbers."""
    from vitadel.core.errors import unknown
    from vitadel.recipes.published_tables import SWEEPS

    if name is None:
        about = {known: table.about for known, table in SWEEPS.items()}
        rows = [[known, table.about, table.recipe] for known, table in SWEEPS.items()]
        show.as_json(about) if json else show.table("", ["sweep", "varies", "recipe"], rows)
        return
    if name not in SWEEPS:
        raise unknown("sweep", name, SWEEPS)
    _show_published(SWEEPS[name], json)


def _chosen(
    name: str, axes: Sequence[str], settings: Sequence[str], data: str | None, suite: str | None, threat: str | None
) -> "Sweep":
    """The sweep that the command line describes; axes given on it replace those of a published one."""
    from vitadel import threats as threats
    from vitadel.core.errors import unknown
    from vitadel.recipes import RECIPES
    from vitadel.recipes.published_tables import SWEEPS
    from vitadel.recipes.sweep import Axis, Sweep

    published = SWEEPS.get(name)
    recipe = published.recipe if published else name
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES if published else {**RECIPES, **SWEEPS})
    given = [Axis.read(text) for text in axes]
    radius = threat or (published.threat if published else None)
    return Sweep(
        RECIPES[recipe](),
        tuple(_replaced(published.axes, given) if published else given),
        (*(published.settings if published else ()), *settings),
        data,
        _suite(suite),
        threats.read(radius) if radius and suite else None,
        published,
    )


def _replaced(known: "Sequence[Axis]", given: "Sequence[Axis]") -> "list[Axis]":
    """The given axes in place of the table's; a value that the table has stays all that the table means by it."""
    names = [axis.name for axis in given]
    meant = {(axis.name, value.label): value for axis in known for value in axis.values}
    chosen = (
        dataclasses.replace(axis, values=tuple(meant.get((axis.name, one.label), one) for one in axis.values))
        for axis in given
    )
    return [*(axis for axis in known if axis.name not in names), *chosen]


def _suite(name: str | None) -> "Suite | None":
    from vitadel.core.errors import unknown
    from vitadel.evaluate import SUITES

    if name is None:
        return None
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    return SUITES[name]


def _show(table: Mapping[str, object]) -> None:
    rows, axes, best = table["rows"], table["axes"], table["best"]
    assert isinstance(rows, list)
    assert isinstance(axes, list)
    shown = [
        (part, kind) for part in _COLUMNS for kind in ("clean", "robust") if any(_has(r, part, kind) for r in rows)
    ]
    marked = best if isinstance(best, dict) else {"measure": "", "rows": []}
    cells = [
        [*(row["values"][axis] for axis in axes), *(_cell(row, part, kind, marked) for part, kind in shown)]
        for row in rows
    ]
    columns = [*(axis.rpartition(".")[2] for axis in axes), *(f"{_COLUMNS[part]} {kind} %" for part, kind in shown)]
    show.table(str(table["recipe"]), columns, cells)
    if marked["rows"]:
        show.line(f"* best {str(marked['measure']).replace('.', ' ').replace('holdout', 'hold-out')}")
    if isinstance(told := table["published"], dict):
        show.line(f"published: {told['source']}; robust under {told['attack']}. {told['note']}".strip())


def _has(row: Mapping[str, object], part: str, kind: str) -> bool:
    numbers = row[part]
    return isinstance(numbers, dict) and numbers.get(kind) is not None


def _cell(row: Mapping[str, object], part: str, kind: str, best: Mapping[str, object]) -> str:
    numbers, winners = row[part], best["rows"]
    value = numbers.get(kind) if isinstance(numbers, dict) else None
    if value is None:
        return "-"
    if part == "published":
        return f"{value:.2f}"
    assert isinstance(winners, list)
    star = "*" if best["measure"] == f"{part}.{kind}" and row["name"] in winners else ""
    if isinstance(value, dict):
        share, low, high = (100 * value[key] for key in ("accuracy", "low", "high"))
        return f"{share:.1f}{star} ({low:.1f}-{high:.1f})"
    return f"{100 * value:.1f}{star}"


def _show_published(table: "Published", json: bool) -> None:
    names = [axis.name for axis in table.axes]
    numbers = {", ".join(labels): row for labels, row in table.rows.items()}
    about = {
        "source": table.source,
        "recipe": table.recipe,
        "settings": list(table.settings),
        "threat": table.threat,
        "attack": table.attack,
        "note": table.note,
    }
    if json:
        rows = [
            {"values": dict(zip(names, labels, strict=True)), **dataclasses.asdict(row)}
            for labels, row in table.rows.items()
        ]
        show.as_json({**about, "rows": rows})
        return
    cells = [
        [label, *(_percent(n) for n in (row.clean, row.robust, row.standard_clean))] for label, row in numbers.items()
    ]
    show.table(table.about, [", ".join(names), "clean %", "robust %", "clean %, no adversary"], cells)
    for key, value in about.items():
        if value:
            show.line(f"{key}: {' '.join(value) if isinstance(value, list) else value}")


def _percent(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"
