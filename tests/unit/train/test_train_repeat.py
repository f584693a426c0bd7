"""Repeated augmentation: the same image several times, augmented independently."""

import pytest
import torch
from timm.data.distributed_sampler import RepeatAugSampler

from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.train import ResizedCrop, Sampler


def test_the_first_images_are_repeated_three_times() -> None:
    shuffled, none = Sampler(7, 7, seed=5).epoch(2)
    assert sorted(shuffled.tolist()) == list(range(7))
    assert not none.any()
    rows, copies = Sampler(7, 7, seed=5, repeats=3).epoch(2)
    assert rows.tolist() == shuffled[[0, 0, 0, 1, 1, 1, 2]].tolist()
    assert copies.tolist() == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_match_the_sampler_of_deit(world_size: int) -> None:
    images = list(range(512))
    # its order of epoch 0, and ours
    theirs = torch.randperm(512, generator=torch.Generator().manual_seed(0))
    shuffled, _ = Sampler(512, 64, seed=0).epoch(0)
    rows, _ = Sampler(512, 64, seed=0, repeats=3).epoch(0)
    for rank in range(world_size):
        sampled = list(RepeatAugSampler(images, num_replicas=world_size, rank=rank, num_repeats=3))
        assert torch.equal(shuffled[theirs.argsort()[sampled]], rows[rank::world_size])


def test_copies_are_augmented_independently() -> None:
    rows, copies = Sampler(2, 2, seed=0, repeats=2).epoch(0)
    assert rows[0] == rows[1]
    x = torch.rand(1, 3, 8, 8).expand(2, -1, -1, -1)
    one, other = ResizedCrop()(x, RandomStreams.of(0, rows).fold(copies))
    assert not torch.equal(one, other)


def test_fewer_than_one_repetition_is_refused() -> None:
    with pytest.raises(UsageError, match="Sampler.repeats must be at least 1, got 0"):
        Sampler(3, 3, seed=0, repeats=0)
