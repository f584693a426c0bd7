"""The distribution of `RotateTranslate.sample`, read off ramps: a pixel's value is its original position."""

import torch
from torch import Tensor

from vitadel.core.rng import RandomStreams
from vitadel.shifts import RotateTranslate

COUNT, SIDE = 400, 33


def ramps() -> Tensor:
    """[COUNT, 2, SIDE, SIDE]: how far down and to the right of the center a pixel is, as (16 + steps) / 32."""
    place = torch.arange(SIDE, dtype=torch.float64) / (SIDE - 1)
    return torch.stack(torch.meshgrid(place, place, indexing="ij")).expand(COUNT, -1, -1, -1)


def steps_from_center(x: Tensor, row: int, column: int) -> tuple[Tensor, Tensor]:
    """[COUNT] each: the position that the pixel shows, in steps down and to the right from the center."""
    down, right = (x[:, :, row, column] * (SIDE - 1) - SIDE // 2).unbind(1)
    return down, right


def assert_uniform(values: Tensor, limit: float) -> None:
    """Up to the limit, with the mean and the variance of a uniform distribution, to four standard errors."""
    assert values.abs().max() <= limit + 1e-9
    assert abs(values.mean()) < 4 * limit / (3 * COUNT) ** 0.5
    squares = (values / limit).square()
    assert abs(squares.mean() - 1 / 3) < 4 * (4 / 45 / COUNT) ** 0.5


def test_translations_are_uniform_up_to_their_limit_both_ways() -> None:
    out = RotateTranslate(5, max_rotation=0).sample(ramps(), RandomStreams.of(3, torch.arange(COUNT)))
    down, right = steps_from_center(out, SIDE // 2, SIDE // 2)
    assert_uniform(-down, 5)
    assert_uniform(-right, 5)
    # one does not follow from the other
    assert abs((down * right).mean()) < 4 * (25 / 3) / COUNT**0.5


def test_rotations_are_uniform_up_to_their_limit_both_ways() -> None:
    out = RotateTranslate(0, max_rotation=40).sample(ramps(), RandomStreams.of(3, torch.arange(COUNT)))
    down, right = steps_from_center(out, SIDE // 2, SIDE // 2 + 10)  # ten steps to the right of the center
    torch.testing.assert_close(torch.hypot(down, right), torch.full_like(down, 10), rtol=0, atol=1e-9)
    assert_uniform(torch.rad2deg(torch.atan2(down, right)), 40)
