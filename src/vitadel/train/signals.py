"""A polite end: the system asks with SIGTERM, and training answers between two updates."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Bell:
    """Whether somebody has asked for the end."""

    def __init__(self) -> None:
        self.rung = False

    def ring(self, number: int, frame: FrameType | None) -> None:
        self.rung = True


@contextmanager
def listening() -> Iterator[Bell]:
    """A bell that SIGTERM rings; the handler of before is back afterwards. Only the main thread can listen."""
    bell = Bell()
    if threading.current_thread() is not threading.main_thread():
        yield bell
        return
    before = signal.signal(signal.SIGTERM, bell.ring)
    try:
        yield bell
    finally:
        signal.signal(signal.SIGTERM, before)
