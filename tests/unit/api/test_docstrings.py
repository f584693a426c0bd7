"""What `help` shows: the most used names say what they take and show a call, signatures are readable."""

import ast
import doctest
import importlib
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vitadel as vd
from vitadel.core.numeric import Range

SOURCE = Path(vd.__file__).parent

FUNCTIONS = [
    *("analyze", "check_data", "evaluate", "load_data", "load_model", "report", "robustness", "show_data", "sweep"),
    "train",
]
CLASSES = [
    *(vd.attacks.PGD, vd.attacks.APGD, vd.attacks.FGSM, vd.attacks.FAB, vd.attacks.Square),
    *(vd.threats.Linf, vd.threats.L2, vd.threats.L1, vd.goals.Untargeted, vd.goals.Targeted),
    *(vd.objectives.TRADES, vd.models.wrap, vd.models.load),
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_the_package_are_documented_with_an_example(name: str) -> None:
    text = inspect.getdoc(getattr(vd, name)) or ""
    assert all(part in text for part in ("Args:", "Returns:", "Example:")), text


@pytest.mark.parametrize("named", CLASSES, ids=lambda named: named.__name__)
def test_classes_document_their_settings_with_an_example(named: object) -> None:
    text = inspect.getdoc(named) or ""
    assert all(part in text for part in ("Args:", "Example:")), text


def test_a_package_that_is_called_keeps_its_own_description() -> None:
    text = vd.train.__doc__
    assert text is not None
    assert text.index("Args:") < text.index("the package `vitadel.train`. Training: the loop")


def test_ranges_in_signatures_show_what_is_set() -> None:
    assert repr(Range(ge=1)) == "Range(ge=1)"
    assert repr(Range(gt=0, le=0.5, hint="It is a share.")) == "Range(gt=0, le=0.5)"
    assert "Range(ge=1, top=1000000)" in str(inspect.signature(vd.attacks.PGD))


# what an example may use without importing it, besides `model`, `x` and `y`
NAMES = {
    "analyze": ["Lesion", "run_study", "tensor_context"],
    "attacks": ["PGD"],
    "data": ["parse_preprocess"],
    "evaluate": ["Context", "TensorImages", "run_suite"],
    "evaluate.suites": ["GrayLevel"],
    "goals": ["Untargeted"],
    "objectives": ["Standard"],
    "recipes": ["RECIPES"],
    "threats": ["Linf"],
    "train": ["AdamW", "LRScaling"],
}
EXAMPLES = [
    *("attacks.AttackResult", "attacks.Attack.craft", "attacks.parse_attack", "threats.parse_threat"),
    *("evaluate.Suite", "analyze.Study", "recipes.Recipe", "train.TrainingConfig", "objectives.LossOutput"),
    *("data.DataSet", "data.Split", "data.load", "models.load"),
]


RETURNING = [
    *("models.load", "data.load", "attacks.parse_attack", "attacks.Attack.craft", "threats.parse_threat"),
    *("threats.as_threat", "analyze.study", "evaluate.suite_record"),
]
RAISING = [
    *("attacks.APGD", "attacks.FGSM", "attacks.FAB", "attacks.AAS", "attacks.NamedAttack", "attacks.IterativeAttack"),
    *("evaluate.AttackSuite", "evaluate.Context", "analyze.study", "train.TrainingConfig", "recipes.Recipe"),
    *("recipes.Selection", "models.Taps.edit", "models.Taps.scale", "models.Taps.mask", "models.Taps.skip"),
]


def found(path: str) -> Any:
    """The object that `attacks.Attack.craft` names."""
    package, *names = path.split(".")
    place: Any = importlib.import_module(f"vitadel.{package}")
    for name in names:
        place = getattr(place, name)
    return place


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_run(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their output is compared, too."""
    monkeypatch.chdir(tmp_path)
    options: Any = {"depth": 2, "embed_dim": 32, "num_heads": 2}
    x, y = vd.load_data("digits").test.tensors(8)
    names: dict[str, Any] = {"torch": torch, "vd": vd, "replace": replace, "x": x, "y": y, "step": 0}
    names["model"] = vd.load_model("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=options)
    for package, known in NAMES.items():
        module = importlib.import_module(f"vitadel.{package}")
        names |= {name: getattr(module, name) for name in known}
    documented = found(path)
    names |= {path.rpartition(".")[2]: documented}
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(documented) or "", names, path, None, 0)
    assert example.examples
    printed: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=printed.append)
    assert not printed, "".join(printed)


def test_settings_are_documented_under_args() -> None:
    """Fields of dataclasses are under `Args:`, as all classes have it at most once; every example begins with `>>>`."""
    for file in SOURCE.rglob("*.py"):
        text = file.read_text("utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                lines = (ast.get_docstring(node) or "").splitlines()
                assert max(lines.count("Args:"), lines.count("Attributes:")) < 2, (file, node.name)
                decorators = " ".join(map(ast.unparse, node.decorator_list))
                assert "Attributes:" not in lines or "dataclass" not in decorators, (file, node.name)
        for heading, after in zip(text.splitlines(), text.splitlines()[1:], strict=False):
            assert heading.strip() != "Example:" or after.strip().startswith(">>> "), (file, after)


@pytest.mark.parametrize(
    ("path", "heading"), [*((path, "Returns:") for path in RETURNING), *((path, "Raises:") for path in RAISING)]
)
def test_what_is_returned_and_raised_is_documented(path: str, heading: str) -> None:
    assert f"\n{heading}\n" in (inspect.getdoc(found(path)) or "")
