"""Batches read ahead of their use."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.data.split import Split

Batch = tuple[Tensor, Tensor, Tensor]
Asked = TypeVar("Asked")
Got = TypeVar("Got")


def batches(split: Split, order: Iterable[Tensor], *, ahead: int = 2) -> Generator[Batch, None, None]:
    """(rows, images, labels) for each list of rows in `order`, with `ahead` batches of files decoded in the background.

    The background thread ends with the iterator: when it is used up, closed, or dropped after an error.
    """
    if ahead < 1:
        raise UsageError(f"batches(ahead=) must be at least 1, got {ahead}. The default is 2.")

    def read(rows: Tensor) -> Batch:
        return rows, split.images(rows), split.labels[rows.cpu()]

    if split.is_resident:
        # pixels in memory cost next to nothing to fetch, and torch in a second thread halves the speed of the first
        return (read(rows) for rows in order)
    return read_ahead(order, read, ahead)


def read_ahead(order: Iterable[Asked], read: Callable[[Asked], Got], ahead: int) -> Generator[Got, None, None]:
    """`read` of each item in `order`, `ahead` of them begun before they are asked for.

    One thread reads item after item, and ends with the iterator; threads that decode work inside `read`.
    """
    pool = ThreadPoolExecutor(1, "vitadel-batches")
    waiting: deque[Future[Got]] = deque()
    try:
        for asked in order:
            waiting.append(pool.submit(read, asked))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
