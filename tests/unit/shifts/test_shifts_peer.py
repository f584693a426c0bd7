"""The images of imagecorruptions-imaug; skipped where the extra `peers` is not installed.

Corruptions that draw nothing give the same gray levels, but for single ones: of evenly colored areas under a Gaussian,
where the last bit of numpy's exp decides, and of zooms, which are float32 here. Distributions are compared by
benchmarks/corruption_fidelity.py.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vitadel.shifts import SEVERITIES, Corruption


@pytest.fixture(scope="module")
def peer() -> Any:
    return pytest.importorskip("imagecorruptions")


def picture(side: int) -> Tensor:
    """[1, 3, side, side]: waves, an edge, some noise."""
    y, x = torch.meshgrid(torch.linspace(0, 9, side), torch.linspace(0, 7, side), indexing="ij")
    smooth = torch.stack([(x + y).sin(), (x * y / 4).cos(), (x > 3).float() * y.sin()]) / 2 + 0.5
    noise = torch.rand(3, side, side, generator=torch.Generator().manual_seed(0))
    return ((0.8 * smooth + 0.2 * noise) * 255).round()[None] / 255


@pytest.mark.parametrize("name", ["defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate",
                                  "jpeg_compression", "gaussian_blur", "saturate"])  # fmt: skip
@pytest.mark.parametrize("severity", SEVERITIES)
def test_deterministic_corruptions_match_the_reference(peer: Any, name: str, severity: int) -> None:
    x = picture(224)
    ours = Corruption(name, severity)(x, torch.tensor([0]), seed=0)
    image = (x[0] * 255).round().byte().permute(1, 2, 0).numpy()
    theirs = torch.from_numpy(np.array(peer.corrupt(image, severity=severity, corruption_name=name)))
    apart = ((ours[0] * 255).round() - theirs.permute(2, 0, 1)).abs()
    assert apart.max() <= (1 if name in ("gaussian_blur", "zoom_blur") else 0)
    assert (apart > 0).double().mean() < 0.01
