"""A polite end: the system asks with SIGTERM, and training answers between two updates."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignal:
    """Whether somebody has asked for the end."""

    def __init__(self) -> None:
        self.requested = False

    def ring(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


@contextmanager
def stop_on_sigterm() -> Iterator[StopSignal]:
    """A bell that SIGTERM rings; the handler of before is back afterwards. Only the main thread can listen."""
    stop_signal = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stop_signal
        return
    before = signal.signal(signal.SIGTERM, stop_signal.ring)
    try:
        yield stop_signal
    finally:
        signal.signal(signal.SIGTERM, before)
