"""Batches are halved when the memory is full: known results."""

import pytest
import torch
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.oom import in_batches, run_in_parts


class Memory:
    """Work that runs out of memory for more than `most` images, and records the sizes that were tried."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.tried: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.tried.append(len(x))
        if len(x) > self.most:
            raise torch.OutOfMemoryError("full")
        return 2 * x


def test_out_of_memory_halves_the_following_batches() -> None:
    memory = Memory(2)
    parts = list(in_batches(torch.arange(10, 21), 7, memory))
    assert memory.tried == [7, 3, 1] + [1] * 10
    assert [int(index) for index, _ in parts] == list(range(10, 21))
    assert [int(value) for _, value in parts] == list(range(20, 42, 2))
    memory = Memory(1)
    assert [index.tolist() for index, _ in in_batches([3, 4], 2, memory)] == [[3], [4]]
    assert memory.tried == [2, 1, 1]
    memory = Memory(4)
    assert [len(index) for index, _ in in_batches([5, 6, 7, 8, 9, 10, 11], 4, memory)] == [4, 3]
    assert memory.tried == [4, 3]


def test_a_batch_in_parts_equals_the_whole() -> None:
    x = torch.arange(12.0).view(6, 2)
    for most, tried in ((6, [6]), (5, [6, 3, 3]), (2, [6, 3, 1, 1, 1, 1, 1, 1])):
        memory = Memory(most)
        assert torch.equal(run_in_parts(memory, x), 2 * x)
        assert memory.tried == tried


def test_a_single_image_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(UsageError, match="out of memory with a single image"):
        run_in_parts(Memory(0), torch.ones(4, 1))
