"""CUDA graphs: a computation captured once and replayed with a single launch instead of hundreds.

A graph reads and writes fixed addresses: its inputs are copied to where it reads them, and its outputs must be copied
before it runs again.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from vitadel.core.buffers import restored_buffers

Tensors = dict[str, Tensor]
T = TypeVar("T")

# runs before a capture: compilers compile on first use too, forward and backward
_WARM_UPS = 3


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """A captured step; running it changes the tensors it was captured with, in place."""

    graph: torch.cuda.CUDAGraph

    @classmethod
    def capture(cls, step: Callable[[Tensors], Tensors], rows: Tensors) -> "CudaGraph":
        """Capture `step`, a function that does not modify `rows`; the capture does not modify them either."""
        warm_up(lambda: step(rows), times=2)
        graph = torch.cuda.CUDAGraph()
        with restore_generator_on_error(), torch.cuda.graph(graph):
            new = step(rows)
            for key, old in rows.items():
                if new[key] is not old:
                    old.copy_(new[key])
        return cls(graph)

    def run(self) -> None:
        self.graph.replay()


def warm_up(step: Callable[[], object], *, times: int) -> None:
    """Run a step on a side stream: what libraries initialize on first use cannot be captured."""
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(times):
            step()
    torch.cuda.current_stream().wait_stream(side_stream)


@contextmanager
def restore_generator_on_error() -> Iterator[None]:
    """After a failed capture, give the device's random generator a fresh state: it still considers itself captured.

    Otherwise the next `torch.rand(device="cuda")` anywhere in the program would raise.
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

    Batches of another shape are computed without a graph, and all batches if the function cannot be captured, as one
    that synchronizes with the device.
    """

    def __init__(self, forward: Callable[[Tensor], Tensor]) -> None:
        self._forward = self._graphed = forward
        self._shape: torch.Size | None = None

    def __call__(self, pixels: Tensor) -> Tensor:
        if self._shape is None:
            self._shape = pixels.shape
            self._graphed = _capture_or_fallback(self._forward, lambda: self._capture(pixels))
        return (self._graphed if pixels.shape == self._shape else self._forward)(pixels)

    def _capture(self, pixels: Tensor) -> Callable[[Tensor], Tensor]:
        def forward(pixels: Tensor) -> Tensor:  # given a module, torch would change that
            return self._forward(pixels)

        sample = pixels.detach().clone().requires_grad_()
        with torch.enable_grad():
            graphed = torch.cuda.make_graphed_callables(forward, (sample,), num_warmup_iters=_WARM_UPS)
        return cast("Callable[[Tensor], Tensor]", graphed)


class GraphedBackward:
    """A function of tensors that computes the gradients of the weights of `net`, captured with the first batch.

    The gradients are overwritten, not accumulated. The function returns scalars by name. Batches of another shape are
    computed without a graph, and all batches if the function cannot be captured.
    """

    def __init__(self, net: nn.Module, compute: Callable[..., Mapping[str, Tensor]]) -> None:
        self._net, self._compute = net, compute
        self._tried = False
        self._graph: _BackwardGraph | None = None

    def __call__(self, *tensors: Tensor) -> Mapping[str, Tensor]:
        if not self._tried:
            self._tried = True
            self._graph = _capture_or_fallback(None, lambda: _BackwardGraph.capture(self._net, self._compute, tensors))
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
        inputs = tuple(tensor.detach().clone() for tensor in tensors)
        graph = torch.cuda.CUDAGraph()
        try:
            with restored_buffers(net), _restored_rng():
                warm_up(lambda: compute(*inputs), times=_WARM_UPS)
            net.zero_grad()  # or gradients would be accumulated
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
def _restored_rng() -> Iterator[None]:
    rng = torch.cuda.get_rng_state()
    try:
        yield
    finally:
        torch.cuda.set_rng_state(rng)


def _capture_or_fallback(fallback: T, capture: Callable[[], T]) -> T:
    """What `capture` returns; `fallback`, with a warning, if it fails."""
    try:
        with restore_generator_on_error(), warnings.catch_warnings():
            # during a capture the weights are used on another stream, as intended
            warnings.filterwarnings("ignore", "The AccumulateGrad node's stream", UserWarning)
            return capture()
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        warnings.warn(
            f"passes could not be captured as a CUDA graph, so training is slower than it might be: {why}", stacklevel=2
        )
        return fallback
