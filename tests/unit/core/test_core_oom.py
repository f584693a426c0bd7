"""Batches are halved when the memory is full: known results."""

import pytest
import torch
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.oom import in_batches, is_out_of_memory, run_in_parts


class Memory:
    """Work that runs out of memory for more than `most` images, and records the sizes that were tried."""

    def __init__(self, most: int, error: Exception | None = None) -> None:
        self.most = most
        self.error = error or torch.OutOfMemoryError("full")
        self.tried: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.tried.append(len(x))
        if len(x) > self.most:
            raise self.error
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


def full_cpu() -> Exception:
    """The error of torch for an allocation of a pebibyte."""
    with pytest.raises(RuntimeError) as full:
        torch.empty(2**50, dtype=torch.uint8)
    return full.value


@pytest.mark.parametrize(
    "error",
    [
        full_cpu(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory"),
        MemoryError("Unable to allocate 1.00 PiB for an array"),
    ],
    ids=["on Linux", "on Windows", "of NumPy"],
)
def test_a_full_cpu_halves_the_batches_too(error: Exception) -> None:
    assert is_out_of_memory(error)
    memory = Memory(2, error)
    x = torch.arange(12.0).view(6, 2)
    assert torch.equal(run_in_parts(memory, x), 2 * x)
    assert memory.tried == [6, 3, 1, 1, 1, 1, 1, 1]


def test_other_errors_of_a_batch_are_not_hidden() -> None:
    error = RuntimeError("Expected all tensors to be on the same device")
    assert not is_out_of_memory(error)
    memory = Memory(2, error)
    with pytest.raises(RuntimeError, match="same device"):
        run_in_parts(memory, torch.ones(4, 1))
    assert memory.tried == [4]


def test_a_single_image_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(UsageError, match="out of memory with a single image"):
        run_in_parts(Memory(0), torch.ones(4, 1))
