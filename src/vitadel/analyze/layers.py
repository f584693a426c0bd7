"""The layers of a model, and their outputs in a forward pass."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeVar

from torch import Tensor, nn

from vitadel.core.device import is_compiled
from vitadel.core.errors import UsageError
from vitadel.models import Layer, Model, family_of

Read = TypeVar("Read")


def layers_of(model: nn.Module) -> tuple[Model, Sequence[Layer]]:
    """A model and its layers; raises a UsageError if they are unknown or cannot be hooked."""
    if not isinstance(model, Model):
        raise UsageError(
            f"this study reads the outputs of a model's layers, and this {type(model).__name__} does not name them. "
            "Load it with vitadel.models.load, or give its network to vitadel.models.wrap."
        )
    if any(is_compiled(module) for module in model.modules()):
        raise UsageError("the model is compiled, and compiled code does not see hooks. Study the model itself.")
    layers = family_of(model.net).layers(model.net)
    if not layers:
        raise UsageError(
            f"{type(model.net).__name__} has no layers Vitadel supports. Use a ViT, DeiT, CaiT, XCiT, Swin, "
            "LeViT, ResNet or WideResNet."
        )
    return model, layers


def axis_label(name: str) -> str:
    """A short name of a layer for the axes of figures: blocks are named by their number."""
    return name.replace("class_blocks.", "class ").removeprefix("blocks.")


@contextmanager
def outputs_of(modules: Iterable[nn.Module], read: Callable[[int, Tensor], Read]) -> Iterator[dict[int, Read]]:
    """Inside, a dict from the number of each module to `read(number, output)` in the latest forward pass."""
    results: dict[int, Read] = {}

    def keep(number: int, module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        results[number] = read(number, out)

    with ExitStack() as stack:
        for number, module in enumerate(modules):
            stack.callback(module.register_forward_hook(partial(keep, number)).remove)
        yield results
