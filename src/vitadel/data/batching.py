"""Batches of a split, read in the background before they are needed."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.data.split import Split

SplitBatch = tuple[Tensor, Tensor, Tensor]
Item = TypeVar("Item")
Returned = TypeVar("Returned")


def batches(split: Split, order: Iterable[Tensor], *, ahead: int = 2) -> Generator[SplitBatch, None, None]:
    """(index, images, labels) for each index tensor in `order`, with `ahead` batches decoded in the background.

    The background thread ends with the iterator: when it is used up, closed, or dropped after an error.
    """
    if ahead < 1:
        raise UsageError(f"batches(ahead=) must be at least 1, got {ahead}. Write for example 2, the default.")

    def read(index: Tensor) -> SplitBatch:
        return index, split.images(index), split.labels[index.cpu()]

    if split.is_in_memory:
        # pixels in memory cost almost nothing to fetch, and torch in a second thread halves the speed of the first
        return (read(index) for index in order)
    return read_ahead(order, read, ahead)


def read_ahead(order: Iterable[Item], read: Callable[[Item], Returned], ahead: int) -> Generator[Returned, None, None]:
    """`read` of each item in `order`, up to `ahead` of them started before they are needed.

    One thread reads item after item, and ends with the iterator; threads that decode work inside `read`.
    """
    pool = ThreadPoolExecutor(1, "vitadel-batches")
    waiting: deque[Future[Returned]] = deque()
    try:
        for item in order:
            waiting.append(pool.submit(read, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
