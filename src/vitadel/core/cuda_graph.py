"""CUDA graphs: a computation captured once and replayed, hundreds of small kernels for the price of one launch.

A graph holds addresses, not values: what it reads is copied to where it read before, and what it leaves must be taken
before it runs again.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

Rows = dict[str, Tensor]
T = TypeVar("T")

# runs before a capture: compilers compile on first use too, forward and backward
_WARM_UPS = 3


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


class GraphedForward:
    """A function of pixels and its backward pass to them, captured with the first batch.

    Batches of another shape, and a function that cannot be captured because it synchronizes with the device, are
    computed without a graph.
    """

    def __init__(self, forward: Callable[[Tensor], Tensor]) -> None:
        self._forward = self._graphed = forward
        self._shape: torch.Size | None = None

    def __call__(self, pixels: Tensor) -> Tensor:
        if self._shape is None:
            self._shape = pixels.shape
            self._graphed = _captured_or(self._forward, lambda: self._capture(pixels))
        return (self._graphed if pixels.shape == self._shape else self._forward)(pixels)

    def _capture(self, pixels: Tensor) -> Callable[[Tensor], Tensor]:
        def forward(pixels: Tensor) -> Tensor:  # given a module, torch would change that
            return self._forward(pixels)

        sample = pixels.detach().clone().requires_grad_()
        with torch.enable_grad():
            graphed = torch.cuda.make_graphed_callables(forward, (sample,), num_warmup_iters=_WARM_UPS)
        return cast("Callable[[Tensor], Tensor]", graphed)


class GraphedBackward:
    """A function of tensors that leaves gradients on the weights of `net`, captured with the first batch.

    The gradients are written, not added to. What the function returns are scalars by name. Other shapes, and a function
    that cannot be captured, are computed without a graph.
    """

    def __init__(self, net: nn.Module, compute: Callable[..., Mapping[str, Tensor]]) -> None:
        self._net, self._compute = net, compute
        self._tried = False
        self._graph: _BackwardGraph | None = None

    def __call__(self, *tensors: Tensor) -> Mapping[str, Tensor]:
        if not self._tried:
            self._tried = True
            self._graph = _captured_or(None, lambda: _BackwardGraph.capture(self._net, self._compute, tensors))
        if self._graph is None or not self._graph.fits(tensors):
            return self._compute(*tensors)
        return self._graph.run(tensors)


@dataclass(frozen=True, slots=True)
class _BackwardGraph:
    """A graph, the tensors it reads, the gradients it writes and the scalars it returns."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    gradients: list[tuple[nn.Parameter, Tensor | None]]
    scalars: Mapping[str, Tensor]

    @classmethod
    def capture(
        cls, net: nn.Module, compute: Callable[..., Mapping[str, Tensor]], tensors: Sequence[Tensor]
    ) -> "_BackwardGraph":
        inputs = tuple(each.detach().clone() for each in tensors)
        graph = torch.cuda.CUDAGraph()
        try:
            with _buffers_and_rng_restored(net):
                warm_up(lambda: compute(*inputs), times=_WARM_UPS)
            net.zero_grad()  # gradients that were there would be added to
            with torch.cuda.graph(graph):
                scalars = compute(*inputs)
            return cls(graph, inputs, [(weight, weight.grad) for weight in net.parameters()], scalars)
        finally:
            net.zero_grad()

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        return all(own.shape == given.shape for own, given in zip(self.inputs, tensors, strict=True))

    def run(self, tensors: Sequence[Tensor]) -> Mapping[str, Tensor]:
        for own, given in zip(self.inputs, tensors, strict=True):
            own.copy_(given)
        self.graph.replay()
        for weight, gradient in self.gradients:
            weight.grad = gradient
        return {name: value.clone() for name, value in self.scalars.items()}


@contextmanager
def _buffers_and_rng_restored(net: nn.Module) -> Iterator[None]:
    buffers = [(buffer, buffer.clone()) for buffer in net.buffers()]
    rng = torch.cuda.get_rng_state()
    try:
        yield
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
        torch.cuda.set_rng_state(rng)


def _captured_or(otherwise: T, capture: Callable[[], T]) -> T:
    """What `capture` returns; `otherwise`, with a warning, if it fails."""
    try:
        with generator_survives(), warnings.catch_warnings():
            # weights meet another stream for the length of a capture, as they should
            warnings.filterwarnings("ignore", "The AccumulateGrad node's stream", UserWarning)
            return capture()
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        warnings.warn(
            f"passes could not be captured as a CUDA graph, so training is slower than it might be: {why}", stacklevel=2
        )
        return otherwise
