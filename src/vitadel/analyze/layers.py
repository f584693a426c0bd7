"""The layers of a model as a study meets them, and what they give in a forward pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.models import Layer, Model, family_of
from vitadel.models.taps import is_compiled

Seen = TypeVar("Seen")


def layers_of(model: nn.Module) -> tuple[Model, Sequence[Layer]]:
    """A model and its layers; refused are models that cannot be looked into."""
    if not isinstance(model, Model):
        raise UsageError(
            f"this study looks into a model's layers, and this {type(model).__name__} does not name them. "
            "Load it with vitadel.models.load, or give its network to vitadel.models.wrap."
        )
    if any(is_compiled(module) for module in model.modules()):
        raise UsageError("the model is compiled, and compiled code does not see hooks. Study the model itself.")
    layers = family_of(model.net).layers(model.net)
    if not layers:
        raise UsageError(
            f"{type(model.net).__name__} has no layers Vitadel knows. This study wants a ViT, DeiT, CaiT, XCiT, Swin, "
            "LeViT, ResNet or WideResNet."
        )
    return model, layers


def short(name: str) -> str:
    """The name of a layer where there is little room: blocks go by their number."""
    return name.replace("class_blocks.", "class ").removeprefix("blocks.")


@contextmanager
def watched(layers: Sequence[Layer], look: Callable[[int, Tensor], Seen]) -> Iterator[dict[int, Seen]]:
    """Inside, what `look` makes of the number and the output of every layer, in the latest forward pass."""
    seen: dict[int, Seen] = {}

    def at(place: int) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
            seen[place] = look(place, out)

        return hook

    handles = [layer.module.register_forward_hook(at(place)) for place, layer in enumerate(layers)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
