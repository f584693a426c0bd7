"""Batches read ahead of their use."""

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from vitadel.data.split import Split
from vitadel.errors import UsageError

Batch = tuple[Tensor, Tensor, Tensor]


def batches(split: Split, order: Iterable[Tensor], *, ahead: int = 2) -> Generator[Batch, None, None]:
    """(rows, images, labels) for each list of rows in `order`, with `ahead` batches of files decoded in the background.

    The background thread ends with the iterator: when it is used up, closed, or dropped after an error.
    """
    if ahead < 1:
        raise UsageError(f"batches(ahead=) must be at least 1, got {ahead}. The default is 2.")
    return _read_in_turn(split, order) if split.is_resident else _read_ahead(split, order, ahead)


def _read_in_turn(split: Split, order: Iterable[Tensor]) -> Generator[Batch, None, None]:
    """Pixels in memory cost next to nothing to fetch, and torch in a second thread halves the speed of the first."""
    for rows in order:
        yield rows, split.images(rows), split.labels[rows.cpu()]


def _read_ahead(split: Split, order: Iterable[Tensor], ahead: int) -> Generator[Batch, None, None]:
    # one thread reads batch after batch; the threads that decode work inside `images`
    pool = ThreadPoolExecutor(1, "vitadel-batches")
    waiting: deque[tuple[Tensor, Future[Tensor]]] = deque()
    try:
        for rows in order:
            waiting.append((rows, pool.submit(split.images, rows)))
            if len(waiting) > ahead:
                yield _first(split, waiting)
        while waiting:
            yield _first(split, waiting)
    finally:
        pool.shutdown(cancel_futures=True)


def _first(split: Split, waiting: deque[tuple[Tensor, Future[Tensor]]]) -> Batch:
    rows, images = waiting.popleft()
    x = images.result()
    return rows, x, split.labels[rows.cpu()]
