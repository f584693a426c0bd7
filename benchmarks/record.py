"""Shared by all benchmarks: images, hardware and versions, and the JSON line of a record."""

import importlib.metadata
import json
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitadel import data, models, runs
from vitadel.core.stats import accuracy


def load(
    model: str, spec: str, n: int, device: torch.device, split_name: str = "test", first: int = 0
) -> tuple[nn.Module, Tensor, Tensor]:
    """A frozen model on `device`, and n images of a split, from `first` on, with labels, on the CPU."""
    net = models.load(model).eval().requires_grad_(False).to(device)
    assert net.spec is not None
    squash = data.parse_preprocess(f"squash:{net.spec.image_size}")
    split = data.load(spec, preprocess=squash).split(split_name)
    index = torch.arange(first, min(first + n, len(split)))
    return net, split.images(index), split.labels[index]


def hardware(device: torch.device) -> dict[str, object]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {"device": name, "threads": torch.get_num_threads(), "cores": os.cpu_count()}


def commit() -> str:
    """The commit that was measured; a copy without its history is given by the environment."""
    known = os.environ.get("VITADEL_COMMIT") or runs.environment()["commit"]
    return str(known)[:12] if known else "unknown"


def versions(*packages: str) -> dict[str, str]:
    known = {"vitadel": commit(), "python": platform.python_version(), "torch": torch.__version__}
    for package in packages:
        try:
            known[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # unpacked without its metadata
            known[package] = "unknown"
    return known


def clock(device: torch.device) -> float:
    """The time, after the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def accuracy_record(correct: int, n: int) -> dict[str, float]:
    """An accuracy and its interval."""
    one = accuracy(correct, n)
    return {"accuracy": round(one.accuracy, 4), "low": round(one.low, 4), "high": round(one.high, 4)}


def pack_bits(mask: Tensor) -> str:
    """One bit per image, the first image first, in hexadecimal."""
    return np.packbits(mask.numpy()).tobytes().hex()


def unpack_bits(text: str, n: int) -> Tensor:
    """The mask of n images that `pack_bits` wrote."""
    return torch.from_numpy(np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=n)).bool()


def write_record(result: dict[str, object], out: Path | None) -> None:
    """One JSON line on standard output, and appended to the file of records."""
    line = json.dumps({"at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"), **result})
    sys.stdout.write(line + "\n")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a") as handle:
            handle.write(line + "\n")
