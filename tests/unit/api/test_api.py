"""`import vitadel as vd`: the API of the README; calls of other libraries work or name the line to write."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import vitadel as vd
from vitadel.core.errors import UsageError

EPS = 8 / 255
THREAT = "linf:8/255"
# called in ways that a type checker refuses, as users without one do
PGD: Any = vd.attacks.PGD
SMALL = {"depth": 1, "embed_dim": 32, "num_heads": 2}


class Brightness(nn.Module):
    """Two classes by mean brightness, dark and bright: it is known which images an attack can flip."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(40.0))

    def forward(self, x: Tensor) -> Tensor:
        distance = self.scale * (x.mean((1, 2, 3)) - 0.5)
        return torch.stack([-distance, distance], 1)


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    """Four images one level of gray each: 0.40 and 0.60 are out of reach of 8/255, 0.48 and 0.52 are not."""
    x = torch.tensor([0.40, 0.48, 0.52, 0.60])[:, None, None, None].expand(4, 3, 8, 8).contiguous()
    return x, torch.tensor([0, 0, 1, 1])


def test_the_readme_examples_run(tmp_path: Path) -> None:
    """Section by section what README shows, with a tiny model on digits in place of downloads."""
    tiny = vd.load_model("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=SMALL)
    vd.models.save(tiny, tmp_path / "tiny.safetensors")

    model = vd.load_model(tmp_path / "tiny.safetensors")
    x, y = vd.load_data("digits").test.tensors(8)
    x_adv = vd.attacks.PGD(steps=2)(model, x, y, "linf:8/255").x_adv
    result = vd.robustness(model, x, y, "linf:8/255", suite="pgd:steps=2", progress=False)
    evaluation = vd.evaluate(
        model, "digits[:8]", ["clean", "gray-level"], threat=THREAT, run=tmp_path / "evaluated", progress=False
    )
    overrides = {"plan.epochs": 1}
    trained = vd.train("digits-standard", tmp_path / "run", data="digits[:64]", overrides=overrides, progress=False)
    analysis = vd.analyze(
        model, "digits[:8]", "lesion:draws=1", run=str(tmp_path / "lesion"), progress=False, batch_size=8
    )
    (page,) = vd.report([tmp_path / "run", tmp_path / "evaluated", tmp_path / "lesion"], tmp_path / "report.html")

    assert x.shape == x_adv.shape == (8, 3, 8, 8)
    assert (x_adv - x).abs().max() <= EPS + 1e-6
    assert 0 <= result.robust_accuracy <= result.clean_accuracy <= 1
    assert f"{result.clean_accuracy:.1%}".endswith("%")
    assert isinstance(result.flags, list | tuple)
    assert len(str(result).splitlines()) < 20
    assert json.loads(json.dumps(result.to_dict()))
    assert {"gray-level"} < {summary["name"] for summary in evaluation.to_dict()["evaluations"]}  # type: ignore[attr-defined]
    assert trained(x).shape == (8, 10)
    assert (tmp_path / "lesion" / "study" / "result.json").exists()
    assert "lesion" in str(analysis.to_dict()["run"])
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")


def test_results_match_known_values(images: tuple[Tensor, Tensor]) -> None:
    x, y = images
    result = vd.robustness(Brightness(), x, y, THREAT, suite="pgd:steps=5", progress=False)
    assert (result.clean_accuracy, result.robust_accuracy) == (1.0, 0.5)
    assert [bool(one) for one in vd.attacks.FGSM()(Brightness(), x, y, THREAT).success] == [False, True, True, False]
    goal = vd.goals.Targeted(torch.tensor([1, 1, 1, 1]))
    assert vd.attacks.PGD(steps=5)(Brightness(), x, goal, THREAT, seed=1).success.tolist() == [False, True, True, True]


def test_images_come_from_tensors_loaders_or_data_sets(images: tuple[Tensor, Tensor]) -> None:
    x, y = images
    loader: DataLoader[object] = DataLoader(TensorDataset(x, y), batch_size=3)
    pairs: list[tuple[object, object]] = [(x, y), (x.numpy().astype(np.float64), y.numpy()), (loader, None)]
    for x_, y_ in pairs:
        result = vd.robustness(Brightness(), x_, y_, THREAT, suite=vd.attacks.FGSM(), progress=False)
        assert (result.clean_accuracy, result.robust_accuracy) == (1.0, 0.5)


def test_splits_are_torch_datasets() -> None:
    test = vd.load_data("digits").test
    assert len(test) == 359
    image, label = test[0]
    x, y = next(iter(DataLoader(test, batch_size=4)))
    assert torch.equal(x[0], image)
    assert y[0] == label
    assert repr(vd.load_data("digits")).count("\n") < 6


def test_a_plain_module_is_wrapped(images: tuple[Tensor, Tensor]) -> None:
    x, _ = images
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    for model in (vd.models.wrap(net, mean=0.5, std=0.25), vd.load_model(net, mean=0.5, std=0.25)):
        assert torch.allclose(model(x), net((x - 0.5) / 0.25), atol=1e-6)
        assert len(repr(model).splitlines()) < 6


@pytest.mark.parametrize(
    ("habit", "line"),
    [
        (lambda x, y: PGD(Brightness(), eps=EPS, alpha=2 / 255, steps=10), "PGD("),
        (lambda x, y: PGD(num_steps=10), "steps=10"),
        (lambda x, y: vd.robustness(Brightness(), x, y, norm="Linf", eps=EPS), 'threat="linf:8/255"'),
        (lambda x, y: vd.robustness(Brightness(), x, y, epsilon=0.5, norm="L2"), 'threat="l2:0.5"'),
        (lambda x, y: vd.robustness(Brightness(), x, y, version="standard"), 'suite="autoattack"'),
        (lambda x, y: vd.robustness(Brightness(), 255 * x, y), "pixels in [0, 1]"),
        (lambda x, y: vd.robustness(Brightness(), x, y, "linf:8"), "write 8/255, not 8"),
        (lambda x, y: vd.load_model("vit_tiny_patch16_224"), "Did you mean timm:vit_tiny_patch16_224?"),
        (lambda x, y: vd.load_model("timm:vit_tiny_patch16_224", img_size=32), "Write image_size=32."),
        (lambda x, y: vd.load_model("timm:test_vit", n_classes=10), "Write num_classes=10."),
        (lambda x, y: vd.load_model(model_name="resnet50"), 'Write load_model("timm:resnet50")'),
        (lambda x, y: vd.load_model(nn.Flatten()), "load_model(net, mean=0.0, std=1.0)"),
        (lambda x, y: vd.load_model("timm:test_vit", mean=0.5), "needs mean and std"),
        (lambda x, y: vd.load_data("cifar10", root="data"), 'Write load_data("cifar10:data").'),
        (lambda x, y: vd.load_data("digits", batch_size=32), "DataLoader(load_data(...).test, batch_size=32)"),
        (lambda x, y: vd.evaluate(Brightness(), "digits", run="run", threat="lnf:8/255"), "Did you mean 'linf'?"),
        (lambda x, y: vd.evaluate(Brightness(), "digits", "autoatack", run="run"), "Did you mean 'autoattack'?"),
        (lambda x, y: vd.train("digits-standrd", "run"), "Did you mean 'digits-standard'?"),
        (lambda x, y: vd.analyze(Brightness(), "digits", "leson", run="run"), "Did you mean 'lesion'?"),
    ],
)
def test_calls_of_other_libraries_name_the_line_to_write(
    habit: object, line: str, images: tuple[Tensor, Tensor]
) -> None:
    with pytest.raises(UsageError) as error:
        habit(*images)  # type: ignore[operator]
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_former_names_and_case_are_understood(images: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    x, y = images
    result = vd.robustness(Brightness(), x, y, threat="Linf:8/255", suite="fgsm", progress=False)
    assert result.robust_accuracy == 0.5
    net = vd.load_model("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=SMALL)
    done = vd.evaluate(net, "digits[:2]", "grey-level", run=tmp_path / "run", progress=False)
    assert [summary["name"] for summary in done.to_dict()["evaluations"]] == ["gray-level"]  # type: ignore[attr-defined]


def test_names_of_packages_are_suggested() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'PGD'. Write vd.attacks.PGD"):
        vd.PGD  # noqa: B018
    with pytest.raises(AttributeError, match=r"Write vd.goals.Targeted"):
        vd.Targeted  # noqa: B018
    assert not hasattr(vd, "nothing")
    assert set(vd.__all__) <= set(dir(vd))


def test_packages_and_functions_of_one_name_coexist() -> None:
    from vitadel.evaluate import SUITES

    assert "autoattack" in SUITES
    assert vd.evaluate.SUITES is SUITES  # type: ignore[attr-defined]
    assert callable(vd.evaluate)
    assert callable(vd.train)


def _seconds(code: str) -> float:
    """The processor time of a fresh interpreter for some code, without its start; the best of three."""
    timed = f"import time; t = time.process_time(); {code}; print(time.process_time() - t)"
    runs = [subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True) for _ in range(3)]
    return min(float(run.stdout.split()[-1]) for run in runs)


def test_importing_is_fast() -> None:
    assert _seconds("import vitadel") < 0.05
    code = "import vitadel as vd, sys; vd.__version__; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_is_fast() -> None:
    """Half a second on a free machine; the processor's time is measured, because other processes may be running."""
    lines = ("import sys", "sys.argv = ['vitadel', '--help']", "from vitadel.cli import main", "try: main()")
    code = "\n".join([*lines, "except SystemExit: pass"])
    assert _seconds(f"exec({code!r})") < 0.5


@pytest.mark.parametrize("catalog", ["recipes", "suites", "studies", "attacks"])
def test_catalogs_are_fast(catalog: str) -> None:
    """Less than three seconds on a free machine; that of torch's import is not ours."""
    assert _seconds(f"from vitadel.api.catalog import CATALOGS; CATALOGS[{catalog!r}].find(None)") < 3


@pytest.mark.parametrize("catalog", ["attacks", "scalings", "suites", "studies"])
def test_every_setting_is_described(catalog: str) -> None:
    from vitadel.api.catalog import CATALOGS

    pages = [CATALOGS[catalog].page(item.name) for item in CATALOGS[catalog].items()]
    assert not [f"{page.title}: {one.name}" for page in pages for one in page.settings if not one.about]


def test_robustness_is_at_one_radius(images: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(UsageError, match="robustness attacks at one radius, and the suite 'curve' has several"):
        vd.robustness(Brightness(), *images, THREAT, suite="curve")
