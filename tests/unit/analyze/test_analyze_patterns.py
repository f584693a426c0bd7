"""Frequencies and patches of patterns: sinusoids, blocks and noise have known values.

Shape letters: B images, C channels, H rows, W columns.
"""

import math

import pytest
import torch
from torch import Tensor

from vitadel.analyze import spectrum
from vitadel.analyze.patch_grid import alignment, check_patch, expected_rank
from vitadel.core.errors import UsageError
from vitadel.runs.typed_json import tensor_from_json, tensor_to_json


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def restart(cycles_down: int, cycles_across: int, height: int, width: int) -> Tensor:
    rows, columns = torch.arange(height)[:, None] / height, torch.arange(width) / width
    return torch.cos(2 * math.pi * (cycles_down * rows + cycles_across * columns)).double().expand(1, 3, height, width)


@pytest.mark.parametrize(("down", "across"), [(0, 3), (5, 0), (3, 4), (0, 12)])
def test_the_power_of_a_sinusoid_is_in_its_ring(down: int, across: int) -> None:
    result = spectrum.densities(restart(down, across, 24, 24) + 7)[0]
    ring = round(math.hypot(down, across))
    assert int(result.argmax()) + 1 == ring
    assert float(spectrum.frequencies(24, 24)[ring - 1]) == pytest.approx(ring / 24)
    rings = spectrum.rings(24, 24)
    members, all_ = int((rings == ring).sum()), int((rings > 0).sum())
    # the ring's mean over the mean of all: everything is in so many of so many
    assert float(result[ring - 1]) == pytest.approx(all_ / members)
    assert float(result.sum() - result[ring - 1]) == pytest.approx(0, abs=1e-10)


def test_frequencies_of_images_that_are_not_square_are_in_cycles_per_pixel() -> None:
    # 8 cycles on 32 columns are a quarter of a cycle per pixel; on 16 rows that are rings of 1/16
    result = spectrum.densities(restart(0, 8, 16, 32))[0]
    assert float(spectrum.frequencies(16, 32)[int(result.argmax())]) == 0.25
    assert len(result) == len(spectrum.frequencies(16, 32))


def test_white_noise_has_density_one_everywhere() -> None:
    result = spectrum.densities(noise(400, 3, 16, 16)).mean(0)
    assert float((result - 1).abs().max()) < 0.1
    assert float(spectrum.fine_share(noise(400, 3, 16, 16)).mean()) == pytest.approx(1 - math.pi / 16, abs=0.02)


def test_densities_match_a_slow_transform() -> None:
    pattern, height, width = noise(1, 2, 6, 8), 6, 8
    sums: dict[int, float] = {}
    counts: dict[int, int] = {}
    for u in range(height):
        for v in range(width):
            power = 0.0
            for channel in pattern[0]:
                total = 0j
                for r in range(height):
                    for c in range(width):
                        angle = -2 * math.pi * (u * r / height + v * c / width)
                        total += float(channel[r, c]) * complex(math.cos(angle), math.sin(angle))
                power += abs(total) ** 2
            frequency = math.hypot(min(u, height - u) / height, min(v, width - v) / width)
            ring = round(frequency * 6)
            sums[ring], counts[ring] = sums.get(ring, 0.0) + power, counts.get(ring, 0) + 1
    del sums[0], counts[0]
    mean = sum(sums.values()) / sum(counts.values())
    slow = [sums[ring] / counts[ring] / mean for ring in sorted(sums)]
    assert spectrum.densities(pattern)[0].tolist() == pytest.approx(slow)


@pytest.mark.parametrize(("cycles", "share"), [(4, 0.0), (5, 0.0), (6, 1.0), (10, 1.0)])
def test_the_high_frequency_share_begins_beyond_a_quarter(cycles: int, share: float) -> None:
    assert float(spectrum.fine_share(restart(0, cycles, 20, 20))) == pytest.approx(share, abs=1e-10)


def test_a_constant_pattern_has_no_power() -> None:
    flat = torch.full((2, 3, 8, 8), 0.1)
    assert bool(spectrum.densities(flat).isnan().all())
    assert bool(spectrum.fine_share(flat).isnan().all())


def blocks(patch: int, count: int, seed: int = 0) -> Tensor:
    return noise(1, 3, count, count, seed=seed).repeat_interleave(patch, 2).repeat_interleave(patch, 3)


@pytest.mark.parametrize("patch", [2, 4, 8])
def test_a_pattern_constant_in_patches_is_fully_aligned(patch: int) -> None:
    result = alignment(blocks(patch, 5), patch)
    assert float(result.true_B) == pytest.approx(1)
    assert float(result.rank_B) == pytest.approx(1 / patch**2)
    assert result.jumps_BP[0].tolist() == pytest.approx([patch] + [0] * (patch - 1), abs=1e-12)


def test_shifted_patches_are_not_aligned() -> None:
    moved = blocks(4, 6)[:, :, 2:-2, 1:-3]
    result = alignment(moved, 4)
    assert float(result.true_B) == pytest.approx(-1)
    assert float(result.rank_B) == 1
    # borders lie 4 - 2 rows after the beginning and 4 - 1 columns
    assert int(result.jumps_BP[0, 1]) == 0
    assert sorted(result.jumps_BP[0].nonzero().flatten().tolist()) == [2, 3]


def test_borders_with_twice_the_difference_have_the_known_alignment() -> None:
    # along columns every step is +1 inside and +s on a border, rows are constant: E_0 = s^2 / 2, inside 1 / 2
    patch, jump = 4, 3.0
    steps = torch.tensor([jump if column % patch == 0 else 1.0 for column in range(1, 16)])
    line = torch.cat([torch.zeros(1), steps.cumsum(0)])
    result = alignment(line.expand(1, 3, 16, 16), patch)
    assert float(result.true_B) == pytest.approx((jump**2 - 1) / (jump**2 + 1))


def test_alignment_matches_a_slow_count() -> None:
    pattern, patch = noise(1, 2, 9, 12), 3
    energies: dict[tuple[str, int], list[float]] = {}
    for r in range(9):
        for c in range(12):
            for channel in range(2):
                here = float(pattern[0, channel, r, c])
                if c:
                    left = float(pattern[0, channel, r, c - 1])
                    energies.setdefault(("across", c % patch), []).append((here - left) ** 2)
                if r:
                    above = float(pattern[0, channel, r - 1, c])
                    energies.setdefault(("down", r % patch), []).append((here - above) ** 2)
    mean = {key: sum(values) / len(values) for key, values in energies.items()}

    def slow(p: int, q: int) -> float:
        border = (mean["down", p] + mean["across", q]) / 2
        inside = [mean["down", o] for o in range(patch) if o != p] + [mean["across", o] for o in range(patch) if o != q]
        other = sum(inside) / len(inside)
        return (border - other) / (border + other)

    result = alignment(pattern, patch)
    assert float(result.true_B) == pytest.approx(slow(0, 0))
    as_good = [slow(p, q) >= slow(0, 0) for p in range(patch) for q in range(patch)]
    assert float(result.rank_B) == pytest.approx(sum(as_good) / 9)


def test_noise_is_aligned_at_chance_level() -> None:
    result = alignment(noise(600, 3, 16, 16), 4)
    assert float(result.true_B.mean()) == pytest.approx(0, abs=0.01)
    assert float(result.rank_B.mean()) == pytest.approx(8.5 / 16, abs=0.03)  # the mean of 1, 2, ... 16
    for share in (0.1, 0.25, 0.5):  # like a p-value: below a share in no more than that share of cases
        assert float((result.rank_B <= share).double().mean()) == pytest.approx(int(share * 16) / 16, abs=0.05)


@pytest.mark.parametrize("patch", [2, 3])
def test_chance_level_of_small_patches_is_above_one_half(patch: int) -> None:
    ranks = [place / patch**2 for place in range(1, patch**2 + 1)]
    assert expected_rank(patch) == pytest.approx(sum(ranks) / len(ranks))
    assert float(alignment(noise(2000, 3, 12, 12), patch).rank_B.mean()) == pytest.approx(
        expected_rank(patch), abs=0.02
    )


def test_a_constant_pattern_is_not_aligned() -> None:
    result = alignment(torch.zeros(2, 3, 8, 8), 4)
    assert result.true_B.tolist() == [0, 0]
    assert result.rank_B.tolist() == [1, 1]


@pytest.mark.parametrize("patch", [1, 9, 16])
def test_indistinguishable_grids_are_refused(patch: int) -> None:
    with pytest.raises(UsageError, match=rf"patches of {patch} pixels cannot be distinguished .* from 2 to 8"):
        check_patch(patch, 16, 20)


def test_tensors_survive_writing_and_reading() -> None:
    values = torch.tensor([[1.5, float("nan")], [-2.0, 3.25]])
    assert torch.equal(tensor_from_json(tensor_to_json(values)).nan_to_num(9), values.nan_to_num(9))
    assert tensor_from_json(tensor_to_json(torch.tensor([0, 255], dtype=torch.uint8))).tolist() == [0, 255]
