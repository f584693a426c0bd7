"""Where a model computes, and how to call it in a record."""

import torch
from torch import nn

from vitadel.core.errors import UsageError


def device_of(model: nn.Module) -> torch.device:
    """Where a model lives; one without weights works anywhere."""
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    if device.type == "meta":
        refuse_meta(model)
    return device


def device_name() -> str:
    """What the work runs on, for the manifest."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"cpu, {torch.get_num_threads()} threads"


def refuse_meta(model: object) -> None:
    """Refuse a model with weights on the meta device: they have shapes and no values, so it cannot be run."""
    if isinstance(model, nn.Module) and any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise UsageError(
            "the model has weights on the meta device, which have no values. Make it outside torch.device('meta')."
        )


def is_compiled(module: nn.Module) -> bool:
    """Whether calls of this module run compiled code."""
    # isinstance would import the whole compiler
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
