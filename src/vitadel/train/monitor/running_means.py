"""Means over the updates since the last log line."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class RunningMeans:
    """Sums kept on the device until they are asked for: asking would make it wait."""

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._updates: Counter[str] = Counter()
        self._images = 0
        self._started = time.perf_counter()
        self.latest: Mapping[str, float] = {}

    def add(self, images: int, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(value)) + value
        self._updates.update(values.keys())  # by name: not every update has something to say about everything
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
        # by digits that count, because a factor of attention may be 1e-7
        means = {name: float(f"{float(total) / self._updates[name]:.7g}") for name, total in self._sums.items()}
        rate = self._images / (time.perf_counter() - self._started)
        means["images_per_second"] = round(rate, 2)
        self._open()
        self.latest = means
        return means
