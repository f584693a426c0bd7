"""Tensors inside tables and parts of a study, which are JSON."""

import base64
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitadel.runs.typed_json import to_json


def packed(values: Tensor) -> dict[str, object]:
    """A tensor of bytes as it is, any other in float32."""
    array = values if values.dtype == torch.uint8 else values.float()
    content: dict[str, object] = to_json(array.detach().cpu().numpy())
    return content


def unpacked(content: Any) -> Tensor:
    """The tensor that `packed` wrote."""
    flat = np.frombuffer(base64.b64decode(content["base64"]), dtype=content["dtype"])
    return torch.from_numpy(flat.reshape(content["shape"]).copy())
