"""A step recorded once as a CUDA graph and replayed: hundreds of small kernels for the price of one launch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

Rows = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """A recorded step; running it changes the tensors it was recorded with, in place."""

    graph: torch.cuda.CUDAGraph

    @classmethod
    def record(cls, step: Callable[[Rows], Rows], rows: Rows) -> "CudaGraph":
        """Record `step`, which must leave `rows` alone; recording runs nothing on them either."""
        warm_up(lambda: step(rows), times=2)
        graph = torch.cuda.CUDAGraph()
        with generator_survives(), torch.cuda.graph(graph):
            moved = step(rows)
            for key, old in rows.items():
                if moved[key] is not old:
                    old.copy_(moved[key])
        return cls(graph)

    def run(self) -> None:
        self.graph.replay()


def warm_up(step: Callable[[], object], *, times: int) -> None:
    """Run a step beside all else: libraries set themselves up on first use, which cannot be recorded."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(times):
            step()
    torch.cuda.current_stream().wait_stream(aside)


@contextmanager
def generator_survives() -> Iterator[None]:
    """A recording that fails leaves the device's random generator believing that it goes on: it gets a new state then.

    Without this, the next `torch.rand(device="cuda")` anywhere in the program would raise.
    """
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.get_state()
    try:
        yield
    except RuntimeError:
        fresh = torch.Generator(generator.device)
        fresh.set_state(before)
        generator.graphsafe_set_state(fresh.graphsafe_get_state())
        raise
