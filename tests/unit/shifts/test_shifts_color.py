"""Color in closed form against the conversion to hue, saturation and value, pixel by pixel in float64."""

import colorsys
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from vitadel.core.rng import RandomStreams
from vitadel.shifts import CORRUPTIONS, Corruption
from vitadel.shifts.color import brightness, contrast, saturate

RNG = RandomStreams.of(0, torch.arange(1))


def palette() -> Tensor:
    """[1, 3, 24, 24] random colors, grays, black, white and pure hues."""
    pixels = torch.randint(0, 256, (576, 3), generator=torch.Generator().manual_seed(0))
    pixels[:100] = pixels[:100, :1]
    pixels[100:108] = torch.cartesian_prod(*[torch.tensor([0, 255])] * 3)
    return (pixels / 255).T.reshape(1, 3, 24, 24)


def through_hsv(x: Tensor, times: float, plus: float, more: float) -> Tensor:
    out = torch.empty_like(x, dtype=torch.float64)
    for row in range(x.shape[2]):
        for col in range(x.shape[3]):
            hue, saturation, value = colorsys.rgb_to_hsv(*x[0, :, row, col].double().tolist())
            saturation, value = min(saturation * times + plus, 1), min(value + more, 1)
            out[0, :, row, col] = torch.tensor(colorsys.hsv_to_rgb(hue, saturation, value), dtype=torch.float64)
    return out


@pytest.mark.parametrize("more", [rung[0] for rung in CORRUPTIONS["brightness"].imagenet])
def test_brightness_matches_its_formula(more: float) -> None:
    x = palette()
    expected = through_hsv(x, 1, 0, more)
    torch.testing.assert_close(brightness(x, RNG, more).double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("times", "plus"), CORRUPTIONS["saturate"].imagenet + CORRUPTIONS["saturate"].cifar[2:])
def test_saturate_matches_its_formula(times: float, plus: float) -> None:
    x = palette()
    expected = through_hsv(x, times, plus, 0)
    torch.testing.assert_close(saturate(x, RNG, times, plus).double(), expected, rtol=0, atol=1e-6)


def test_contrast_moves_channels_towards_their_means() -> None:
    x = palette()
    mean = x.double().mean((2, 3), keepdim=True)
    for (factor,) in CORRUPTIONS["contrast"].imagenet:
        expected = (x.double() - mean) * factor + mean
        torch.testing.assert_close(contrast(x, RNG, factor).double(), expected, rtol=0, atol=1e-6)


def test_saturate_of_black_and_gray() -> None:
    black, gray = torch.zeros(1, 3, 16, 16), torch.full((1, 3, 16, 16), 100 / 255)
    rows = torch.zeros(1, dtype=torch.long)
    assert (Corruption("brightness", 3)(black, rows, seed=0) * 255).unique().round().tolist() == [76]  # 0.3 of 255
    red = Corruption("saturate", 5)(gray, rows, seed=0)[0, :, 0, 0] * 255
    assert red.round().tolist() == [100, 80, 80]
    assert torch.equal(Corruption("saturate", 1)(gray, rows, seed=0), gray)
    assert not Corruption("saturate", 5)(black, rows, seed=0).any()


def test_brightness_never_darkens_and_grows_with_severity() -> None:
    """But for a level at most, where a product in float64 ends just below it; the original loses it too."""
    x, rows = palette(), torch.zeros(1, dtype=torch.long)
    levels = [x] + [Corruption("brightness", severity)(x, rows, seed=0) for severity in (1, 2, 3, 4, 5)]
    for darker, brighter in pairwise((image * 255).round() for image in levels):
        assert (brighter >= darker - 1).all()
        assert (brighter >= darker).double().mean() > 0.99
