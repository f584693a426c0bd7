"""Interpolating and multiplying: the same matrix in different ways."""

import pytest
import torch

from vitadel.shifts.filters import (
    RowInterpolation,
    apply_to_columns,
    apply_to_rows,
    by_frequency,
    interpolate_rows,
    strips,
)

CPU = torch.device("cpu")


def banded(rows: int, cols: int, reach: int) -> torch.Tensor:
    matrix = torch.rand(rows, cols, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    middle = torch.linspace(0, cols - 1, rows)[:, None]
    return matrix * ((torch.arange(cols) - middle).abs() <= reach)


@pytest.mark.parametrize(("rows", "cols", "reach"), [(100, 100, 3), (70, 100, 5), (100, 100, 90), (20, 33, 1)])
def test_strips_match_the_matrix(rows: int, cols: int, reach: int) -> None:
    matrix = banded(rows, cols, reach)
    cut = strips(matrix.float(), CPU)
    assert (len(cut) == 1) == (reach == 90 or rows < 33)  # few zeros, or too small to cut
    x = torch.rand(2, 3, cols, cols)
    torch.testing.assert_close(apply_to_columns(x, cut), matrix.float() @ x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(apply_to_rows(x, cut), x @ matrix.float().T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 30, 17), (2, 3, 30, 17), (5, 30, 40)])
def test_interpolated_rows_match_a_matrix_product(shape: tuple[int, ...]) -> None:
    rng = torch.Generator().manual_seed(0)
    low, share = torch.randint(0, 29, (21,), generator=rng), torch.rand(21, 1, generator=rng)
    rows = RowInterpolation(low, low + 1, share)
    matrix = torch.zeros(21, 30).scatter_(1, low[:, None], 1 - share).scatter_(1, low[:, None] + 1, share)
    x = torch.rand(shape, generator=rng)
    torch.testing.assert_close(interpolate_rows(x, rows), matrix @ x, rtol=1e-5, atol=1e-5)
    even = torch.full(shape, 0.7)
    assert torch.equal(interpolate_rows(even, rows), even[..., :21, :])


@pytest.mark.parametrize("size", [16, 32, 48])
def test_transforms_do_not_depend_on_the_batch(size: int) -> None:
    """Some libraries make many transforms of 16 or 32 points another way than one."""
    x = torch.rand(24, 1, size, size, generator=torch.Generator().manual_seed(0))
    response = torch.fft.rfft2(torch.rand(size, size, generator=torch.Generator().manual_seed(1)))
    one_by_one = [by_frequency(image, response, (size, size)) for image in x.split(1)]
    assert torch.equal(by_frequency(x, response, (size, size)), torch.cat(one_by_one))


def test_a_product_of_transforms_is_a_circular_convolution() -> None:
    rng = torch.Generator().manual_seed(0)
    x, kernel = torch.rand(2, 3, 9, 12, generator=rng), torch.rand(3, 2, generator=rng)
    field = torch.zeros(10, 12)
    field[:3, :2] = kernel
    ours = by_frequency(x, torch.fft.rfft2(field), (10, 12))
    wide = torch.nn.functional.pad(x, (0, 0, 0, 1))  # filled up with zeros
    slow = sum(kernel[i, j] * wide.roll((i, j), (2, 3)) for i in range(3) for j in range(2))
    torch.testing.assert_close(ours, slow, rtol=0, atol=1e-5)
