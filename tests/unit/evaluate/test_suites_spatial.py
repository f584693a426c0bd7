"""The worst rotation and translation of every image, against the whole grid."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from evaluations import evaluate_one  # type: ignore[import-not-found]
from suite_parts import claim, on_two_ranks, rows_of, values, without_time  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.data import DataSet, InMemory, Split, Squash
from vitadel.evaluate import sanity_flags
from vitadel.evaluate.suites import Spatial
from vitadel.evaluate.suites.spatial import blocks, most_effective_first
from vitadel.shifts import RotateTranslate, rotated_translated

AXES = ("down", "to_the_right", "degrees")
SMALL = {"translations": 3, "rotations": 5}
IDENTITY = 22


class Corner(nn.Module):
    """Reads two pixels: class 1 if the upper one is brighter. Is interrupted after so many images, repeatedly."""

    def __init__(self, interrupted_after: int = 0) -> None:
        super().__init__()
        self.seen, self.left, self.interrupted_after = 0, interrupted_after, interrupted_after

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        self.left -= len(x)
        if self.interrupted_after and self.left <= 0:
            self.left = self.interrupted_after
            raise KeyboardInterrupt
        logit_difference = x[:, 0, 5, 8] - x[:, 0, 10, 8]
        return torch.stack([-logit_difference, logit_difference], 1)


def blurred(count: int) -> DataSet:
    """Soft noise with labels that `Corner` mostly agrees with."""
    rng = torch.Generator().manual_seed(3)
    coarse = torch.rand(count, 3, 3, 3, generator=rng)
    pixels = (torch.nn.functional.interpolate(coarse, size=16, mode="bilinear") * 255).byte()
    labels = Corner()(pixels / 255).argmax(1)
    labels[1::5] = 1 - labels[1::5]
    split = Split("test", tuple(map(str, range(count))), labels, InMemory(pixels))
    return DataSet("soft", ("0", "1"), Squash(16), None, None, split)


def correct_on_grid(data: DataSet, settings: Spatial, count: int) -> Tensor:
    """[count, transformations]: the whole grid, image by image."""
    grid = settings.transformations(16).grid()
    correct = []
    for index in range(count):
        x = data.test.images(torch.tensor([index])).expand(len(grid), -1, -1, -1)
        correct.append(Corner()(rotated_translated(x, grid)).argmax(1) == data.test.labels[index])
    return torch.stack(correct)


def passes_of_sanity_checks(data: DataSet) -> int:
    """The forward passes of the sanity checks."""
    model = Corner()
    sanity_flags(model, data.test.images(torch.arange(16)))
    return model.seen


@pytest.mark.parametrize("grid_images", [0, 4, 100])
def test_the_result_matches_the_whole_grid(tmp_path: Path, grid_images: int) -> None:
    data, settings = blurred(30), Spatial(**SMALL, grid_images=grid_images)
    model, reports = Corner(), dict[str, list[tuple[int, int]]]()

    def progress(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        reports.setdefault(what, []).append((done, total))

    summary = evaluate_one(model, data, settings, claim(tmp_path / "run"), batch=7, notify=progress)
    for steps in reports.values():
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]
    rows = rows_of(tmp_path / "run", "spatial")
    expected = correct_on_grid(data, settings, 30).all(1).double().tolist()
    assert rows["correct"] == expected
    assert 0 < sum(expected) < 24
    assert values(summary)["worst of 45 transformations"] == pytest.approx(sum(expected) / 30)
    forwards = sum(rows["forwards"])
    assert model.seen == forwards + passes_of_sanity_checks(data)  # the counted passes are those made
    assert summary["conventions"]["forwards"] == forwards
    assert summary["conventions"]["forwards_of_the_whole_grid"] == 45 * 30
    if grid_images < 30:
        assert forwards < 45 * 30
    # the transformation that is named does fool the model
    for index, robust in enumerate(expected):
        transform = [rows[axis][index] for axis in AXES]
        if robust:
            assert transform == [None] * 3
        else:
            x = rotated_translated(data.test.images(torch.tensor([index])), torch.tensor([transform]))
            assert int(Corner()(x).argmax()) != int(data.test.labels[index])


class Pixel(nn.Module):
    """Class 1 if one pixel is bright enough."""

    def __init__(self, row: int, column: int, level: float) -> None:
        super().__init__()
        self.row, self.column, self.level = row, column, level

    def forward(self, x: Tensor) -> Tensor:
        logit_difference = x[:, 0, self.row, self.column] - self.level
        return torch.stack([-logit_difference, logit_difference], 1)


@pytest.mark.parametrize("place", [0, 1, 20, 41, 42, 43])
def test_a_single_transformation_is_found_anywhere_in_the_order(tmp_path: Path, place: int) -> None:
    data = blurred(4)
    data.test.labels.zero_()
    settings = Spatial(**SMALL, grid_images=0)
    grid = settings.transformations(16).grid()
    order = most_effective_first(grid, torch.zeros(0, 45, dtype=torch.bool))
    only = int(order[order != IDENTITY][place])
    noise = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(1)).mul(255).byte()
    data.test.pixels.pixels[2] = noise[0]  # type: ignore[attr-defined]
    seen = rotated_translated(data.test.images(torch.tensor([2])).expand(45, -1, -1, -1), grid)[:, 0]
    others = seen[torch.arange(45) != only].amax(0)
    gap = seen[only] - others  # where this transformation makes a pixel brighter than any other
    row, column = divmod(int(gap.argmax()), 16)
    assert float(gap.max()) > 0.01
    level = float(others[row, column] + gap.max() / 2)
    evaluate_one(Pixel(row, column, level), data, settings, claim(tmp_path / "run"))
    rows = rows_of(tmp_path / "run", "spatial")
    assert rows["correct"][2] == 0
    assert [rows[axis][2] for axis in AXES] == grid[only].tolist()


def test_the_maps_show_every_transformation_of_the_grid_images(tmp_path: Path) -> None:
    data, settings = blurred(12), Spatial(**SMALL, grid_images=5)
    summary = evaluate_one(Corner(), data, settings, claim(tmp_path / "run"))
    share = correct_on_grid(data, settings, 5).double().mean(0).view(5, 3, 3)
    heat, lines = summary["exhibits"][:2]
    for matrix, expected in zip(heat["matrices"], (share.mean(0), share[2], (share[0] + share[4]) / 2), strict=True):
        assert torch.allclose(torch.tensor(matrix["values"], dtype=torch.float64), expected)
    mean, not_translated = lines["lines"]
    assert mean["y"] == pytest.approx(share.mean((1, 2)).tolist())
    assert not_translated["y"] == pytest.approx(share[:, 1, 1].tolist())
    assert mean["x"] == [-30, -15, 0, 15, 30]
    assert values(summary)["mean over transformations, grid images"] == pytest.approx(float(share.mean()))


def test_rows_do_not_depend_on_batches_or_interruptions(tmp_path: Path) -> None:
    data, settings = blurred(20), Spatial(**SMALL, grid_images=4)
    whole = evaluate_one(Corner(), data, settings, claim(tmp_path / "whole"), batch=64)
    model, interruptions = Corner(interrupted_after=100), 0
    while True:
        try:
            resumed = evaluate_one(model, data, settings, claim(tmp_path / "cut"), batch=3 + interruptions % 5)
            break
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions > 3
    assert without_time(resumed) == without_time(whole)
    assert rows_of(tmp_path / "cut", "spatial") == rows_of(tmp_path / "whole", "spatial")


def test_two_ranks_search_in_one_order(tmp_path: Path) -> None:
    data, settings, shared = blurred(20), Spatial(**SMALL, grid_images=4), claim(tmp_path / "two")
    whole = evaluate_one(Corner(), data, settings, claim(tmp_path / "one"))
    summaries, seen = list[dict[str, object]](), list[int]()

    def work(ranks: Ranks) -> None:
        model = Corner()
        summaries.append(evaluate_one(model, data, settings, shared, ranks=ranks))
        seen.append(model.seen)

    on_two_ranks(work)
    assert without_time(summaries[0]) == without_time(summaries[1]) == without_time(whole)
    assert rows_of(tmp_path / "two", "spatial") == rows_of(tmp_path / "one", "spatial")
    forwards = sum(rows_of(tmp_path / "one", "spatial")["forwards"])
    assert sum(seen) == forwards + passes_of_sanity_checks(data)
    assert min(seen) > forwards / 4


def test_most_effective_transformations_come_first() -> None:
    grid = RotateTranslate(2, 30, 3, 3).grid()
    wrong = torch.zeros(4, 27, dtype=torch.bool)
    wrong[:3, 5] = True  # transformation 5 fools the model on three images,
    wrong[:2, 20] = True  # 20 on two of them,
    wrong[3, 11] = True  # and only 11 on the fourth
    order = most_effective_first(grid, wrong).tolist()
    assert order[:3] == [5, 11, 20]
    assert sorted(order) == list(range(27))
    largest_first = most_effective_first(grid, wrong[:0]).tolist()
    assert largest_first[-1] == 13
    assert grid[largest_first[0]].abs().tolist() == [2, 2, 30]


def test_blocks_double_up_to_64() -> None:
    assert list(blocks(300)) == [
        *((0, 1), (1, 3), (3, 7), (7, 15), (15, 31), (31, 63), (63, 127)),
        *((127, 191), (191, 255), (255, 300)),
    ]
    assert list(blocks(3)) == [(0, 1), (1, 3)]
    assert list(blocks(0)) == []


def test_the_longest_translation_scales_with_the_image_size() -> None:
    lengths = [Spatial().transformations(side).max_translation for side in (384, 224, 128, 32, 8)]
    assert lengths == [16, 16, 16, 3, 0.75]
    assert Spatial(max_translation=2.0).transformations(224).max_translation == 2
    assert len(Spatial().transformations(32).grid()) == 2511
    with pytest.raises(UsageError, match="are odd"):
        Spatial(translations=8)
    with pytest.raises(UsageError, match="more than the identity"):
        Spatial(translations=1, rotations=1)
