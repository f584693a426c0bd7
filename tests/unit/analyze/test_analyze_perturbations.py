"""Perturbations as images and numbers: linear models have known ones, and results do not depend on the batch."""

import base64
import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from study_models import studied_in  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel.analyze import Perturbations, study
from vitadel.analyze.attacked_images import Sign, Stretch, as_bytes, finite_mean_interval, gray, pgd
from vitadel.analyze.patch_grid import alignment
from vitadel.analyze.perturbations import mean_alignment
from vitadel.analyze.spectrum import fine_share
from vitadel.core.errors import UsageError
from vitadel.evaluate.store import TableRows
from vitadel.goals import Untargeted
from vitadel.models import Model, Option, load, wrap
from vitadel.models.wide_resnet import WideResNet
from vitadel.report import write_figures
from vitadel.runs import ResultFolder
from vitadel.runs.schema import read_study
from vitadel.threats import L2, Linf

EPS = 8 / 255
TINY: dict[str, tuple[str, int | None, dict[str, Option]]] = {
    "vit": ("timm:vit_tiny_patch16_224", 8, {"depth": 2, "embed_dim": 48}),
    "deit": ("timm:deit_tiny_patch16_224", 8, {"depth": 2, "embed_dim": 48}),
    "cait": ("timm:cait_xxs24_224", 8, {"depth": 2, "embed_dim": 48}),
    "xcit": ("timm:xcit_nano_12_p16_224", 8, {"depth": 2, "embed_dim": 48}),
    "swin": ("timm:swin_tiny_patch4_window7_224", 4, {"embed_dim": 24, "window_size": 4}),
    "resnet": ("timm:test_resnet", None, {}),
}


class Planted(nn.Module):
    """Two classes, whose difference is the sum of the pixels weighted with a pattern."""

    def __init__(self, pattern: Tensor) -> None:
        super().__init__()
        self.pattern = nn.Parameter(pattern)

    def forward(self, x: Tensor) -> Tensor:
        difference_B = (x * self.pattern).sum((1, 2, 3))
        return torch.stack([torch.zeros_like(difference_B), difference_B], 1)


def pattern_of_blocks(patch: int = 4, side: int = 16) -> Tensor:
    """+1 or -1, the same within every patch."""
    rng = torch.Generator().manual_seed(5)
    signs = torch.randint(0, 2, (3, side // patch, side // patch), generator=rng) * 2.0 - 1
    return signs.repeat_interleave(patch, 1).repeat_interleave(patch, 2)


@pytest.fixture
def x() -> Tensor:
    return 0.3 + 0.4 * torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(3))


def picture(result: dict[str, Any], row: int, column: str) -> np.ndarray:
    shown = result["exhibits"][0]
    pixels = shown["cells"][row][shown["columns"].index(column)]["pixels"]
    return np.frombuffer(base64.b64decode(pixels["base64"]), dtype=pixels["dtype"]).reshape(pixels["shape"])


def test_the_perturbation_of_a_linear_model_is_its_pattern(x: Tensor) -> None:
    pattern = pattern_of_blocks()
    model = Planted(pattern)
    # class 0 is predicted for a negative weighted sum, so the attack on label 0 adds eps along the pattern; its steps
    # must cross the whole ball, as a random start may begin at its other end
    chosen = Perturbations(patch=4, images=3, steps=10, step_size=EPS / 4)
    result = study(model, x, torch.zeros(5, dtype=torch.int64), chosen, threat=Linf(EPS))
    assert result["alignment"]["change"]["mean"] == pytest.approx(1, abs=1e-4)  # type: ignore[index]
    assert result["alignment"]["change"]["first"] == 5  # type: ignore[index]
    assert result["fine_share"]["mean"] == pytest.approx(float(fine_share(pattern[None])), abs=1e-4)  # type: ignore[index]
    wanted = np.where(pattern.numpy().transpose(1, 2, 0) > 0, 255, 0)
    for row in range(3):
        np.testing.assert_array_equal(picture(result, row, "perturbation"), wanted)
        assert int(picture(result, row, "size").min()) == 255
    assert len(result["exhibits"][0]["cells"]) == 3  # type: ignore[index]
    assert "aligned at least as well: 0.53 by chance." in result["exhibits"][-1]["caption"]  # type: ignore[index]
    assert "Its alignment with patches of 4 is +1.000" in str(result["summary"])
    other = replace(chosen, sign=Sign.REMOVED)
    turned = study(model, x, torch.zeros(5, dtype=torch.int64), other, threat=Linf(EPS))
    np.testing.assert_array_equal(picture(turned, 0, "perturbation"), 255 - wanted)
    assert "clean minus adversarial, as the authors' code has it" in turned["exhibits"][0]["caption"]  # type: ignore[index]
    assert turned["alignment"] == result["alignment"]


def test_stretched_images_and_signs_are_shown() -> None:
    delta = torch.tensor([-8.0, -1.0, -0.5, 0.0, 0.5, 1.0, 8.0]).view(1, 1, 1, 7) / 255
    by_eps = as_bytes(delta, Linf(EPS), Stretch.EPS, Sign.ADDED).flatten().tolist()
    assert by_eps == [0, 112, 120, 128, 135, 143, 255]  # 255 (d + 8) / 16, rounded to even
    assert as_bytes(delta, Linf(EPS), Stretch.LEVEL, Sign.ADDED).flatten().tolist() == [0, 0, 64, 128, 191, 255, 255]
    assert as_bytes(delta, Linf(EPS), Stretch.EPS, Sign.REMOVED).flatten().tolist() == by_eps[::-1]
    one = as_bytes(delta / 8, Linf(1 / 255), Stretch.EPS, Sign.ADDED)
    assert torch.equal(one, as_bytes(delta / 8, Linf(1 / 255), Stretch.LEVEL, Sign.ADDED))
    # a Euclidean ball bounds no pixel: every image has its own scale
    two = torch.cat([delta, delta / 3])
    assert torch.equal(*as_bytes(two, L2(1.0), Stretch.EPS, Sign.ADDED).unbind())
    assert as_bytes(torch.zeros(1, 3, 2, 2), L2(1.0), Stretch.EPS, Sign.ADDED).unique().tolist() == [128]
    white = torch.tensor([[[[1.0]], [[0.0]], [[0.0]]]])
    assert float(gray(white)) == pytest.approx(0.299)
    assert float(gray(torch.full((1, 1, 1, 1), 0.5))) == 0.5


def test_numbers_match_the_attack(x: Tensor) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(4 * 256, 3))
    y = torch.tensor([0, 1, 2, 0, 1])
    result = study(net, x, y, Perturbations(patch=4, steps=5), threat=Linf(EPS), seed=7)
    attacked = pgd(5, None, Linf(EPS))(net, x, Untargeted(y), Linf(EPS), seed=7)
    delta = attacked.x_adv - x
    assert float(delta.abs().max()) == pytest.approx(EPS, rel=1e-4)
    assert result["fine_share"]["mean"] == pytest.approx(float(fine_share(delta).mean()))  # type: ignore[index]
    for kind, pattern in (("change", delta), ("size", delta.abs())):
        known = alignment(pattern, 4)
        first = int((known.rank_B == 1 / 16).sum())
        wanted = {
            **finite_mean_interval(known.true_B.tolist()),
            "mean_rank": float(known.rank_B.double().mean()),
            "first": first,
        }
        assert result["alignment"][kind] == pytest.approx(wanted, abs=1e-9)  # type: ignore[index]
    assert result["fooled"] == int(attacked.success.sum())
    np.testing.assert_array_equal(
        picture(result, 2, "attacked"), (attacked.x_adv[2] * 255).round().byte().permute(1, 2, 0).numpy()
    )


@pytest.mark.parametrize("random_start", [True, False])
def test_the_attack_may_start_at_the_image(x: Tensor, random_start: bool) -> None:
    """One step of eps / 2 from the image itself changes every pixel by eps / 2; from a random start, by any amount."""
    net, y = Planted(pattern_of_blocks()), torch.ones(len(x), dtype=torch.int64)
    settings = Perturbations(steps=1, step_size=EPS / 2, random_start=random_start)
    shown = picture(study(net, x, y, settings, threat=Linf(EPS)), 0, "perturbation")
    assert ({int(one) for one in np.unique(shown)} <= {64, 191}) == (not random_start)  # 255 (d + eps) / (2 eps)


def test_the_mean_has_the_normal_interval() -> None:
    result = finite_mean_interval([1.0, 2.0, 3.0, float("nan")])
    assert result["mean"] == 2
    assert result["high"] - result["mean"] == pytest.approx(1.959964 / 3**0.5)
    assert finite_mean_interval([4.0])["mean"] == 4
    assert np.isnan(finite_mean_interval([4.0])["low"])
    assert np.isnan(finite_mean_interval([])["mean"])


@pytest.mark.parametrize("family", [*TINY, "wrn"])
def test_every_family_can_be_studied(family: str) -> None:
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    if family == "wrn":
        torch.manual_seed(1)
        model: Model = wrap(WideResNet(10, 1, 5), mean=(0.0,) * 3, std=(1.0,) * 3)
    else:
        name, patch, options = TINY[family]
        model = load(name, num_classes=5, image_size=32, patch_size=patch, options=options)
    before = copy.deepcopy(model.train().state_dict())
    result = study(model, images, torch.arange(3), Perturbations(steps=1, images=1))
    assert result["patch"] == (None if family in ("wrn", "resnet") else 4 if family == "swin" else 8)
    kinds = [one["kind"] for one in result["exhibits"]]  # type: ignore[attr-defined]
    assert kinds == ["pictures", "lines", *(["lines"] if result["patch"] else []), "table"]
    assert ("alignment" in str(result["summary"])) == (result["patch"] is not None)
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    given = study(model, images, torch.arange(3), Perturbations(steps=1, patch=16))
    assert given["patch"] == 16


def test_results_do_not_depend_on_batches_or_interruptions(tmp_path: Path) -> None:
    x = torch.rand(20, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    y = torch.arange(20) % 2
    model = Planted(torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(1))).double()
    settings = Perturbations(steps=3, patch=4)

    straight = study(model, x, y, settings)
    assert {**study(model, x, y, settings, batch_size=3), "seconds": 0} == {**straight, "seconds": 0}
    with pytest.raises(KeyboardInterrupt):
        studied_in(tmp_path, model, x, y, settings, stop_after=0.7, batch_size=3)
    kept = ResultFolder(tmp_path).read("perturbations")["index"]
    assert kept == list(range(15))
    resumed = studied_in(tmp_path, model, x, y, settings)
    assert {**resumed, "seconds": 0} == {**straight, "seconds": 0}
    assert json.loads((tmp_path / "result.json").read_text())["alignment"] == straight["alignment"]


def test_the_report_shows_the_study(x: Tensor, tmp_path: Path) -> None:
    model = Planted(pattern_of_blocks())
    studied_in(tmp_path / "study", model, x, torch.zeros(5, dtype=torch.int64), Perturbations(steps=2, patch=4))
    assert read_study(tmp_path / "study" / "result.json").study == "perturbations"
    names = [path.stem for path in write_figures(tmp_path) if path.suffix == ".png"]
    assert names == ["01-perturbations", "02-power-by-frequency", "03-differences-by-position-in-the-patch"]


def test_one_image_and_a_zero_perturbation(x: Tensor) -> None:
    still = Planted(torch.zeros(3, 16, 16))  # no gradient: only the random start is left
    result = study(still, x[:1], torch.zeros(1, dtype=torch.int64), Perturbations(steps=1, patch=8))
    assert result["n"] == 1
    json.dumps(result, allow_nan=False)
    assert "nan" not in str(result["summary"])


def test_large_images_are_shown_with_a_detail() -> None:
    images = torch.rand(1, 3, 160, 160, generator=torch.Generator().manual_seed(1))
    model = Planted(torch.randn(3, 160, 160, generator=torch.Generator().manual_seed(1)))
    result: dict[str, Any] = study(model, images, torch.zeros(1, dtype=torch.int64), Perturbations(steps=1, patch=16))
    detail, whole = picture(result, 0, "detail, gray"), picture(result, 0, "in gray")
    assert detail.shape == (64, 64)
    np.testing.assert_array_equal(detail, whole[48:112, 48:112])  # begins on a border of patches
    assert "the middle 64 x 64 pixels" in result["exhibits"][0]["caption"]


def test_an_image_ranks_first_only_above_all_shifted_grids() -> None:
    # ranks of a grid of 4 among its 16 places: first, second of two equals, second, last
    columns = {"change_rank": [1 / 16, 1.5 / 16, 2 / 16, 1.0], "change_aligned": [2.0, 1.0, 1.0, 0.5]}
    result = mean_alignment(TableRows({"index": [0, 1, 2, 3], **columns}), "change", 4)
    assert result["first"] == 1
    assert result["mean_rank"] == pytest.approx((1 + 1.5 + 2 + 16) / 64)
    assert result["mean"] == pytest.approx(1.125)


def test_invalid_settings_are_refused(x: Tensor) -> None:
    y = torch.zeros(5, dtype=torch.int64)
    with pytest.raises(UsageError, match="patches of 9 pixels cannot be distinguished from others on images of 16"):
        study(Planted(pattern_of_blocks()), x, y, Perturbations(patch=9, steps=1))
    model = load("timm:vit_tiny_patch16_224", num_classes=5, image_size=32, patch_size=8, options={"depth": 1})
    with pytest.raises(UsageError, match="Choose patch from 2 to 16"):
        Perturbations(patch=17).check(model)
    with pytest.raises(UsageError, match=r"label 4 is out of range"):
        study(Planted(pattern_of_blocks()), x, y + 4, Perturbations(steps=1))
    for settings, message in (
        ({"images": 0}, r"Perturbations\.images must be at least 1"),
        ({"steps": 0}, r"Perturbations\.steps must be at least 1"),
        ({"step_size": -1.0}, r"Perturbations\.step_size must be positive, got -1\.0\. Leave it out"),
    ):
        with pytest.raises(UsageError, match=message):
            Perturbations(**settings)
