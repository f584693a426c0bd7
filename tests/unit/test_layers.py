"""The layers, read from the imports: a package imports lower layers only, and outside packages have their importers."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "vitadel"

LAYERS = [
    {"core"},
    {"threats", "losses", "shifts", "models", "data", "runs"},
    {"goals"},
    {"attacks"},
    {"objectives"},
    {"train", "evaluate"},
    {"analyze", "recipes", "report"},
    {"api"},
    {"cli"},
]
# narrower than the layers allow
SEES_ONLY = {"report": {"runs", "core"}}
NEVER = {"attacks": {"models"}}

# packages that only some of ours import
OUTSIDE = {
    "timm": {"models", "train"},
    "safetensors": {"models"},
    "torchvision": {"data"},
    "PIL": {"data", "shifts"},
    "sklearn": {"data"},
    "scipy": {"core"},
    "accelerate": {"train"},
    "pyarrow": {"runs"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "typer": {"cli"},
    "rich": {"cli", "core"},
}
NO_TORCH = {"report"}
# objects whose private attributes a test's own class may use
OWN = ("self", "cls")
# attributes of other libraries that have the name of one of ours: of matplotlib's MaxNLocator
OF_OTHERS = {"_integer"}


TESTS = Path(__file__).parents[1]
_PRIVATE = re.compile(r"_[a-zA-Z]\w*")


def _private_names() -> set[str]:
    """The private functions, methods, classes and constants of the package."""
    names: set[str] = set()
    for file in SRC.rglob("*.py"):
        tree = ast.parse(file.read_text())
        defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        names |= {node.name for node in ast.walk(tree) if isinstance(node, defined)}
        names |= {
            one.id for node in tree.body for one in ast.walk(node) if _is_stored(one) and isinstance(one, ast.Name)
        }
    return {name for name in names if _PRIVATE.fullmatch(name)}


def _is_stored(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store)


def _private_uses(file: Path, private: set[str]) -> Iterator[str]:
    """The private names of the package that a test imports, reaches as attributes or replaces by name."""
    for node in ast.walk(ast.parse(file.read_text())):
        used: list[str] = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vitadel"):
            used = [one.name for one in node.names]
        elif isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id in OWN):
            used = [node.attr]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            used = re.findall(r"\bvitadel(?:\.\w+)*\.(_[a-zA-Z]\w*)", node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("setattr", "setitem", "patch.object")):
            used = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        yield from (
            f"{file.relative_to(TESTS)}:{getattr(node, 'lineno', 0)} {name}"
            for name in used
            if name in private - OF_OTHERS
        )


def test_tests_use_public_names_only() -> None:
    private = _private_names()
    files = sorted(TESTS.rglob("*.py"))
    assert len(files) > 200
    assert not [use for file in files for use in _private_uses(file, private)]


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide where a name comes from"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _package(file: Path) -> str:
    return file.relative_to(SRC).parts[0].removesuffix(".py")


def _files() -> list[Path]:
    return [file for file in sorted(SRC.rglob("*.py")) if _package(file) not in ("__init__", "__main__")]


def _layer(package: str) -> int:
    return next(number for number, packages in enumerate(LAYERS) if package in packages)


def _may_import(package: str, other: str) -> bool:
    if package == other:
        return True
    if package in SEES_ONLY:
        return other in SEES_ONLY[package]
    return _layer(other) < _layer(package) and other not in NEVER.get(package, set())


def test_packages_import_lower_layers_only() -> None:
    bad = []
    for file in _files():
        for name in _imports(file):
            parts = name.split(".")
            package = parts[1] if parts[0] == "vitadel" and len(parts) > 1 else ""
            if any(package in layer for layer in LAYERS) and not _may_import(_package(file), package):
                bad.append(f"{file.relative_to(SRC)}: {_package(file)} -> {package}")
    assert not bad, "\n".join(bad)


def test_every_package_has_a_layer() -> None:
    assert {_package(file) for file in _files()} <= set().union(*LAYERS)


def test_outside_packages_are_imported_where_declared() -> None:
    bad = [
        f"{file.relative_to(SRC)} imports {name}"
        for file in _files()
        for name in {name.split(".")[0] for name in _imports(file)}
        if (name in OUTSIDE and _package(file) not in OUTSIDE[name]) or (name == "torch" and _package(file) in NO_TORCH)
    ]
    assert not bad, "\n".join(bad)


def test_there_is_no_utils_module() -> None:
    drawers = {"utils", "util", "misc", "helpers", "common"}
    assert not [file for file in _files() if set(file.relative_to(SRC).with_suffix("").parts) & drawers]


# a command and the function that it calls; `data.load` and `models.load`, which are written with their package
SAME_MEANING = {"load", "describe", "check", "convert"}


def test_a_name_has_one_meaning() -> None:
    defined: dict[str, list[str]] = {}
    for file in (file for file in _files() if _package(file) != "cli"):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(file.relative_to(SRC).as_posix())
    assert len(defined) > 500
    assert not {name: files for name, files in defined.items() if len(files) > 1 and name not in SAME_MEANING}


def _opens_text_without_encoding(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("read_text", "write_text"):
        return not any(keyword.arg == "encoding" for keyword in call.keywords)
    modes = [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    # a builtin `open` without a mode reads text; methods called so may be anything, and are judged by their mode
    text = any("b" not in mode for mode in modes) if modes else isinstance(call.func, ast.Name)
    return name == "open" and text and not any(keyword.arg == "encoding" for keyword in call.keywords)


def test_text_files_are_opened_with_an_encoding() -> None:
    """Or a file written on one machine cannot be read on another, under another locale."""
    calls = (
        (file, node) for file in sorted(SRC.rglob("*.py")) for node in ast.walk(ast.parse(file.read_text("utf-8")))
    )
    assert not [
        f"{file.relative_to(SRC)}:{node.lineno}"
        for file, node in calls
        if isinstance(node, ast.Call) and _opens_text_without_encoding(node)
    ]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['vitadel', '--help']\n"
        "from vitadel.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('HEAVY', sorted({'torch', 'timm', 'numpy', 'pyarrow', 'matplotlib', 'accelerate'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "HEAVY []" in done.stdout
    assert "evaluate" in done.stdout


def test_importing_the_packages_changes_nothing_global() -> None:
    packages = sorted({_package(file) for file in _files()})
    code = (
        "import os, torch\n"
        "state, threads, env = torch.random.get_rng_state(), torch.get_num_threads(), dict(os.environ)\n"
        "dtype = torch.get_default_dtype()\n"
        + "".join(f"import vitadel.{package}\n" for package in packages)
        + "assert torch.equal(state, torch.random.get_rng_state())\n"
        "assert threads == torch.get_num_threads() and dtype == torch.get_default_dtype()\n"
        # torch itself uses a folder for compiled code
        "assert {key for key in os.environ if os.environ[key] != env.get(key)} <= {'TORCHINDUCTOR_CACHE_DIR'}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
