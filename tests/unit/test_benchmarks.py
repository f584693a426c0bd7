"""The scripts in benchmarks/: their options are those that they read."""

import ast
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = [file for file in sorted(BENCHMARKS.glob("*.py")) if "ArgumentParser" in file.read_text(encoding="utf-8")]


def options_of(tree: ast.AST) -> set[str]:
    """The attributes that `add_argument` and `set_defaults` give to the parsed arguments."""
    names: set[object] = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        keywords = {one.arg: one.value for one in call.keywords if one.arg is not None}
        if method in ("add_argument", "add_subparsers"):
            flags = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            flags = [one for one in flags if one.startswith("--")] or flags
            dest = keywords.get("dest")
            names |= {dest.value} if isinstance(dest, ast.Constant) else {flags[0]} if flags else set()
        elif method == "set_defaults":
            names |= keywords.keys()
    return {str(name).lstrip("-").replace("-", "_") for name in names}


def reads_of(tree: ast.AST) -> set[str]:
    """The attributes that are read from a variable called `args`."""
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "args"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_reads_the_options_that_it_has(script: Path) -> None:
    tree = ast.parse(script.read_text(encoding="utf-8"))
    assert reads_of(tree) <= options_of(tree)
    assert options_of(tree)
