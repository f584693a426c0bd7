"""Every argument of the functions that users import: a value of a wrong type is refused with what to write."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vitadel as vd
from vitadel.core.errors import UsageError
from vitadel.models import Normalization

# called in ways that a type checker refuses, as users without one do
api: Any = vd
NET = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))
# a call of each function that would run
CALLS: dict[str, dict[str, object]] = {
    "analyze": {"model": NET, "data": "digits[:4]", "study": "lesion", "run": "run"},
    "check_data": {"spec": "digits[:4]"},
    "evaluate": {"model": NET, "data": "digits[:4]", "suites": "clean", "run": "run"},
    "load_data": {"spec": "digits[:4]"},
    "load_model": {"model": "timm:test_vit", "num_classes": 10, "image_size": 8, "patch_size": 2},
    "report": {"runs": "run"},
    "robustness": {"model": NET, "x": torch.rand(2, 3, 8, 8), "y": torch.tensor([0, 1])},
    "show_data": {"spec": "digits[:4]", "out": "picture.png"},
    "sweep": {"recipe": "digits-standard", "run": "run", "axes": ["seed=0,1"]},
    "train": {"recipe": "digits-standard", "run": "run"},
}
# of a model given as text to another function
MODEL_OPTIONS = ("num_classes", "image_size", "patch_size", "mean", "std", "device")
NUMBERS = ("batch_size", "copies", "images", "mean", "seed", "std", *MODEL_OPTIONS[:3])
RADIUS = 'a threat is a text such as "linf:8/255", or one of Linf, L2, L1, got '


def arguments() -> Iterator[Any]:
    """Every parameter of every function, with values of a wrong type."""
    for function in CALLS:
        parameters = inspect.signature(getattr(vd, function)).parameters.values()
        own = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
        for name in [*own, *(MODEL_OPTIONS if function in ("analyze", "evaluate") else ())]:
            for wrong in (object(), {3: 4}, *(() if name in NUMBERS else (3,))):
                yield pytest.param(function, name, wrong, id=f"{function}-{name}-{type(wrong).__name__}")


def test_every_function_is_called() -> None:
    functions = {name for name in vd.__all__ if callable(getattr(vd, name))}
    assert functions == set(CALLS)


@pytest.mark.parametrize(("function", "argument", "wrong"), arguments())
def test_a_value_of_a_wrong_type_is_refused(
    function: str, argument: str, wrong: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        getattr(api, function)(**{**CALLS[function], argument: wrong})
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 900
    assert not list(tmp_path.iterdir())  # refused before anything is written


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: api.sweep("digits-standard", "run", models={3: "MODEL"}),
            "sweep takes models as a dict or a list, got {3: 'MODEL'}. Write one of these; models: Existing models to "
            'evaluate in place of trained ones: `{"label": "MODEL"}` or `["LABEL=MODEL", "MODEL"]`',
        ),
        (
            lambda: api.sweep("digits-standard", "run", axes={"seed": "0,1"}),
            "sweep takes axes as a dict or a list, got {'seed': '0,1'}. Write one of these; axes: The settings to "
            'vary, with their values: `{"plan.epochs": [10, 20]}` or `["plan.epochs=10,20"]`.',
        ),
        (
            lambda: api.evaluate(NET, 3, "clean", run="run"),
            "evaluate takes data as text, a path or a DataSet, got 3. Write one of these; data: Anything that "
            "`load_data` takes, at the model's size, or a data set.",
        ),
        (
            lambda: api.train(3, "run"),
            "train takes recipe as text or a Recipe, got 3. Write one of these; recipe: A name",
        ),
        (
            lambda: api.load_data("digits", image_size=True),
            "load_data takes image_size as a whole number or None, got T",
        ),
        (lambda: api.robustness(NET, torch.rand(2, 3, 8, 8), 3), RADIUS),
        (lambda: api.robustness(NET, torch.rand(2, 3, 8, 8), [0, 1], 8 / 255), RADIUS),
        (lambda: api.evaluate(NET, "digits", "pgd", run="run", threat=8 / 255), RADIUS),
        (lambda: api.sweep("digits-standard", "run", axes={"seed": [0]}, attack="pgd", threat=8 / 255), RADIUS),
        (
            lambda: api.robustness(NET, {}, [1]),
            "robustness takes images as a tensor [n, channels, height, width], or what torch.as_tensor can convert, "
            "got {}. Convert it first.",
        ),
        (
            lambda: api.evaluate(NET, "digits", "clean", run="run", progress=3),
            "evaluate takes progress as True or False, a function or None, got 3. Write one of these; progress: None",
        ),
        (
            lambda: api.evaluate("timm:test_vit", "digits", "clean", run="run", mean="half"),
            "load_model takes mean as a number, a list or None, got 'half'. Write one of these; mean: Mean of pixels",
        ),
    ],
)
def test_the_error_names_the_types_and_says_what_to_write(
    call: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        call()
    assert str(error.value).startswith(message)


def test_numbers_arrays_and_paths_of_other_libraries_fit(tmp_path: Path) -> None:
    half = vd.load_model(NET, mean=0.5, std=0.5).normalization
    assert half == Normalization((0.5,) * 3, (0.5,) * 3)
    for one in (np.float32(0.5), [0.5] * 3, np.full(3, 0.5, dtype=np.float32), torch.full((3,), 0.5)):
        assert api.load_model(NET, mean=one, std=one).normalization == half
    assert api.load_data("digits", image_size=np.int64(16)).test.pixels.image_size == (16, 16)
    folders = [vd.evaluate(NET, "digits[:2]", "clean", run=tmp_path / name, progress=False).run for name in "ab"]
    for runs in (folders, tuple(folders), iter(folders), dict.fromkeys(folders).keys()):
        assert api.report(runs, tmp_path / "page.html") == [tmp_path / "page.html"]
