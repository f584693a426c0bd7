"""Row numbers that are asked for, checked before anything is read."""

import torch
from torch import Tensor

from vitadel.core.errors import UsageError


def checked_rows(rows: Tensor, count: int, whose: str, hint: str = "") -> Tensor:
    """The rows on the CPU, if they are row numbers of something that has `count`."""
    rows = rows.cpu()
    if rows.dtype != torch.int64 or rows.dim() != 1:
        raise UsageError(
            f"rows must be a list of int64 numbers, got {rows.dtype} of shape {tuple(rows.shape)}. "
            "Write torch.tensor([3, 5])."
        )
    if len(rows) and not (rows.min() >= 0 and rows.max() < count):
        raise UsageError(f"{whose} has rows 0 to {count - 1}, got {int(rows.min())} to {int(rows.max())}.{hint}")
    return rows
