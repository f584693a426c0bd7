"""Vitadel: train, attack, evaluate and explain robust Vision Transformers.

    import vitadel as vd

    model = vd.load_model("timm:vit_tiny_patch16_224", pretrained=True)
    result = vd.robustness(model, x, y, "linf:8/255")

Everything is imported when it is first used (PEP 562), so `import vitadel` is fast. Four packages share their name with
a function: `vd.evaluate(...)` runs an evaluation, and `from vitadel.evaluate import SUITES` works as well.
"""

import importlib
import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitadel import attacks, core, data, goals, losses, models, objectives, recipes, runs, shifts, threats
    from vitadel.api.analyze import analyze
    from vitadel.api.augmentation import show_data
    from vitadel.api.data import check_data, load_data
    from vitadel.api.evaluate import evaluate
    from vitadel.api.models import load_model
    from vitadel.api.report import report
    from vitadel.api.robustness import robustness
    from vitadel.api.sweep import sweep
    from vitadel.api.train import train

__version__ = "0.1.0"

__all__ = [
    "analyze",
    "attacks",
    "check_data",
    "core",
    "data",
    "evaluate",
    "goals",
    "load_data",
    "load_model",
    "losses",
    "models",
    "objectives",
    "recipes",
    "report",
    "robustness",
    "runs",
    "shifts",
    "show_data",
    "sweep",
    "threats",
    "train",
]

# each function and the module of `vitadel.api` that defines it
_FUNCTIONS = {
    "analyze": "analyze",
    "check_data": "data",
    "evaluate": "evaluate",
    "load_data": "data",
    "load_model": "models",
    "report": "report",
    "robustness": "robustness",
    "show_data": "augmentation",
    "sweep": "sweep",
    "train": "train",
}
# packages searched for a name that is not here
_HINTED = ("attacks", "goals", "threats", "losses", "objectives", "models", "recipes", "data", "evaluate", "analyze")
# functions of timm and RobustBench, and what to write instead
_ELSEWHERE = {
    "create_model": 'vd.load_model("timm:NAME")',
    "list_models": '"vitadel models" in a terminal, or timm.list_models()',
    "benchmark": "vd.evaluate(model, data, suites, run=DIR)",
    "load_cifar10": 'vd.load_data("cifar10:DIR").test.tensors(256)',
}
_ONLY_FUNCTIONS = ("check_data", "load_data", "load_model", "robustness", "show_data", "sweep")


def _function(name: str) -> Any:
    return getattr(importlib.import_module(f"vitadel.api.{_FUNCTIONS[name]}"), name)


def _package(name: str) -> ModuleType:
    return importlib.import_module(f"vitadel.{name}")


def __getattr__(name: str) -> Any:
    if name in _ONLY_FUNCTIONS:
        return _function(name)
    if name in __all__:
        return _package(name)
    raise AttributeError(f"module 'vitadel' has no attribute {name!r}{_hint(name)}")


def _hint(name: str) -> str:
    """The package that has a class or function of this name, for the error message."""
    if name.startswith("_"):  # lookups of special names by tools must not import every package
        return ""
    if name in _ELSEWHERE:
        return f". Write {_ELSEWHERE[name]}"
    packages = (package for package in _HINTED if name in _package(package).__all__)
    found = next((f". Write vd.{package}.{name}" for package in packages), "")
    return found or str(importlib.import_module("vitadel.attacks.other_libraries").class_advice(name))


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _without_types(signature: inspect.Signature) -> inspect.Signature:
    """Parameter names and defaults only; `help` shows no signature for a module, so the docstring gets one."""
    empty = inspect.Signature.empty
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return signature.replace(parameters=plain, return_annotation=empty)


class _CallablePackage(ModuleType):
    # a package that can be called like the function of the same name; its docstring documents both

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        name = self.__name__.rpartition(".")[2]
        title, _, rest = (inspect.getdoc(_function(name)) or "").partition("\n\n")
        call = f"{name}{_without_types(self.__signature__)}"
        return f"{title}\n\n{call}\n\n{rest}\n\nThis is also the package `{self.__name__}`. {vars(self)['__doc__']}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _function(self.__name__.rpartition(".")[2])(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(_function(self.__name__.rpartition(".")[2]))


class _VitadelModule(ModuleType):
    """This module: an imported subpackage becomes callable if a function has the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _FUNCTIONS and isinstance(value, ModuleType):
            value.__class__ = _CallablePackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _VitadelModule
