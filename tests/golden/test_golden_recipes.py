"""Every value that a recipe or a row of a published table chooses: one that changes changes what is trained.

Record anew with `python tests/golden/test_golden_recipes.py` after an intended change.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from vitadel.api.sweep import as_sweep
from vitadel.recipes import RECIPES, Recipe, leaves
from vitadel.recipes.columns import Column
from vitadel.recipes.published import PublishedSweep
from vitadel.recipes.published_tables import SWEEPS

RECORD = Path(__file__).with_name("recipes.json")


def chosen(recipe: Recipe) -> dict[str, str]:
    """The values that are not their class's defaults."""
    return {leaf.path: leaf.value for leaf in leaves(recipe) if not leaf.by_default}


def of_recipe(name: str) -> dict[str, str]:
    recipe = RECIPES[name]()
    return {**chosen(recipe), **{f"expect.{what}": result for what, result in recipe.expect.items()}}


def of_table(name: str) -> dict[str, object]:
    """Per row the printed numbers, and how its recipe differs from the one that the table is about."""
    table = SWEEPS[name]
    common = chosen(RECIPES[table.recipe]()) if table.recipe else {}
    rows: dict[str, object] = {}
    for member in as_sweep(name).combinations():
        values, numbers = (
            chosen(member.recipe) if member.trained else {"model": member.model},
            table.rows[member.labels],
        )
        changed = {path: values.get(path) for path in {**common, **values} if values.get(path) != common.get(path)}
        printed = [numbers.clean, numbers.robust, numbers.standard_clean, *numbers.others.values()]
        rows[" ".join(member.labels)] = [*printed, *of_columns(member.columns, table), changed]
    known = {
        field.name: getattr(table, field.name)
        for field in dataclasses.fields(table)
        if isinstance(getattr(table, field.name), str | int)
    }
    return {**known, "settings": list(table.settings), "studies": list(table.studies), "rows": rows}


def small_lengths(name: str) -> dict[str, int]:
    """The epochs of the rows with `--small` on a GPU, which follow from the costs of their networks."""
    if not SWEEPS[name].recipe:
        return {}
    return {" ".join(one.labels): one.recipe.plan.epochs for one in as_sweep(name, small=True).combinations()}


def of_columns(columns: Sequence[Column], table: PublishedSweep) -> list[str]:
    """The evaluations of a row that has its own."""
    if columns == table.columns:
        return []
    return [" ".join(map(str, (one.name, one.evaluation, one.scaling, one.rescaled, one.measure))) for one in columns]


@pytest.mark.parametrize("name", RECIPES)
def test_values_match_the_record(name: str) -> None:
    assert of_recipe(name) == json.loads(RECORD.read_text())["recipes"][name]


@pytest.mark.parametrize("name", SWEEPS)
def test_published_tables_match_the_record(name: str) -> None:
    assert of_table(name) == json.loads(RECORD.read_text())["tables"][name]


@pytest.mark.parametrize("name", SWEEPS)
def test_lengths_at_the_small_scale_match_the_record(name: str) -> None:
    assert small_lengths(name) == json.loads(RECORD.read_text())["small"][name]


def test_everything_on_record_still_exists() -> None:
    recorded = json.loads(RECORD.read_text())
    assert recorded["recipes"].keys() == RECIPES.keys()
    assert recorded["tables"].keys() == SWEEPS.keys()


if __name__ == "__main__":
    found = {
        "recipes": {name: of_recipe(name) for name in RECIPES},
        "tables": {name: of_table(name) for name in SWEEPS},
        "small": {name: small_lengths(name) for name in SWEEPS},
    }
    RECORD.write_text(json.dumps(found, indent=0) + "\n")
