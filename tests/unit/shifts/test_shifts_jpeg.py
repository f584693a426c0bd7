"""JPEG in torch against Pillow: the same pixels, bit for bit."""

import pytest
import torch
from torch import Tensor

from vitadel.shifts import Corruption, jpeg
from vitadel.shifts.jpeg import by_pillow, by_torch


def pictures(height: int, width: int) -> Tensor:
    """Noise, a smooth picture with an edge, black and white."""
    rng = torch.Generator().manual_seed(height)
    noise = torch.rand(1, 3, height, width, generator=rng)
    y, x = torch.meshgrid(torch.linspace(0, 3, height), torch.linspace(0, 5, width), indexing="ij")
    smooth = torch.stack([(x + y).sin(), (x * y).cos(), (x > 2).float() * y.sin()])[None] / 2 + 0.5
    flat = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 3, height, width)
    return (torch.cat([noise, smooth.clamp(0, 1), flat]) * 255).round() / 255


@pytest.mark.parametrize("shape", [(32, 32), (224, 224), (33, 47), (17, 64), (40, 50)])
@pytest.mark.parametrize("quality", [7, 25, 50, 85, 95])
def test_torch_matches_pillow(shape: tuple[int, int], quality: int) -> None:
    x = pictures(*shape)
    assert torch.equal((by_torch(x, quality) * 255).round(), (by_pillow(x, quality) * 255).round())


def test_constant_images_are_unchanged() -> None:
    x = pictures(32, 32)[2:]
    assert torch.equal(jpeg(x, 85), x)


def test_several_threads_keep_the_order() -> None:
    x = torch.arange(16).view(16, 1, 1, 1).expand(16, 3, 16, 16) * 16 / 255
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert (jpeg(x, 95) - x).abs().max() < 1.5 / 255
    finally:
        torch.set_num_threads(threads)


def test_the_jpeg_setting_applies_after_the_corruption() -> None:
    x, rows = pictures(32, 32), torch.arange(4)
    plain = Corruption("gaussian_noise", 3)(x, rows, seed=0)
    assert torch.equal(Corruption("gaussian_noise", 3, jpeg=85)(x, rows, seed=0), by_pillow(plain, 85))


@pytest.mark.parametrize(("sigma", "severity", "before", "after"), [(0.08, 1, 20.0, 15.5), (0.18, 3, 42.4, 31.0)])
def test_quality_85_removes_a_quarter_of_gaussian_noise(
    sigma: float, severity: int, before: float, after: float
) -> None:
    """Measured on the released pipeline; the figures hold for mid-gray images."""
    x = torch.full((4, 3, 224, 224), 128 / 255)
    for quality, spread in ((None, before), (85, after)):
        y = Corruption("gaussian_noise", severity, jpeg=quality)(x, torch.arange(4), seed=0)
        assert (y * 255).std().item() == pytest.approx(spread, rel=0.08)
