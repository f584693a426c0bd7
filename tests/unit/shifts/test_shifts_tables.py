"""The parameters of all corruptions, against the scripts that made ImageNet-C and CIFAR-10-C.

`tests/golden/corruption_parameters.json` holds the lists `c` of make_imagenet_c.py and make_cifar_c.py of
github.com/hendrycks/robustness at commit 8190fe3 (2022-08), read from their syntax trees; `np.arange(1, end, step)` of
the zoom is (end, step), and `IMSIZE` is 32.
"""

import json
from pathlib import Path

import pytest
import torch

from vitadel.core.rng import RandomStreams
from vitadel.shifts import CORRUPTIONS, SEVERITIES, TABLES
from vitadel.shifts.frost import procedural

RECORD = json.loads((Path(__file__).parents[2] / "golden" / "corruption_parameters.json").read_text())


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("table", TABLES)
def test_parameters_match_the_original_scripts(table: str, name: str) -> None:
    kind = CORRUPTIONS[name]
    for severity in SEVERITIES:
        assert kind.parameters(table, severity) == pytest.approx(RECORD[table][name][severity - 1], rel=1e-9), severity


def test_the_benchmark_has_fifteen_corruptions_in_four_groups_and_four_extra_ones() -> None:
    groups = {
        "noise": ["gaussian_noise", "shot_noise", "impulse_noise"],
        "blur": ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur"],
        "weather": ["snow", "frost", "fog", "brightness"],
        "digital": ["contrast", "elastic_transform", "pixelate", "jpeg_compression"],
        "extra": ["speckle_noise", "gaussian_blur", "spatter", "saturate"],
    }
    names = {group: [name for name, kind in CORRUPTIONS.items() if kind.group == group] for group in groups}
    assert names == groups
    assert list(CORRUPTIONS) == [name for some in groups.values() for name in some]


def test_procedural_ice_has_the_mean_and_spread_of_the_photographs() -> None:
    # mean and standard deviation of R, G, B in frost1.png to frost5.jpg of the original, in gray levels
    tints = [
        ((78, 149, 166), (27, 17, 15)),
        ((201, 205, 215), (22, 22, 22)),
        ((138, 153, 165), (29, 29, 29)),
        ((112, 123, 135), (44, 43, 42)),
    ]
    count = 120
    ice = procedural(torch.zeros(count, 3, 32, 32), RandomStreams.of(0, torch.arange(count))).double() * 255
    seen = [0] * len(tints)
    for image in ice:
        inside = ((image > 0.01) & (image < 254.9)).all(0)
        for number, (mean, spread) in enumerate(tints):
            red, green, blue = ((image[i] - mean[i]) / spread[i] for i in range(3))
            apart = torch.maximum((red - green).abs(), (red - blue).abs())[inside].max()
            if apart < 1e-3:
                seen[number] += 1
                assert abs(green.mean()) < 0.1
                assert abs(green.square().mean() - 1) < 0.15
    assert sum(seen) == count
    # one photograph is in the original twice
    assert seen == pytest.approx([count / 5, 2 * count / 5, count / 5, count / 5], abs=4 * (count * 0.16) ** 0.5)
