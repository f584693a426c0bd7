"""Tensors inside the parts of a study, which are JSON: bytes, and floats of single precision."""

import base64
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def packed(values: Tensor) -> dict[str, object]:
    """A tensor of bytes as it is, any other in float32."""
    array = (values if values.dtype == torch.uint8 else values.float()).detach().cpu().contiguous().numpy()
    return {"dtype": str(array.dtype), "shape": list(array.shape), "base64": base64.b64encode(array.tobytes()).decode()}


def unpacked(told: object) -> Tensor:
    """The tensor that `packed` wrote."""
    assert isinstance(told, Mapping)
    flat = np.frombuffer(base64.b64decode(str(told["base64"])), dtype=str(told["dtype"]))
    return torch.from_numpy(flat.reshape(told["shape"]).copy())
