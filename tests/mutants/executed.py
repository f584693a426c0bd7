"""Which tests run which functions of the package, and how long each takes; one process per test file, stored."""

import ast
import builtins
import hashlib
import importlib.abc
import importlib.machinery
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
from faults import DEFINITIONS  # type: ignore[import-not-found]

PACKAGE = "vitadel"
_MARK = "_ran_"


@dataclass(slots=True)
class FileRecord:
    """What one test file executes: its passing tests, their seconds, the functions they run, and its imports."""

    key: str
    seconds: dict[str, float] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    ran: dict[str, list[int]] = field(default_factory=dict)  # per test, places in `functions`
    modules: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def runs(self, function: str) -> list[str]:
        """The tests that run the function, in the order of the file."""
        if function not in self.functions:
            return []
        place = self.functions.index(function)
        return [test for test, places in self.ran.items() if place in places]

    def touches(self, module: str) -> bool:
        return any(function.startswith(f"{module}:") for function in self.functions)


def key_of(file: Path, tests: Path) -> str:
    """Changes when the test file or a conftest above it does."""
    above = [folder / "conftest.py" for folder in file.parents if folder == tests or tests in folder.parents]
    read = [path.read_bytes() for path in (file, *above) if path.exists()]
    return hashlib.sha256(b"\0".join(read)).hexdigest()[:16]


def record_file(file: Path, root: Path, options: Sequence[str], result: Path) -> None:
    """Run one test file in this process with marked functions, and write its record."""
    sys.meta_path.insert(0, _Finder(root / "src"))
    plugin = _Recorder(FileRecord(key_of(file, root / "tests")))
    setattr(builtins, _MARK, plugin.ran.add)
    pytest.main([*options, str(file.relative_to(root))], plugins=[plugin])
    plugin.record.modules = sorted(name for name in sys.modules if name.split(".")[0] == PACKAGE)
    result.write_text(json.dumps(asdict(plugin.record)))


class _Recorder:
    """What setting up a shared fixture runs counts for every later test of the file."""

    def __init__(self, record: FileRecord) -> None:
        self.record = record
        self.ran: set[str] = set()
        self.shared: set[str] = set()
        self.places: dict[str, int] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        before = set(self.ran)
        result = yield
        if fixturedef.scope != "function":
            self.shared |= self.ran - before
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.ran.clear()
        start = time.perf_counter()
        result = yield
        if item.nodeid in self.record.seconds:
            self.record.seconds[item.nodeid] = round(time.perf_counter() - start, 4)
            names = self.ran | self.shared
            self.record.ran[item.nodeid] = sorted(self.places.setdefault(name, len(self.places)) for name in names)
            self.record.functions = list(self.places)
        return result

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.record.failed.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.record.seconds[report.nodeid] = 0.0
        if report.failed:
            self.record.seconds.pop(report.nodeid, None)
            self.record.failed.append(report.nodeid)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the package's modules in the folder of its source and marks the entry of every function."""

    def __init__(self, source: Path) -> None:
        self.source = str(source)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] != PACKAGE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path or [self.source])
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path))
        _mark(tree, fullname, "")
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


def _mark(node: ast.AST, module: str, name: str) -> None:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, DEFINITIONS):
            _mark(child, module, name)
            continue
        inner = f"{name}.{child.name}".lstrip(".")
        _mark(child, module, inner)
        if not isinstance(child, ast.ClassDef):
            call = ast.Call(ast.Name(_MARK, ast.Load()), [ast.Constant(f"{module}:{inner}")], [])
            place = 1 if ast.get_docstring(child, clean=False) is not None else 0
            child.body.insert(place, ast.copy_location(ast.Expr(call), child.body[0]))


def place_of(file: Path, root: Path, kept: Path) -> Path:
    """Where the record of a test file is kept."""
    return kept / ("-".join(file.relative_to(root / "tests").with_suffix("").parts) + ".json")


def read_record(file: Path, root: Path, kept: Path) -> FileRecord | None:
    """The record of a test file; nothing if there is none, or only one of the file as it was before a change."""
    place = place_of(file, root, kept)
    if not place.exists():
        return None
    record = FileRecord(**json.loads(place.read_text()))
    return record if record.key == key_of(file, root / "tests") else None
