"""Buffers of a model, such as the running statistics of BatchNorm: saved, compared and restored."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

# larger buffers are not copied for every batch of an attack: a bank of features would cost too much
MOST_BYTES = 1 << 22


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
    def of(cls, model: nn.Module, *, most_bytes: int | None = MOST_BYTES) -> "SavedBuffers":
        """Copy the buffers of a model that have at most `most_bytes` (None for all)."""
        saved = cls()
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    saved.owners.append((module, name, buffer))
                    if id(buffer) not in saved.copies and _can_be_copied(buffer, most_bytes):
                        saved.copies[id(buffer)] = buffer, buffer.detach().clone()
        return saved

    def changed(self) -> list[str]:
        """The buffers that have changed, as module type and buffer name."""
        names = []
        for module, name, buffer in self.owners:
            pair = self.copies.get(id(buffer))
            if module._buffers.get(name) is not buffer or (pair is not None and not torch.equal(*pair)):
                names.append(f"{type(module).__name__}.{name}")
        return names

    @torch.no_grad()
    def restore(self) -> None:
        """Give the buffers the values they had when this was made."""
        for module, name, buffer in self.owners:
            now = module._buffers.get(name)
            # a buffer of another shape is not state of the model but was computed for this input
            if now is not buffer and now is not None and _same_layout(now, buffer):
                module._buffers[name] = buffer
        pairs = list(self.copies.values())
        # checking for changes would synchronize with the GPU; writing the same values again is faster there
        changed = [pair for pair in pairs if not pair[0].is_cpu or not torch.equal(*pair)]
        if changed:
            # through `.data`, because a caller's graph may need these buffers, and finds in them what it saved
            torch._foreach_copy_([buffer.data for buffer, _ in changed], [copy for _, copy in changed])


@contextmanager
def restored_buffers(model: nn.Module) -> Iterator[None]:
    """Context manager: all buffers have their values again after it."""
    saved = SavedBuffers.of(model, most_bytes=None)
    try:
        yield
    finally:
        saved.restore()


def _can_be_copied(buffer: Tensor, most_bytes: int | None) -> bool:
    if buffer.layout is not torch.strided or buffer.is_meta or buffer.is_quantized or buffer.is_inference():
        return False
    if most_bytes is not None and buffer.nbytes > most_bytes:
        return False
    return all(step or size < 2 for step, size in zip(buffer.stride(), buffer.shape, strict=True))  # not expanded


def _same_layout(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
