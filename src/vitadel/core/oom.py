"""Out-of-memory handling in one place: the batch size is halved."""

from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TypeVar

import torch
from torch import Tensor

from vitadel.core.errors import UsageError

Returned = TypeVar("Returned")


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that the memory of a device or of the machine is full."""
    # on a CPU, torch raises a plain RuntimeError
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def in_batches(
    index: Tensor | Sequence[int], batch_size: int, work: Callable[[Tensor], Returned]
) -> Iterator[tuple[Tensor, Returned]]:
    """Apply `work` to `batch_size` indices at a time; when out of memory, the batch size is halved.

    Args:
        index: [n] indices, in the order in which they are passed to `work`.
        batch_size: The number of indices passed at a time.
        work: Takes [B] indices.

    Yields:
        The indices of each batch and what `work` returned for them.

    Raises:
        UsageError: If a single image does not fit.
    """
    remaining = torch.as_tensor(index, dtype=torch.int64)
    while len(remaining):
        part = remaining[:batch_size]
        try:
            result = work(part)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(part) == 1:
                raise_out_of_memory()
            batch_size = len(part) // 2
        else:
            yield part, result
            remaining = remaining[len(part) :]
            continue
        torch.cuda.empty_cache()  # outside of `except`, whose exception keeps tensors of the failed attempt alive


def run_in_parts(work: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`work(x)`, computed in parts and concatenated if the whole batch does not fit into memory.

    Args:
        work: Takes [B, ...] and returns one row per row of it.
        x: [B, ...] the batch.

    Raises:
        UsageError: If a single image does not fit.
    """

    def part(at: Tensor) -> Tensor:
        return work(x[int(at[0]) : int(at[-1]) + 1])

    results = [result for _, result in in_batches(torch.arange(len(x)), max(1, len(x)), part)]
    return results[0] if len(results) == 1 else torch.cat(results)


def raise_out_of_memory(detail: str = "") -> NoReturn:
    """Raise the error for a single image that does not fit into memory."""
    raise UsageError(f"out of memory with a single image{detail}. Use a smaller model or another device.") from None
