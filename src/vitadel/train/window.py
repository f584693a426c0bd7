"""Means over the updates since the last log line."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class Window:
    """Sums kept on the device until they are asked for: asking would make it wait."""

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._updates = 0
        self._images = 0
        self._started = time.perf_counter()
        self.latest: Mapping[str, float] = {}

    def add(self, images: int, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(value)) + value
        self._updates += 1
        self._images += images

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside does not count: a hold-out check is no training."""
        began = time.perf_counter()
        yield
        self._started += time.perf_counter() - began

    def finite(self) -> bool:
        return all(bool(total.isfinite().all()) for total in self._sums.values())

    def close(self) -> dict[str, float]:
        means = {name: round(float(total) / self._updates, 6) for name, total in self._sums.items()}
        rate = self._images / (time.perf_counter() - self._started)
        means["images_per_second"] = round(rate, 2)
        self._open()
        self.latest = means
        return means
