"""The state of a training run in one file: whole or absent, and enough to go on bit for bit.

Nothing random is saved because nothing random is consumed: batches, augmentation, attacks and dropout are all drawn
from (seed, step), and the learning rate is a function of the step.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vitadel.core.errors import UsageError
from vitadel.core.files import write_whole
from vitadel.models import read_tensors, write_tensors
from vitadel.train.sharding import cut_like, fill, whole

_KEPT = 2


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands.

    `step` updates made; the `best` score on the hold-out so far, and the best `robust` accuracy; how often a broken
    loss sent it back; how many `real` and `synthetic` images it has seen; what it has cost in device hours and, where
    the hardware says, in joules.
    """

    step: int = 0
    best: float | None = None
    rollbacks: int = 0
    real: int = 0
    synthetic: int = 0
    device_hours: float = 0.0
    joules: float = 0.0
    robust: float | None = None


def write_state(
    folder: Path, progress: Progress, nets: Mapping[str, nn.Module], optimizer: Optimizer, *, writes: bool = True
) -> None:
    """Write the newest state, then drop all but the two newest; all processes call it, and one of them `writes`."""
    tensors = {f"{name}.{key}": value for name, net in nets.items() for key, value in net.state_dict().items()}
    state = optimizer.state_dict()
    numbers: dict[str, object] = {}
    for index, slots in state["state"].items():
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{slot}"] = value
            else:
                numbers[f"{index}.{slot}"] = value
    tensors = whole(tensors)
    if not writes:
        return
    about = {"progress": asdict(progress), "optimizer": numbers}
    path = folder / f"step-{progress.step:09d}.safetensors"
    write_whole(path, lambda beside: write_tensors(beside, tensors, {"vitadel.training": json.dumps(about)}))
    for old in _states(folder)[:-_KEPT]:
        old.unlink()


def read_state(folder: Path, nets: Mapping[str, nn.Module], optimizer: Optimizer) -> Progress | None:
    """Fill networks and optimizer from the newest state; None if there is none."""
    paths = _states(folder)
    if not paths:
        return None
    path = paths[-1]
    try:
        tensors, about = read_tensors(path)
        told = json.loads(about["vitadel.training"])
        progress = Progress(**told["progress"])
        _fill(tensors, told["optimizer"], nets, optimizer)
    except torch.OutOfMemoryError:
        raise
    except (UsageError, AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{path} is damaged ({error}). Delete it: the run then goes on from the checkpoint before it."
        ) from error
    return progress


def _fill(
    tensors: Mapping[str, Tensor], numbers: Mapping[str, object], nets: Mapping[str, nn.Module], optimizer: Optimizer
) -> None:
    for name, net in nets.items():
        own = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
        fill(net, own)
    state = optimizer.state_dict()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    slots: dict[int, dict[str, object]] = {}
    for key, value in tensors.items():
        kind, _, rest = key.partition(".")
        if kind == "optimizer":
            index, _, slot = rest.partition(".")
            slots.setdefault(int(index), {})[slot] = cut_like(value, parameters[int(index)])
    for key, number in numbers.items():
        index, _, slot = key.partition(".")
        slots.setdefault(int(index), {})[slot] = number
    optimizer.load_state_dict({"state": slots, "param_groups": state["param_groups"]})


def _states(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.safetensors"))
