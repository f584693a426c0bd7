"""Isolation of a model and of random generators: everything is restored after an attack."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from vitadel.core.device import refuse_meta

# larger buffers are not saved: copying a bank of features for every batch would cost too much
_KEPT_BYTES = 1 << 22


@contextmanager
def eval_without_weight_gradients(model: object) -> Iterator[None]:
    """Context manager: evaluation mode and no weight gradients inside; modes, flags and buffers restored after.

    Modes are restored per module, since single layers such as BatchNorm may be in evaluation mode. Buffers that a
    forward pass changes in evaluation mode are restored too, except those of more than 4 MB and those that were
    replaced by others of another shape.
    """
    if not isinstance(model, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    buffers = SavedBuffers.of(model)
    try:
        model.eval()
        for parameter in trainable:
            parameter.requires_grad_(False)
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter in trainable:
            parameter.requires_grad_(True)
        buffers.restore()


@contextmanager
def isolated(model: object, seed: int, device: torch.device) -> Iterator[None]:
    """Context manager: inside, the model is frozen and random generators start from `seed`; all are restored after.

    The generators are torch's on the CPU and on `device`, Python's `random` and numpy's global one.
    """
    refuse_meta(model)
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices),
        _python_and_numpy(seed),
        torch.inference_mode(False),
        eval_without_weight_gradients(model),
    ):
        # `torch.manual_seed` would reach every device there is, and fork_rng restores only these
        torch.default_generator.manual_seed(seed)
        for one in devices:
            torch.cuda.default_generators[one.index or 0].manual_seed(seed)
        yield


@contextmanager
def _python_and_numpy(seed: int) -> Iterator[None]:
    of_python, of_numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


@dataclass(slots=True)
class SavedBuffers:
    """The buffers of a model and copies of their values.

    Version counters do not show whether a buffer has changed: torch's batch normalization writes to running means
    without counting.
    """

    owners: list[tuple[nn.Module, str, Tensor]] = field(default_factory=list)
    copies: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    @torch.no_grad()
    def of(cls, model: nn.Module) -> "SavedBuffers":
        kept = cls()
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    kept.owners.append((module, name, buffer))
                    if id(buffer) not in kept.copies and _can_be_kept(buffer):
                        kept.copies[id(buffer)] = buffer, buffer.detach().clone()
        return kept

    def changed(self) -> list[str]:
        """The buffers that have changed, as module type and buffer name."""
        names = []
        for module, name, buffer in self.owners:
            kept = self.copies.get(id(buffer))
            if module._buffers.get(name) is not buffer or (kept is not None and not torch.equal(*kept)):
                names.append(f"{type(module).__name__}.{name}")
        return names

    @torch.no_grad()
    def restore(self) -> None:
        """Give the buffers the values they had when this was made."""
        for module, name, buffer in self.owners:
            now = module._buffers.get(name)
            # one of another shape is not state of the model but computed for this input
            if now is not buffer and now is not None and _same_layout(now, buffer):
                module._buffers[name] = buffer
        pairs = list(self.copies.values())
        # checking for changes would synchronize with the GPU; writing the same values again is faster there
        changed = [pair for pair in pairs if not pair[0].is_cpu or not torch.equal(*pair)]
        if changed:
            # through `.data`, because a caller's graph may need these buffers, and finds in them what it saved
            torch._foreach_copy_([buffer.data for buffer, _ in changed], [copy for _, copy in changed])


def _can_be_kept(buffer: Tensor) -> bool:
    plain = buffer.layout is torch.strided and not (buffer.is_meta or buffer.is_quantized or buffer.is_inference())
    if not plain or buffer.nbytes > _KEPT_BYTES:
        return False
    return all(step or size < 2 for step, size in zip(buffer.stride(), buffer.shape, strict=True))  # not expanded


def _same_layout(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
