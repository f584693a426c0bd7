"""Passes recorded once as CUDA graphs and replayed: a small network computes faster than it can be told what to do.

A recording knows addresses, not values: what it reads is copied to where it read before, and what it leaves must be
taken before it runs again. It is of one shape; batches of another go the ordinary way, as does all of a network that
cannot be recorded because it asks the device for numbers.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from vitadel.core.cuda_graph import generator_survives, warm_up
from vitadel.objectives import Examples

Answers = Callable[[Tensor], Tensor]
Told = Mapping[str, Tensor]
Learns = Callable[[Examples], Told]
T = TypeVar("T")

# compilers compile on first use too, forward and back
_WARM_UPS = 3


class RecordedAnswers:
    """A function of pixels and its way back to them, recorded with the first batch."""

    def __init__(self, answer: Answers) -> None:
        self._answer = answer
        self._shape: torch.Size | None = None
        self._recorded = answer

    def __call__(self, pixels: Tensor) -> Tensor:
        if self._shape is None:
            self._shape = pixels.shape
            self._recorded = _or_else(lambda: self._record(pixels), self._answer)
        return (self._recorded if pixels.shape == self._shape else self._answer)(pixels)

    def _record(self, pixels: Tensor) -> Answers:
        def answer(pixels: Tensor) -> Tensor:  # given a module, torch would change that
            return self._answer(pixels)

        sample = pixels.detach().clone().requires_grad_()
        with torch.enable_grad():
            recorded = torch.cuda.make_graphed_callables(answer, (sample,), num_warmup_iters=_WARM_UPS)
        return cast(Answers, recorded)


class RecordedLoss:
    """What `learns` does, recorded with the first batch: a loss, its gradients on the weights of `net`, some numbers.

    Gradients are written, not added to.
    """

    def __init__(self, net: nn.Module, learns: Learns) -> None:
        self._net, self._learns = net, learns
        self._tried = False
        self._recording: _Recording | None = None

    def __call__(self, examples: Examples) -> Told:
        if not self._tried:
            self._tried = True
            self._recording = _or_else(lambda: _Recording.of(self._net, self._learns, examples), None)
        if self._recording is None or not self._recording.fits(examples):
            return self._learns(examples)
        return self._recording.run(examples)


@dataclass(frozen=True, slots=True)
class _Recording:
    """A graph, what it reads, the gradients it leaves and the numbers it tells."""

    graph: torch.cuda.CUDAGraph
    reads: tuple[Tensor, ...]
    leaves: list[tuple[nn.Parameter, Tensor | None]]
    tells: Told

    @classmethod
    def of(cls, net: nn.Module, learns: Learns, examples: Examples) -> "_Recording":
        reads = tuple(each.detach().clone() for each in _tensors(examples))
        graph = torch.cuda.CUDAGraph()
        try:
            with _as_it_was(net):
                warm_up(lambda: learns(Examples(*reads)), times=_WARM_UPS)
            net.zero_grad()  # gradients that were there would be added to
            with torch.cuda.graph(graph):
                tells = learns(Examples(*reads))
            return cls(graph, reads, [(weight, weight.grad) for weight in net.parameters()], tells)
        finally:
            net.zero_grad()

    def fits(self, examples: Examples) -> bool:
        return all(own.shape == given.shape for own, given in zip(self.reads, _tensors(examples), strict=True))

    def run(self, examples: Examples) -> Told:
        for own, given in zip(self.reads, _tensors(examples), strict=True):
            own.copy_(given)
        self.graph.replay()
        for weight, gradient in self.leaves:
            weight.grad = gradient
        return {name: value.clone() for name, value in self.tells.items()}


def _tensors(examples: Examples) -> tuple[Tensor, Tensor, Tensor]:
    return examples.x, examples.y, examples.x_adv


@contextmanager
def _as_it_was(net: nn.Module) -> Iterator[None]:
    """Running statistics and the device's random numbers end where they began."""
    buffers = [(buffer, buffer.clone()) for buffer in net.buffers()]
    numbers = torch.cuda.get_rng_state()
    try:
        yield
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
        torch.cuda.set_rng_state(numbers)


def _or_else(record: Callable[[], T], otherwise: T) -> T:
    """What `record` gives; `otherwise`, with a word about it, if it cannot be done."""
    try:
        with generator_survives(), warnings.catch_warnings():
            # weights meet another stream for the length of a recording, as they should
            warnings.filterwarnings("ignore", "The AccumulateGrad node's stream", UserWarning)
            return record()
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        warnings.warn(f"passes could not be recorded, so training is slower than it might be: {why}", stacklevel=2)
        return otherwise
