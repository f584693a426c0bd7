"""Repeated augmentation: the same image, several times, each its own."""

import pytest
import torch
from timm.data.distributed_sampler import RepeatAugSampler

from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.train.input.augment import ResizedCrop
from vitadel.train.input.repeated_augmentation import repeated


def test_the_first_of_the_order_come_three_times_in_a_row() -> None:
    rows, copies = repeated(torch.tensor([4, 2, 0, 6, 1, 3, 5]), 3)
    assert rows.tolist() == [4, 4, 4, 2, 2, 2, 0]
    assert copies.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_once_is_the_order_itself() -> None:
    shuffled = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    rows, copies = repeated(shuffled, 1)
    assert torch.equal(rows, shuffled)
    assert not copies.any()


@pytest.mark.parametrize("world", [1, 2, 4])
def test_processes_get_what_deits_sampler_gives_them(world: int) -> None:
    images = list(range(512))
    # its order of epoch 0
    shuffled = torch.randperm(512, generator=torch.Generator().manual_seed(0))
    for rank in range(world):
        theirs = list(RepeatAugSampler(images, num_replicas=world, rank=rank, num_repeats=3))
        assert repeated(shuffled, 3)[0][rank::world].tolist() == theirs


def test_copies_are_augmented_each_in_its_own_way() -> None:
    rows, copies = repeated(torch.tensor([5, 3]), 2)
    x = torch.rand(1, 3, 8, 8).expand(2, -1, -1, -1)
    one, other = ResizedCrop()(x, RandomStreams.of(0, rows).fold(copies))
    assert not torch.equal(one, other)


def test_less_than_once_is_refused() -> None:
    with pytest.raises(UsageError, match=r"repeated\(repeats=\) must be at least 1, got 0.*DeiT has 3"):
        repeated(torch.arange(3), 0)
