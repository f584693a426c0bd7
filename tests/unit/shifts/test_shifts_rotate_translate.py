"""Rotations and translations against what is known: whole pixels, right angles, another library's interpolation."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.shifts import RotateTranslate, rotated_translated


def image(height: int = 9, width: int = 9) -> torch.Tensor:
    return torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(0))


def test_the_grid_has_2511_transformations_and_the_identity_in_the_middle() -> None:
    grid = RotateTranslate(16).grid()
    assert len(grid) == 2511 == len({tuple(transform) for transform in grid.tolist()})
    assert grid[2511 // 2].tolist() == [0, 0, 0]
    assert sorted(set(grid[:, 0].tolist())) == [-16, -12, -8, -4, 0, 4, 8, 12, 16]
    assert sorted(set(grid[:, 2].tolist())) == list(range(-30, 31, 2))


def test_the_identity_returns_an_image_bit_for_bit() -> None:
    assert torch.equal(rotated_translated(image(), torch.zeros(1, 3)), image())


@pytest.mark.parametrize(("height", "width"), [(9, 9), (8, 8), (7, 12)])
def test_translations_by_whole_pixels_are_slices_with_black_behind_them(height: int, width: int) -> None:
    x = image(height, width)
    out = rotated_translated(x, torch.tensor([[2.0, -3.0, 0.0]]))
    expected = torch.zeros_like(x)
    expected[..., 2:, : width - 3] = x[..., : height - 2, 3:]
    assert torch.allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize(("degrees", "quarters"), [(90.0, 1), (180.0, 2), (-90.0, 3)])
def test_right_angles_rotate_counter_clockwise(degrees: float, quarters: int) -> None:
    out = rotated_translated(image(), torch.tensor([[0.0, 0.0, degrees]]))
    assert torch.allclose(out, torch.rot90(image(), quarters, (2, 3)), atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(9, 9), (12, 7)])
def test_transformations_match_scipy(height: int, width: int) -> None:
    x, (down, right, degrees) = image(height, width), (1.5, -2.25, 17.0)
    out = rotated_translated(x, torch.tensor([[down, right, degrees]]))[0]
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    inverse = np.array([[cos, sin], [-sin, cos]])  # rows and columns of the output to those of the input
    center = (np.array([height, width]) - 1) / 2
    offset = center - inverse @ (center + np.array([down, right]))
    for channel in range(3):
        padded = np.pad(x[0, channel].double().numpy(), 20)
        far = ndimage.affine_transform(padded, inverse, offset + 20 - inverse @ np.array([20, 20]), order=1)
        assert np.allclose(out[channel], far[20:-20, 20:-20], atol=1e-5)


def test_each_image_has_its_own_transformation() -> None:
    x = image().expand(3, -1, -1, -1)
    transforms = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 9.0], [-3.0, 0.0, -25.0]])
    together = rotated_translated(x, transforms)
    assert torch.equal(together, torch.cat([rotated_translated(x[:1], one[None]) for one in transforms]))


def test_samples_stay_within_the_box_and_do_not_depend_on_the_batch() -> None:
    transformations, x = RotateTranslate(3), image().expand(4, -1, -1, -1)
    together = transformations.sample(x, RandomStreams.of(0, torch.arange(4)))
    alone = transformations.sample(x[:1], RandomStreams.of(0, torch.tensor([2])))
    assert torch.equal(together[2:3], alone)
    assert not torch.equal(together[0], together[1])
    assert float(together.min()) >= 0
    assert float(together.max()) <= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((-1,), "RotateTranslate.max_translation must not be negative, got -1"),
        ((1, 200), r"RotateTranslate.max_rotation must lie in \[0, 180\], got 200"),
        ((1, 30, 8), "are odd"),
        ((1, 30, 9, 0), "RotateTranslate.rotations must be at least 1, got 0"),
        ((1, 30, 1001, 31), "31062031 transformations, more than 1000000"),
    ],
)
def test_invalid_grids_are_named(settings: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RotateTranslate(*settings)
