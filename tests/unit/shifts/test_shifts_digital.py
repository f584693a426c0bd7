"""Elastic distortion against scipy, coarse pixels against Pillow."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from torch import Tensor

from vitadel.core.rng import RandomStreams
from vitadel.shifts import CORRUPTIONS
from vitadel.shifts.digital import affine, elastic_transform, fixed_point_places, pixelate, sample_once, sample_twice
from vitadel.shifts.fast_rng import uniform

RNG = RandomStreams.of(0, torch.arange(2))


def images(*shape: int) -> Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 255).round() / 255


@pytest.mark.parametrize(("sample", "mode"), [(sample_once, "mirror"), (sample_twice, "reflect")])
def test_sampling_matches_scipy(sample: Callable[[Tensor, Tensor], Tensor], mode: str) -> None:
    x = images(2, 3, 21, 34)
    place = torch.rand(2, 2, 21, 34, generator=torch.Generator().manual_seed(2)) * 60 - 15  # well outside too
    ours = sample(x, place)
    for image in range(2):
        for channel in range(3):
            where = place[image].flip(0).double().numpy()
            slow = ndimage.map_coordinates(x[image, channel].double().numpy(), where, order=1, mode=mode)
            torch.testing.assert_close(ours[image, channel].double(), torch.from_numpy(slow), rtol=0, atol=1e-5)


def test_the_affine_map_inverts_the_moved_points() -> None:
    jitter = uniform(RNG, 3, 2) * 20 - 10
    height, width = 60, 90
    still = torch.tensor([[65.0, 50.0], [65.0, 10.0], [25.0, 10.0]])  # 45 +- 20 across, 30 +- 20 down
    back = fixed_point_places(affine(height, width, jitter), height, width)
    assert torch.equal(back * 32, (back * 32).floor())
    for image in range(2):
        moved = (still + jitter[image]).double()
        design = torch.cat([moved, torch.ones(3, 1)], 1).double()
        matrix = torch.linalg.solve(design, still.double())  # (x, y, 1) of a moved point -> its original position
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        expected = torch.stack([x, y, torch.ones_like(x)], 2).double() @ matrix
        # to 32nds, of a sum whose parts are rounded to 1024ths
        torch.testing.assert_close(back[image], expected.permute(2, 0, 1), rtol=0, atol=(1 / 64 + 1 / 1024) * 1.001)


@pytest.mark.parametrize(
    "rung", CORRUPTIONS["elastic_transform"].imagenet[1:3] + CORRUPTIONS["elastic_transform"].cifar
)
def test_elastic_transform_matches_a_direct_computation(rung: tuple[float, float, float]) -> None:
    strength, sigma, jitter = rung
    x = images(2, 3, 64, 64)
    y = elastic_transform(x, RNG, *rung)
    matrix = affine(64, 64, (uniform(RNG.fold(0), 3, 2) * 2 - 1) * jitter)
    moved = sample_once(x, fixed_point_places(matrix, 64, 64))
    noise = (uniform(RNG.fold(1), 2, 64, 64) * 2 - 1).double().numpy()
    rows, cols = np.meshgrid(np.arange(64), np.arange(64), indexing="ij")
    for image in range(2):
        right, down = (
            ndimage.gaussian_filter(plane, sigma, mode="reflect", truncate=3) * strength for plane in noise[image]
        )
        for channel in range(3):
            plane = moved[image, channel].double().numpy()
            slow = ndimage.map_coordinates(plane, [rows + down, cols + right], order=1, mode="reflect")
            torch.testing.assert_close(y[image, channel].double(), torch.from_numpy(slow), rtol=0, atol=2e-4)


@pytest.mark.parametrize("shape", [(224, 224), (32, 32), (50, 75)])
def test_pixelate_matches_pillow_box_resizing(shape: tuple[int, int]) -> None:
    x = images(1, 3, *shape)
    image = Image.fromarray((x[0] * 255).round().byte().permute(1, 2, 0).numpy())
    height, width = shape
    for (factor,) in CORRUPTIONS["pixelate"].imagenet + CORRUPTIONS["pixelate"].cifar:
        small = image.resize((int(width * factor), int(height * factor)), Image.Resampling.BOX)
        theirs = np.asarray(small.resize((width, height), Image.Resampling.BOX))
        ours = (pixelate(x, RNG, factor)[0] * 255).round().byte().permute(1, 2, 0).numpy()
        assert np.array_equal(ours, theirs), factor
