"""The published severities, and what every corruption makes of two images at each."""

from pathlib import Path

import pytest
import torch
from on_record import check  # type: ignore[import-not-found]

from vitadel.shifts import CORRUPTIONS, Corruption

RECORD = Path(__file__).with_name("corruptions.json")
# Pillow's JPEG may differ by a level between versions
NAMES = [name for name in CORRUPTIONS if name != "jpeg_compression"]


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_severities(name: str) -> None:
    kind = CORRUPTIONS[name]
    check(RECORD, f"severities of {name}", {"imagenet": kind.imagenet, "cifar": kind.cifar})


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("name", NAMES)
def test_images(name: str, side: int) -> None:
    """Their mean and a weighted mean: no fault of a constant leaves both as they were."""
    rows, columns = torch.arange(side)[:, None] / side, torch.arange(side) / side
    waves = [0.5 + 0.4 * torch.sin(9 * rows + k * columns) * torch.cos(7 * columns - k * rows) for k in range(1, 7)]
    x = (torch.stack(waves).view(2, 3, side, side) * 255).round() / 255
    weights = torch.cos(torch.arange(x[0].numel(), dtype=torch.float64)).view_as(x[0])
    found = []
    for severity in range(1, 6):
        y = Corruption(name, severity)(x, torch.tensor([0, 7]), seed=3).double()
        found.append([y.mean((1, 2, 3)).tolist(), (y * weights).mean((1, 2, 3)).mul(1e3).tolist()])
    check(RECORD, f"{name} at {side} pixels", found)
