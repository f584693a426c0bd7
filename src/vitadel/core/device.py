"""The device of a model, and what manifests call it."""

import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's parameters; the CPU if it has none."""
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    if device.type == "meta":
        check_not_meta("weights of the model", *model.parameters())
    return device


def device_name() -> str:
    """The hardware that computes, as manifests record it."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"cpu, {torch.get_num_threads()} threads"


def check_not_meta(what: str, *tensors: Tensor) -> None:
    """Refuse tensors on the meta device, which have shapes and no values; `what` is what the error calls them."""
    if any(tensor.is_meta for tensor in tensors):
        raise UsageError(
            f"the {what} are on the meta device and have no values. Make them outside of torch.device('meta')."
        )


def is_compiled(module: nn.Module) -> bool:
    """Whether calls of this module run compiled code."""
    # by name, because isinstance would need an import of the whole compiler
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
