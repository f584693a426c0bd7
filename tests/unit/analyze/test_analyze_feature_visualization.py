"""Feature visualization: models whose optimum is known, both kinds of noise, coordinates, every family."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from study_models import hooks, studied_in  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel.analyze import FeatureVisualization, study
from vitadel.analyze.feature_visualization import Coordinate, Start
from vitadel.core.errors import UsageError
from vitadel.models import Model, Option, load, wrap
from vitadel.models.wide_resnet import WideResNet
from vitadel.runs import ResultFolder

CLASSES, SIDE = 6, 8
TINY: dict[str, tuple[str, int | None, dict[str, Option]]] = {
    "vit": ("timm:vit_tiny_patch16_224", 8, {"depth": 2, "embed_dim": 48}),
    "deit": ("timm:deit_tiny_distilled_patch16_224", 8, {"depth": 2, "embed_dim": 48}),
    "cait": ("timm:cait_xxs24_224", 8, {"depth": 2, "embed_dim": 48}),
    "xcit": ("timm:xcit_nano_12_p16_224", 8, {"depth": 2, "embed_dim": 48, "eta": 1.0}),
    "swin": ("timm:swin_tiny_patch4_window7_224", 4, {"embed_dim": 24, "window_size": 4}),
    "resnet": ("timm:test_resnet", None, {}),
}


class Rows(nn.Module):
    """Class k is the brightness of row k, and the classifier's input is the brightness of all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(SIDE, CLASSES, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(SIDE)[:CLASSES] * 10)
        self.pretrained_cfg = {"classifier": "head"}

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.mean((1, 3)))


@pytest.fixture
def model() -> Model:
    return wrap(Rows(), mean=(0.0,) * 3, std=(1.0,) * 3)


@pytest.fixture
def x() -> Tensor:
    return torch.rand(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def drawn(result: dict[str, Any], row: int, column: int) -> np.ndarray:
    pixels = result["exhibits"][0]["cells"][row][column]["pixels"]
    return np.frombuffer(base64.b64decode(pixels["base64"]), dtype=pixels["dtype"]).reshape(pixels["shape"])


def studied(model: nn.Module, x: Tensor, settings: FeatureVisualization, **more: Any) -> dict[str, Any]:
    return study(model, x, torch.arange(len(x)) % CLASSES, settings, **more)


@pytest.mark.parametrize("start", list(Start))
def test_the_target_is_maximally_bright_and_all_else_dark(model: Model, x: Tensor, start: Start) -> None:
    result = studied(model, x, FeatureVisualization(classes=(4, 1), starts=(start,), images=1))
    for column, target in enumerate((4, 1)):
        wanted = np.zeros((SIDE, SIDE, 3), np.uint8)
        wanted[target] = 255
        # rows beyond the last class have no gradient and are unchanged
        np.testing.assert_array_equal(drawn(result, 0, column)[:CLASSES], wanted[:CLASSES])
    name = {Start.CODE: "noise, code", Start.TEXT: "noise, text", Start.IMAGES: "image 0"}[start]
    row = result["rows"][name]
    assert row["after"] == pytest.approx([float(np.exp(10) / (np.exp(10) + 5))] * 2, rel=1e-4)
    assert row["success"] == [True, True]
    assert max(row["before"]) < 0.9


def test_a_coordinate_is_maximized_alone(model: Model, x: Tensor) -> None:
    result = studied(model, x, FeatureVisualization(coordinates=(7, 0), starts=(Start.TEXT, Start.IMAGES), images=2))
    assert result["exhibits"][0]["columns"] == ["coordinate 7", "coordinate 0"]
    assert list(result["rows"]) == ["noise, text", "image 0", "image 1"]
    for row, name in enumerate(result["rows"]):
        assert result["rows"][name]["after"] == pytest.approx([1, 1])
        assert bool((drawn(result, row, 0)[7] == 255).all())
    image = (x[1] * 255).round().byte().permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(drawn(result, 2, 0)[:7], image[:7])
    assert result["rows"]["image 1"]["before"] == pytest.approx([float(x[1, :, 7].mean()), float(x[1, :, 0].mean())])


def test_both_starts_match_the_paper(model: Model) -> None:
    blank = torch.zeros(1, 3, SIDE, SIDE)
    result = studied(model, blank, FeatureVisualization(classes=(0,), steps=1, step_size=1e-9))
    code, text = drawn(result, 0, 0).flatten(), drawn(result, 1, 0).flatten()
    # U(0, 1) + U(-15, 15) lies within [0, 1] once in thirty times
    assert float(np.isin(code, (0, 255)).mean()) > 0.9
    assert float(np.isin(text, (0, 255)).mean()) < 0.05
    assert 100 < float(text.mean()) < 155
    assert list(result["rows"]) == ["noise, code", "noise, text"]
    caption = studied(model, blank, FeatureVisualization(classes=(0,), steps=100))["exhibits"][0]["caption"]
    assert "100 steps of 0.225 (linf, eps 15)" in caption


def test_the_radius_is_respected(model: Model, x: Tensor) -> None:
    for norm, eps in (("linf", 0.1), ("l2", 0.5)):
        settings = FeatureVisualization(classes=(2,), starts=(Start.IMAGES,), images=1, norm=norm, eps=eps, steps=20)
        moved = torch.from_numpy(drawn(studied(model, x, settings), 0, 0).copy()).permute(2, 0, 1) / 255 - x[0]
        size = float(moved.abs().max() if norm == "linf" else moved.norm())
        assert size == pytest.approx(eps, abs=0.03)
    noisy = FeatureVisualization(classes=(2,), starts=(Start.CODE, Start.TEXT), eps=0.2, steps=1, step_size=1e-9)
    result = studied(model, x, noisy)
    code, text = result["rows"]["noise, code"], result["rows"]["noise, text"]
    assert code["fine"] != text["fine"]  # within the radius the code begins somewhere else than the text
    # and around noise of its own: shared, no pixel would differ by more than the radius
    assert int(np.abs(drawn(result, 0, 0).astype(int) - drawn(result, 1, 0).astype(int)).max()) > 0.5 * 255


def test_targets_are_drawn_from_the_seed(model: Model, x: Tensor) -> None:
    first = studied(model, x, FeatureVisualization(count=3, steps=1))["targets"]
    assert first == studied(model, x[:1], FeatureVisualization(count=3, steps=1), batch_size=1)["targets"]
    assert len(set(first)) == 3
    assert set(first) <= set(range(CLASSES))
    others = [studied(model, x, FeatureVisualization(count=3, steps=1), seed=seed)["targets"] for seed in range(1, 5)]
    assert any(other != first for other in others)
    assert sorted(studied(model, x, FeatureVisualization(count=50, steps=1))["targets"]) == list(range(CLASSES))


def test_results_do_not_depend_on_batches_or_interruptions(model: Model, x: Tensor, tmp_path: Path) -> None:
    settings = FeatureVisualization(count=4, steps=5)
    straight = studied(model, x, settings)
    assert {**studied(model, x, settings, batch_size=1), "seconds": 0} == {**straight, "seconds": 0}
    y = torch.arange(3)
    with pytest.raises(KeyboardInterrupt):
        studied_in(tmp_path, model, x, y, settings, stop_after=0.25)
    assert ResultFolder(tmp_path).read("pictures")["index"] == [0]
    resumed = studied_in(tmp_path, model, x, y, settings)
    assert {**resumed, "seconds": 0} == {**straight, "seconds": 0}


@pytest.mark.parametrize("family", [*TINY, "wrn"])
def test_every_family_visualizes_classes_and_coordinates(family: str) -> None:
    images = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    if family == "wrn":
        torch.manual_seed(1)
        model: Model = wrap(WideResNet(10, 1, 5), mean=(0.0,) * 3, std=(1.0,) * 3)
    else:
        name, patch, options = TINY[family]
        model = load(name, num_classes=5, image_size=32, patch_size=patch, options=options)
    before, hooks_before = {key: value.clone() for key, value in model.train().state_dict().items()}, hooks(model)
    for settings in (
        FeatureVisualization(classes=(3, 1), steps=3, step_size=0.01, starts=(Start.TEXT,)),
        FeatureVisualization(coordinates=(3, 1), steps=3, step_size=0.01, starts=(Start.TEXT,)),
    ):
        drawn_row = studied(model, images, settings)["rows"]["noise, text"]
        assert all(after > before for before, after in zip(drawn_row["before"], drawn_row["after"], strict=True))
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert hooks(model) == hooks_before


def test_a_coordinate_goal_never_succeeds() -> None:
    goal = Coordinate(torch.tensor([2, 0]))
    z = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert goal.objective(z).tolist() == [3, 4]
    assert goal.success(z).tolist() == [False, False]
    assert goal.at(torch.tensor([1])).classes.tolist() == [0]


def test_invalid_settings_are_refused(model: Model, x: Tensor) -> None:
    with pytest.raises(UsageError, match="there is no class 6: the model has 6 classes, counted from 0"):
        studied(model, x, FeatureVisualization(classes=(0, 6)))
    with pytest.raises(UsageError, match="there is no coordinate 8: the model has 8 coordinates before its classifier"):
        studied(model, x, FeatureVisualization(coordinates=(8,)))
    resnet = load("timm:test_resnet", num_classes=5)
    with pytest.raises(UsageError, match="there is no class 5: the model has 5 classes"):
        FeatureVisualization(classes=(5,)).check(resnet)
    with pytest.raises(UsageError, match=r"Flatten does not say which that is\. Load it with vitadel\.models\.load"):
        studied(nn.Flatten(), x, FeatureVisualization(coordinates=(0,)))
    with pytest.raises(UsageError, match="toward classes or toward coordinates, got both"):
        FeatureVisualization(classes=(1,), coordinates=(1,))
    with pytest.raises(UsageError, match=r"FeatureVisualization\.starts needs each start once"):
        FeatureVisualization(starts=(Start.CODE, Start.CODE))
    with pytest.raises(UsageError, match="must be positive"):
        FeatureVisualization(eps=0.0)
    with pytest.raises(UsageError, match=r"FeatureVisualization\.steps must be at least 1"):
        FeatureVisualization(steps=0)
