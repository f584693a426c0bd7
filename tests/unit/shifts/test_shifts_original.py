"""The gray levels that the scripts behind ImageNet-C and CIFAR-10-C give, with our random numbers put into them.

`tests/golden/corruptions.npz` holds, per table, corruption and severity, 512 pixel values of the picture below.
They were made outside this project: make_imagenet_c.py and make_cifar_c.py of github.com/hendrycks/robustness at commit
8190fe3 (2022-08), run with numpy 1.26.4, scipy 1.17.1, scikit-image 0.26.0, Pillow 13.0.0 and
opencv-python-headless 4.11.0. Three things were changed in them: np.random and skimage.util.random_noise handed out the
numbers that `RandomStreams.of(0, row 0)` gives here, `multichannel=True` read `channel_axis=-1`, and ImageMagick's
motion blur (in motion_blur and snow) was a numpy loop after ImageMagick's source, 16-bit rounding included.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitadel.shifts import CORRUPTIONS, SEVERITIES, TABLES, Corruption
from vitadel.shifts.frost import ORIGINAL

GOLDEN = Path(__file__).parents[2] / "golden" / "corruptions.npz"
SIDES = {"imagenet": 224, "cifar": 32}
# the share of pixel values that may be a level apart, and why
UNEVEN = {
    "motion_blur": 0.01,  # float32 against 16 bits
    "spatter": 0.01,  # scikit-image rounds between the two directions of the mud's Gaussian
    "glass_blur": 0.05,  # evenly colored areas: the last bit of numpy's exp decides
    "gaussian_blur": 0.05,
    "zoom_blur": 0.005,  # magnifications in float32, where scipy works in float64
    "gaussian_noise": 0.005,  # and these draw normal numbers, whose last bit depends on the processor
    "speckle_noise": 0.005,
    "snow": 0.005,
}


def picture(side: int) -> Tensor:
    """[1, 3, side, side] from whole numbers: waves, a color wheel, noise, and flat parts in white, gray and black."""
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    y, x = y * 224 // side, x * 224 // side
    restart = torch.stack([(2 * x + y) % 256, 255 - (x * y // 90) % 256, (3 * x - 2 * y) % 256])
    noise = (restart * 7919 + x * 104729 + y * 1299709 + torch.tensor([3, 11, 17]).view(3, 1, 1) * x * y) % 251
    levels = torch.where((x + y < 180) & (x > 40), restart, (restart * 3 + noise) // 4)
    levels[:, (x - 170) ** 2 + (y - 60) ** 2 < 1200] = 255
    levels[:, (x - 60) ** 2 + (y - 170) ** 2 < 1200] = 0
    levels[:, (x > 140) & (y > 160) & (x - y < 20)] = 90
    return levels[None] / 255


def places(side: int) -> tuple[Tensor, ...]:
    """Channel, row and column of 512 pixel values."""
    step = torch.arange(512)
    return step % 3, (step * 7919 + 13) // 3 % side, (step * 104729 + 5) // 7 % side


def photographs(folder: Path) -> None:
    """Six by the original's names; no format but their content, PNG, loses nothing."""
    for number, name in enumerate(ORIGINAL):
        y, x = np.meshgrid(np.arange(300 + 5 * number), np.arange(320 - 10 * number), indexing="ij")
        levels = np.stack([(x * (number + 2) + y) % 256, (x * x + 3 * y) % 241, (y * (number + 1) + x * y) % 199], 2)
        Image.fromarray(levels.astype(np.uint8)).save(folder / name, "PNG")


@cache
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        return dict(file)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_pixels_match_the_original_implementation(name: str, table: str, tmp_path: Path) -> None:
    if name == "frost":
        photographs(tmp_path)
    folder = tmp_path if name == "frost" else None
    x, (channel, row, column) = picture(SIDES[table]), places(SIDES[table])
    for severity in SEVERITIES:
        y = Corruption(name, severity, table, frost=folder)(x, torch.tensor([0]), seed=0)
        ours = (y[0, channel, row, column] * 255).round()
        apart = (ours - torch.from_numpy(golden()[f"{table}/{name}"][severity - 1])).abs()
        assert apart.max() <= (1 if name in UNEVEN else 0), severity
        assert (apart > 0).double().mean() <= UNEVEN.get(name, 0), severity
