"""Attacks of one gray level on models whose decision boundary is known."""

from pathlib import Path

import pytest
import torch
from evaluations import evaluate_one  # type: ignore[import-not-found]
from suite_parts import claim, codes, gray_images, rows_of, values  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.evaluate.suites import GrayLevel
from vitadel.evaluate.suites.gray_level import Iterate


class Edge(nn.Module):
    """Bright or dark: the mean of the pixels against one half. A gray image can be broken if that is within eps."""

    def forward(self, x: Tensor) -> Tensor:
        logit_difference = x.mean((1, 2, 3)) - 0.5
        return torch.stack([-logit_difference, logit_difference], 1) * 50


def test_one_gray_level_breaks_images_nearer_than_one_level(tmp_path: Path) -> None:
    # 127.5 is the edge: 127 and 128 are broken by one level, 126 and 129 are not; the last is misclassified
    data = gray_images([127, 128, 126, 129, 40, 250], [0, 1, 0, 1, 0, 0], classes=2, size=8)
    summary = evaluate_one(Edge(), data, GrayLevel(), claim(tmp_path / "run"), batch=4)
    rows = rows_of(tmp_path / "run", "gray-level")
    assert rows["correct"] == rows["fgsm_correct"] == [0, 0, 1, 1, 1, 0]
    assert rows["clean_prediction"] == [0, 1, 0, 1, 0, 1]
    assert rows["prediction"] == [1, 0, 0, 1, 0, 1]
    assert values(summary) == {"PGD-8 at 1 gray level": 0.5, "FGSM at 1 gray level": 0.5}
    assert summary["threat"] == {"norm": "linf", "eps": 1 / 255, "text": "linf:1/255", "unit": "1/255"}
    assert summary["clean"]["correct"] == 5
    wider = evaluate_one(Edge(), data, GrayLevel(levels=2), claim(tmp_path / "two"))
    assert values(wider) == {"PGD-8 at 2 gray levels": 1 / 6, "FGSM at 2 gray levels": 1 / 6}


class Kink(nn.Module):
    """The gradient at the image has the wrong sign after half a level: only a single full step succeeds."""

    def forward(self, x: Tensor) -> Tensor:
        up = (x.mean((1, 2, 3)) - 100 / 255) * 255
        objective = torch.where(up < 0.4, up, 0.8 - up) + 20 * (up - 0.9).clamp_min(0)
        return torch.stack([0.5 - objective, objective - 0.5], 1)


def test_more_steps_that_break_fewer_images_are_flagged(tmp_path: Path) -> None:
    data = gray_images([100, 100], [0, 0], classes=2, size=8)
    summary = evaluate_one(Kink(), data, GrayLevel(), claim(tmp_path / "run"))
    assert values(summary) == {"PGD-8 at 1 gray level": 1.0, "FGSM at 1 gray level": 0.0}
    assert "pgd-weaker-than-fgsm" in codes(summary)


class Peak(nn.Module):
    """Steps of an eighth of a level end at 4/8 and pass 5/8 on the way, where alone the image is broken."""

    def forward(self, x: Tensor) -> Tensor:
        up = (x.mean((1, 2, 3)) - 100 / 255) * 255
        objective = 0.25 - 3 * (up - 0.6).abs()
        return torch.stack([-objective, objective], 1)


@pytest.mark.parametrize(("settings", "correct"), [(GrayLevel(), 1.0), (GrayLevel(iterate=Iterate.BEST), 0.0)])
def test_the_last_iterate_is_evaluated_unless_the_best_is_wanted(
    settings: GrayLevel, correct: float, tmp_path: Path
) -> None:
    """Without a random start: 1, 2, 3, 4 and 5 eighths, then back and forth; after eight steps 4."""
    data = gray_images([100, 100], [0, 0], classes=2, size=8)
    summary = evaluate_one(Peak(), data, settings, claim(tmp_path / "run"))
    assert values(summary) == {"PGD-8 at 1 gray level": correct, "FGSM at 1 gray level": 1.0}
    assert rows_of(tmp_path / "run", "gray-level")["prediction"] == [1 - correct] * 2
    assert summary["conventions"]["iterate"] == f"the {settings.iterate.value} one"


def test_invalid_gray_levels_are_named() -> None:
    with pytest.raises(UsageError, match=r"GrayLevel.levels must lie in \(0, 255\], got 0. The paper's is 1"):
        GrayLevel(levels=0)
    with pytest.raises(UsageError, match="steps must be at least 1"):
        GrayLevel(steps=0)
