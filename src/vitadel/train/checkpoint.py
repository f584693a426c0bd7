"""The state of a training run in one file: whole or absent, and enough to go on bit for bit.

Nothing random is saved because nothing random is consumed: batches, augmentation, attacks and dropout are all drawn
from (seed, step), and the learning rate is a function of the step.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from torch.optim import Optimizer

from vitadel.errors import UsageError
from vitadel.models import read_tensors, write_tensors
from vitadel.runs import write_whole

_KEPT = 2


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands: updates made, and the best score on the hold-out so far."""

    step: int = 0
    best: float | None = None


def write_state(folder: Path, progress: Progress, nets: Mapping[str, nn.Module], optimiser: Optimizer) -> None:
    """Write the newest state, then drop all but the two newest."""
    tensors = {f"{name}.{key}": value for name, net in nets.items() for key, value in net.state_dict().items()}
    state = optimiser.state_dict()
    numbers: dict[str, object] = {}
    for index, slots in state["state"].items():
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{index}.{slot}"] = value
            else:
                numbers[f"{index}.{slot}"] = value
    about = {"step": progress.step, "best": progress.best, "optimiser": numbers}
    path = folder / f"step-{progress.step:09d}.safetensors"
    write_whole(path, lambda beside: write_tensors(beside, tensors, {"vitadel.training": json.dumps(about)}))
    for old in _states(folder)[:-_KEPT]:
        old.unlink()


def read_state(folder: Path, nets: Mapping[str, nn.Module], optimiser: Optimizer) -> Progress:
    """Fill networks and optimiser from the newest state; the beginning if there is none."""
    paths = _states(folder)
    if not paths:
        return Progress()
    tensors, progress, numbers = _read(paths[-1])
    for name, net in nets.items():
        own = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
        net.load_state_dict(own)
    state = optimiser.state_dict()
    slots: dict[int, dict[str, object]] = {}
    for key, value in tensors.items():
        kind, _, rest = key.partition(".")
        if kind == "optimiser":
            index, _, slot = rest.partition(".")
            slots.setdefault(int(index), {})[slot] = value
    for key, number in numbers.items():
        index, _, slot = key.partition(".")
        slots.setdefault(int(index), {})[slot] = number
    optimiser.load_state_dict({"state": slots, "param_groups": state["param_groups"]})
    return progress


def _read(path: Path) -> tuple[dict[str, Tensor], Progress, dict[str, object]]:
    try:
        tensors, header = read_tensors(path)
        about = json.loads(header["vitadel.training"])
        return tensors, Progress(about["step"], about["best"]), about["optimiser"]
    except (UsageError, KeyError, ValueError) as error:
        raise UsageError(
            f"{path} is damaged ({error}). Delete it: the run then goes on from the checkpoint before it."
        ) from error


def _states(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.safetensors"))
