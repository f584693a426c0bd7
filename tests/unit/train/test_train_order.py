"""The order of images: each as often as it should, for any process, from any start."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from vitadel import data
from vitadel.core.errors import UsageError
from vitadel.data import InMemory, Shards, Split, Squash, convert
from vitadel.train import Sampler
from vitadel.train.input.loader import Loader
from vitadel.train.input.sampler import BatchIndex

MIXED = Sampler(real=50, batch_size=10, seed=3, synthetic=1000, share=0.8)


def rows(picks: list[BatchIndex], synthetic: bool) -> list[int]:
    return [int(row) for pick in picks for row in pick.row_B[pick.synthetic_B == synthetic]]


def test_a_fixed_share_of_every_batch_is_synthetic() -> None:
    assert MIXED.steps_per_epoch == 5  # in units of the real images
    picks = list(MIXED.batches(range(25)))
    assert {int(pick.synthetic_B.sum()) for pick in picks} == {8}
    # in five epochs every real image comes once, and no synthetic one twice before all have come
    assert sorted(rows(picks, synthetic=False)) == list(range(50))
    many = list(MIXED.batches(range(125)))
    assert sorted(rows(many, synthetic=True)) == list(range(1000))
    # numbered apart, so that a real and a synthetic image of one row draw other noise
    assert all(bool((pick.index_B[pick.synthetic_B] >= 50).all()) for pick in picks)
    assert all(torch.equal(pick.index_B[~pick.synthetic_B], pick.row_B[~pick.synthetic_B]) for pick in picks)


def test_positions_of_synthetic_images_are_random() -> None:
    places = torch.stack([pick.synthetic_B for pick in MIXED.batches(range(200))]).float().mean(0)
    assert float((places - 0.8).abs().max()) < 0.12


@pytest.mark.parametrize(
    "order", [MIXED, Sampler(50, 10, 3), Sampler(50, 10, 3, repeats=3)], ids=["mixed", "real", "repeats"]
)
def test_batches_do_not_depend_on_the_number_of_processes_or_the_first_step(order: Sampler) -> None:
    whole = list(order.batches(range(14)))
    for world_size in (2, 5):
        ranks = [list(order.batches(range(9, 14), rank, world_size)) for rank in range(world_size)]
        for place, pick in enumerate(whole[9:]):
            shares = [ranks[rank][place] for rank in range(world_size)]
            assert {share.step for share in shares} == {pick.step}
            for name in ("row_B", "index_B", "synthetic_B"):
                together = torch.stack([getattr(share, name) for share in shares], 1).flatten()
                assert torch.equal(together, getattr(pick, name))


def test_repeats_are_the_same_image_with_other_random_numbers() -> None:
    picks = list(Sampler(real=60, batch_size=12, seed=0, repeats=3).batches(range(5)))
    counts = Counter(int(row) for pick in picks for row in pick.row_B)
    assert set(counts.values()) == {3}
    assert len(counts) == 20
    index = torch.cat([pick.index_B for pick in picks])
    assert len(set(index.tolist())) == 60
    assert torch.equal(index % 60, torch.cat([pick.row_B for pick in picks]))


def test_invalid_orders_are_refused() -> None:
    with pytest.raises(UsageError, match="there are no synthetic images"):
        replace(MIXED, synthetic=0)
    with pytest.raises(UsageError, match=r"must lie in \[0, 1\], got 1.5"):
        replace(MIXED, share=1.5)
    with pytest.raises(UsageError, match="repeated augmentation is for real images only"):
        replace(MIXED, repeats=3)


@pytest.fixture
def digits() -> Split:
    split = data.load("digits[:50]", preprocess=Squash(8)).train
    assert split is not None
    return split


@pytest.fixture
def made(tmp_path: Path) -> Shards:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (1000, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "made.npz", image=images, label=np.arange(1000) % 10)
    return convert([tmp_path / "made.npz"], tmp_path / "shards", shard_images=300)


def test_every_position_of_a_mixed_batch_has_its_image(digits: Split, made: Shards) -> None:
    loader = Loader(digits, made, torch.device("cpu"))
    batches = list(loader.batches(MIXED.batches(range(6))))
    assert [pick.step for pick, _, _ in batches] == list(range(6))
    for pick, x, y in batches:
        for place, (row, synthetic) in enumerate(zip(pick.row_B, pick.synthetic_B, strict=True)):
            source = made.images(row[None]) if synthetic else digits.images(row[None])
            label = made.labels(row[None]) if synthetic else digits.labels[row[None]]
            assert torch.equal(x[place], source[0])
            assert int(y[place]) == int(label)


def test_a_closed_loader_ends_its_thread(digits: Split, made: Shards) -> None:
    import threading

    batches = Loader(digits, made, torch.device("cpu")).batches(MIXED.batches(range(100)))
    next(batches)
    assert any(thread.name.startswith("vitadel-batches") for thread in threading.enumerate())
    batches.close()
    assert not any(thread.name.startswith("vitadel-batches") for thread in threading.enumerate())


def test_without_a_gpu_only_the_rows_of_the_batch_are_read(digits: Split) -> None:
    class Watched(InMemory):
        read_rows: ClassVar[list[int]] = []

        def read(self, index: Tensor) -> Tensor:
            self.read_rows.append(len(index))
            return super().read(index)

    few = digits.take(torch.arange(40))
    watched = replace(few, pixels=Watched(few.pixels.read(torch.arange(40))))
    batches = Sampler(40, 8, seed=0).batches(range(3))
    assert len(list(Loader(watched, None, torch.device("cpu")).batches(batches))) == 3
    assert Watched.read_rows == [8, 8, 8]
