"""Default values and ranges of everything public: functions, methods, settings, commands.

After an intended change, delete `signatures.json` and run the test twice: the first run records anew and fails.
"""

import ast
import dataclasses
import enum
import importlib
import inspect
import json
import pkgutil
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import vitadel
from vitadel.core.numeric import Range

RECORD = Path(__file__).with_name("signatures.json")
# each command is recorded with its options instead
PACKAGES = [one.name for one in pkgutil.iter_modules(vitadel.__path__) if one.ispkg and one.name != "cli"]
LIMITS = ("ge", "gt", "le", "lt", "top")


def plain(value: object) -> Any:
    """A default as JSON; classes, functions and unknown objects by their name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        shown = {name: one for name, one in fields.items() if name not in ("about", "title") and name[0] != "_"}
        return {type(value).__name__: shown}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    return getattr(value, "__qualname__", type(value).__name__)


def defaults(function: Any) -> dict[str, Any]:
    """The parameters that need not be given."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: plain(one.default) for one in parameters if one.default is not inspect.Parameter.empty}


def limits(declared: Any) -> list[Any]:
    """The ranges in a type, however deep."""
    if typing.get_origin(declared) is typing.Annotated:
        found = [one for one in declared.__metadata__ if isinstance(one, Range)]
        return [{name: value for name in LIMITS if (value := getattr(one, name)) is not None} for one in found]
    return [one for part in typing.get_args(declared) for one in limits(part)]


def of_settings(kind: Any) -> dict[str, Any]:
    """Default values of the fields."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name.startswith("_"):
            continue
        if field.default is not dataclasses.MISSING:
            found[field.name] = plain(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            # a clock gives another number every time
            clock = inspect.isbuiltin(field.default_factory)
            found[field.name] = plain(field.default_factory if clock else field.default_factory())
    return found


def of_class(kind: Any) -> dict[str, Any]:
    """Default values of fields and methods, numbers that all instances share, and ranges."""
    found = of_settings(kind) if dataclasses.is_dataclass(kind) else {}
    for name, value in vars(kind).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(function) and (not name.startswith("_") or name in ("__init__", "__call__")):
            if not (dataclasses.is_dataclass(kind) and name == "__init__"):
                found |= {f"{name}({key})": one for key, one in defaults(function).items()}
        elif not name.startswith("_") and isinstance(value, bool | int | float):
            found[name] = plain(value)
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError:  # names that only type checkers import
        hints = inspect.get_annotations(kind)
    found |= {f"range of {name}": one for name, declared in hints.items() if (one := limits(declared))}
    return found


def modules(package: str) -> Iterator[ModuleType]:
    first = importlib.import_module(f"vitadel.{package}")
    yield first
    for one in pkgutil.walk_packages(first.__path__, f"{first.__name__}."):
        yield importlib.import_module(one.name)


def assigned(module: ModuleType) -> Iterator[str]:
    """The names of constants and types that a module defines."""
    for node in ast.parse(inspect.getsource(module)).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def public_names(package: str) -> Iterator[tuple[str, Any]]:
    """Public functions, classes, numbers and types with ranges, each where it is defined."""
    for module in modules(package):
        own = set(assigned(module))
        for name, value in vars(module).items():
            if name.startswith("_"):
                continue
            if inspect.isfunction(value) or inspect.isclass(value):
                if value.__module__ == module.__name__:
                    yield name, value
            elif name in own and (limits(value) or numbers(value)):
                yield name, value


def numbers(value: object) -> bool:
    """Whether it is a number, or a tuple or dictionary of numbers."""
    several = tuple(value.values()) if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
    return bool(several) and all(isinstance(one, int | float) for one in several)


def described(value: Any) -> Any:
    if inspect.isclass(value):
        return [] if issubclass(value, enum.Enum) else of_class(value)
    if inspect.isfunction(value):
        return defaults(value)
    return plain(value) if numbers(value) else limits(value)


def check(name: str, result: dict[str, Any]) -> None:
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if name not in recorded:
        entries = {
            package: ",\n".join(f"  {json.dumps(key)}: {json.dumps(one)}" for key, one in sorted(some.items()))
            for package, some in sorted({**recorded, name: result}.items())
        }
        texts = [f"{json.dumps(package)}: {{\n{lines}\n}}" for package, lines in entries.items()]
        RECORD.write_text("{\n" + ",\n".join(texts) + "\n}\n")
        pytest.fail(f"{name} was not on record and now is: look at the difference")
    assert json.loads(json.dumps(result)) == recorded[name]


@pytest.mark.parametrize("package", PACKAGES)
def test_defaults_and_ranges_are_those_on_record(package: str) -> None:
    found: dict[str, list[Any]] = {}
    for name, value in public_names(package):
        if (one := described(value)) not in ({}, []) and one not in found.get(name, []):
            found.setdefault(name, []).append(one)
    check(package, {name: sorted(some, key=json.dumps) for name, some in found.items()})


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {word}")


def test_commands_have_the_options_and_defaults_on_record() -> None:
    from vitadel.cli import app

    found = {}
    for name, command in commands(typer.main.get_command(app), "vitadel"):
        options = {"/".join([*one.opts, *one.secondary_opts]): one for one in command.params}
        found[name] = {
            words: [one.required, one.nargs, bool(getattr(one, "multiple", False)), plain(one.default)]
            for words, one in options.items()
        }
    check("cli", found)
