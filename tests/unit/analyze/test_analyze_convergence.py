"""Loss against steps and around images: linear models have known curves and planes."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from study_models import studied_in  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel.analyze import Convergence, study
from vitadel.analyze.convergence import loss_slice, over_restarts
from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.evaluate.store import TableRows
from vitadel.losses import cross_entropy
from vitadel.models import Option, load, wrap
from vitadel.models.wide_resnet import WideResNet
from vitadel.threats import L2, Linf

EPS, PIXELS = 0.05, 3 * 4 * 4
TINY: dict[str, tuple[str, int | None, dict[str, Option]]] = {
    "vit": ("timm:vit_tiny_patch16_224", 8, {"depth": 2, "embed_dim": 48}),
    "cait": ("timm:cait_xxs24_224", 8, {"depth": 2, "embed_dim": 48}),
    "xcit": ("timm:xcit_nano_12_p16_224", 8, {"depth": 2, "embed_dim": 48}),
    "swin": ("timm:swin_tiny_patch4_window7_224", 4, {"embed_dim": 24, "window_size": 4}),
    "resnet": ("timm:test_resnet", None, {}),
}


class Scale(nn.Module):
    """Two classes: how bright the image is, against a threshold."""

    def __init__(self, steep: float = 10.0) -> None:
        super().__init__()
        self.steep = nn.Parameter(torch.tensor(steep))

    def forward(self, x: Tensor) -> Tensor:
        difference_B = self.steep * (x.mean((1, 2, 3)) - 0.5)
        return torch.stack([-difference_B / 2, difference_B / 2], 1)


@pytest.fixture
def x() -> Tensor:
    """Brightness around 0.5 by known distances, nothing near the ends of the box."""
    shift = torch.tensor([0.01, 0.02, 0.04, 0.06, 0.08, -0.01, -0.03, -0.07])
    noise = 0.1 * (torch.rand(8, 3, 4, 4, generator=torch.Generator().manual_seed(0)) - 0.5)
    return 0.5 + shift.view(-1, 1, 1, 1) + noise - noise.mean((1, 2, 3), keepdim=True)


@pytest.fixture
def y() -> Tensor:
    return torch.tensor([1, 1, 1, 1, 1, 0, 0, 0])


def curve(result: dict[str, Any]) -> dict[int, dict[str, float]]:
    return {one["steps"]: one for one in result["curve"]}


def test_the_curve_of_a_linear_model(x: Tensor, y: Tensor) -> None:
    settings = Convergence(steps=(0, 1, 20), restarts=3, slices=0)
    result: dict[str, Any] = study(Scale(), x, y, settings, threat=Linf(EPS))
    actual = curve(result)
    logit_difference = (x.mean((1, 2, 3)) - 0.5).abs()
    clean = float(nn.functional.softplus(-10 * logit_difference).mean())
    assert actual[0]["loss"] == pytest.approx(clean, rel=1e-5)
    assert actual[0]["accuracy"] == 1
    # one step of 2.5 eps crosses the ball from anywhere, and so do twenty: all images within eps are broken
    worst = float(nn.functional.softplus(-10 * (logit_difference - EPS)).mean())
    for steps in (1, 20):
        assert actual[steps]["loss"] == pytest.approx(worst, rel=1e-4)
        assert actual[steps]["loss_high"] == pytest.approx(worst, rel=1e-4)
        assert actual[steps]["accuracy"] == actual[steps]["worst"] == 3 / 8
    assert "From 1 to 20 steps the loss changes by" in result["summary"]
    assert [one["kind"] for one in result["exhibits"]] == ["lines", "lines", "table"]
    assert result["exhibits"][0]["references"] == [["clean", pytest.approx(clean, rel=1e-5)]]
    assert result["exhibits"][0]["lines"][0]["x"] == [1, 20]


def test_steps_too_short_to_cross_leave_a_band_between_restarts(x: Tensor, y: Tensor) -> None:
    settings = Convergence(steps=(1, 2), restarts=4, step_size=1e-3, slices=0)
    result = curve(study(Scale(200.0), x, y, settings, threat=Linf(EPS)))
    assert result[1]["loss_low"] < result[1]["loss"] < result[1]["loss_high"]
    assert result[2]["loss"] > result[1]["loss"]
    assert result[1]["worst"] <= result[1]["accuracy_low"] <= result[1]["accuracy"]


def test_restarts_are_summarized() -> None:
    runs = [
        TableRows({"index": [0, 1, 2, 3], "loss": loss, "correct": correct})
        for loss, correct in (
            ([1.0, 3.0, 2.0, 4.0], [True, True, False, True]),
            ([2.0, 6.0, 2.0, 4.0], [True, False, False, False]),
            ([3.0, 3.0, 2.0, 3.0], [True, False, True, False]),
        )
    ]
    result = over_restarts(runs)
    assert (result["loss_low"], result["loss_high"]) == (2.5, 3.5)
    assert result["loss"] == pytest.approx((2.5 + 3.5 + 2.75) / 3)
    assert (result["accuracy_low"], result["accuracy_high"]) == (0.25, 0.75)
    assert result["accuracy"] == pytest.approx((0.75 + 0.25 + 0.5) / 3)
    assert result["worst"] == 0.25  # only the first image is right under all


def test_only_correct_images_are_attacked(x: Tensor, y: Tensor) -> None:
    wrong = y.clone()
    wrong[[0, 3]] = 0
    result = study(Scale(), x, wrong, Convergence(steps=(0, 1), restarts=1, images=4, slices=2, points=3))
    assert (result["n"], result["tried"]) == (4, 8)
    assert curve(result)[0]["accuracy"] == 1
    assert len(result["slices"]) == 2  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="classifies none of 8 images correctly, so there is nothing to attack"):
        study(Scale(), x, 1 - y, Convergence(steps=(1,)))


@pytest.mark.parametrize("threat", [Linf(EPS), L2(0.5)], ids=str)
def test_a_slice_is_the_loss_on_its_plane_and_exact_at_the_center(threat: Linf | L2) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(16, 3))
    x = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(2))  # some pixels near the ends of the box
    label = torch.tensor([1])
    result = loss_slice(model, x, label, threat, 5, seed=3, index=7, batch_size=4)
    leaf = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(cross_entropy(model(leaf), label).sum(), leaf)
    noise = RandomStreams.of(fold_seed(3, *b"slice"), torch.tensor([7])).normal(3, 4, 4)
    if isinstance(threat, Linf):
        along, random_direction = EPS * grad.sign(), EPS * noise.sign()
    else:
        along, random_direction = 0.5 * grad / grad.norm(), 0.5 * noise / noise.norm()
    for row, a in enumerate((-1, -0.5, 0, 0.5, 1)):
        for column, b in enumerate((-1, -0.5, 0, 0.5, 1)):
            with torch.no_grad():
                known = cross_entropy(model((x + a * along + b * random_direction).clamp(0, 1)), label)
            assert float(result[row, column]) == pytest.approx(float(known), rel=1e-4)
    with torch.no_grad():
        assert float(result[2, 2]) == pytest.approx(float(cross_entropy(model(x), label)), rel=1e-6)
    assert float(result[3, 2]) > float(result[2, 2]) > float(result[1, 2])


def test_slices_do_not_depend_on_their_position(x: Tensor, y: Tensor) -> None:
    settings = Convergence(steps=(1,), restarts=1, slices=3, points=5)
    result: dict[str, Any] = study(Scale(), x, y, settings, threat=Linf(EPS))
    one: dict[str, Any] = study(Scale(), x, y, settings, threat=Linf(EPS), batch_size=1)
    for mine, other in zip(result["slices"], one["slices"], strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(other))
    heat = result["exhibits"][-1]
    assert heat["rows"] == ["-1", "-0.5", "+0", "+0.5", "+1"]
    assert [one["name"] for one in heat["matrices"]] == ["label 1"] * 3
    fine: dict[str, Any] = study(Scale(), x, y, replace(settings, slices=1, points=9), threat=Linf(EPS))
    quarters = ["-1", "-0.75", "-0.5", "-0.25", "+0", "+0.25", "+0.5", "+0.75", "+1"]
    assert fine["exhibits"][-1]["columns"] == quarters
    middle = float(nn.functional.softplus(-10 * (x[0].mean() - 0.5)))
    assert result["slices"][0][2][2] == pytest.approx(middle, rel=1e-5)
    # along the gradient the margin decreases by 10 eps at most
    assert result["slices"][0][4][2] == pytest.approx(math.log1p(math.exp(-10 * (0.01 - EPS))), rel=1e-4)


def test_an_interrupted_study_resumes(x: Tensor, y: Tensor, tmp_path: Path) -> None:
    settings = Convergence(steps=(0, 1, 3), restarts=2, slices=1, points=3)

    with pytest.raises(KeyboardInterrupt):
        studied_in(tmp_path, Scale(), x, y, settings, stop_after=0.5, stop_in="", batch_size=3, threat=Linf(EPS))
    tables = {path.name for path in (tmp_path / "tables").iterdir()}
    searches = ("steps-00000-restart-000", "steps-00001-restart-000", "steps-00001-restart-001")
    assert {"clean", *searches} <= tables
    assert "slices" not in tables
    resumed = studied_in(tmp_path, Scale(), x, y, settings, threat=Linf(EPS))
    straight = study(Scale(), x, y, settings, threat=Linf(EPS))
    assert {**resumed, "seconds": 0} == {**straight, "seconds": 0}


@pytest.mark.parametrize("family", [*TINY, "wrn"])
def test_every_family_can_be_studied(family: str) -> None:
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    if family == "wrn":
        torch.manual_seed(1)
        model = wrap(WideResNet(10, 1, 5), mean=(0.0,) * 3, std=(1.0,) * 3)
    else:
        name, patch, options = TINY[family]
        model = load(name, num_classes=5, image_size=32, patch_size=patch, options=options)
    with torch.no_grad():
        labels = model.eval()(images).argmax(1)  # so that all are right
    before = {key: value.clone() for key, value in model.train().state_dict().items()}
    result = study(model, images, labels, Convergence(steps=(0, 2), restarts=1, slices=1, points=3))
    assert result["n"] == 3
    assert curve(result)[2]["loss"] >= curve(result)[0]["loss"]
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_invalid_settings_are_refused(x: Tensor) -> None:
    for settings, message in (
        ({"steps": ()}, r"Convergence\.steps needs numbers of steps from 0"),
        ({"steps": (0,)}, "not 0 alone"),
        ({"steps": (1, 1)}, "each once"),
        ({"restarts": 0}, r"Convergence\.restarts must be at least 1"),
        ({"points": 4}, r"Convergence\.points must be odd"),
        ({"slices": -1}, r"Convergence\.slices must not be negative"),
        ({"step_size": 0.0}, r"Convergence\.step_size must be positive"),
    ):
        with pytest.raises(UsageError, match=message):
            Convergence(**settings)
    with pytest.raises(UsageError, match=r"of shape \[8, 2\] for 8 images, the data has labels from 5 to 5"):
        study(Scale(), x, torch.full((8,), 5), Convergence())
