"""Checkpoints of a training: one file each, written atomically, from which it resumes bit for bit.

They contain no random state: batches, augmentation, attacks and dropout all depend on (seed, step), and the
learning rate is a function of the step.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vitadel.core.errors import UsageError
from vitadel.core.files import parse_json, write_atomically
from vitadel.models import Model, read_tensors, save, write_tensors
from vitadel.runs.typed_json import from_json
from vitadel.train.distributed import full_tensors, load_full_tensors, shard_like

_KEPT = 2


@dataclass(frozen=True, slots=True)
class TrainState:
    """Progress of a training run, saved with weights and optimizer.

    Args:
        step: Updates completed.
        best: The best validation score so far.
        rollbacks: Number of rollbacks after a non-finite loss.
        real: Real images seen.
        synthetic: Synthetic images seen.
        device_hours: Cost so far in hours of all devices.
        joules: Energy used so far, where the hardware reports it.
        robust: The best robust accuracy so far.
        unlogged: Sums for the means in the next line of the log, and their numbers of updates.
    """

    step: int = 0
    best: float | None = None
    rollbacks: int = 0
    real: int = 0
    synthetic: int = 0
    device_hours: float = 0.0
    joules: float = 0.0
    robust: float | None = None
    unlogged: Mapping[str, Sequence[float]] = field(default_factory=dict)


def _read_state(progress: object) -> TrainState:
    """The state in a checkpoint; raises a UsageError or ValueError if no training wrote it."""
    state = from_json(TrainState, progress, "its progress", "")
    if min(state.step, state.rollbacks, state.real, state.synthetic) < 0:
        raise ValueError("its progress has a negative count")
    if any(len(sums) != 2 or sums[1] < 1 for sums in state.unlogged.values()):
        raise ValueError("its progress has means of no updates")
    return state


@dataclass(slots=True)
class Checkpoints:
    """The checkpoints of a run; all processes call the methods, one of them `writes`.

    Args:
        folder: The folder of the files.
        nets: The networks to save, by name: the model, and averaged weights if there are any.
        optimizer: The optimizer, saved with them.
        writes: Whether this process writes.
    """

    folder: Path
    nets: Mapping[str, nn.Module]
    optimizer: Optimizer
    writes: bool

    def save(self, state: TrainState) -> None:
        """Write the newest checkpoint, then delete all but the two newest."""
        tensors = {f"{name}.{key}": value for name, net in self.nets.items() for key, value in net.state_dict().items()}
        numbers: dict[str, object] = {}
        for index, slots in self.optimizer.state_dict()["state"].items():
            for slot, value in slots.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{index}.{slot}"] = value
                else:
                    numbers[f"{index}.{slot}"] = value
        tensors = full_tensors(tensors)
        if not self.writes:
            return
        about = {"progress": asdict(state), "optimizer": numbers}
        path = self.folder / f"step-{state.step:09d}.safetensors"
        write_atomically(
            path, lambda temporary: write_tensors(temporary, tensors, {"vitadel.training": json.dumps(about)})
        )
        for old in self._paths()[:-_KEPT]:
            old.unlink()

    def load(self) -> TrainState | None:
        """Load the newest checkpoint into networks and optimizer; None if there is none.

        Raises:
            UsageError: If it is damaged.
        """
        paths = self._paths()
        if not paths:
            return None
        path = paths[-1]
        try:
            tensors, about = read_tensors(path)
            content: Any = parse_json(about["vitadel.training"])
            state = _read_state(content["progress"])
            self._fill(tensors, content["optimizer"])
        except torch.OutOfMemoryError:
            raise
        except (UsageError, AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            damage = str(error).rstrip(". ")
            raise UsageError(
                f"{path} is damaged ({damage}). Delete it: the run then resumes from the checkpoint before it."
            ) from error
        return state

    def check_best_exists(self, state: TrainState) -> None:
        """Raise if the file of the best weights is missing; later weights would wrongly become the best."""
        best = self.folder / "best.safetensors"
        if state.best is not None and not best.exists():
            raise UsageError(
                f"{best} is missing, the weights with the best hold-out score so far ({state.best:.4g}). Restore "
                f"it, or delete {self.folder}/step-*.safetensors and the same command trains from the start."
            )

    def save_model(self, name: str, model: Model, about: Mapping[str, str] | None = None) -> None:
        """Write a model only, such as `best` or `final`."""
        tensors = full_tensors(model.net.state_dict())
        if self.writes:
            path = self.folder / f"{name}.safetensors"
            write_atomically(path, lambda temporary: save(model, temporary, about, tensors=tensors))

    def _fill(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, object]) -> None:
        for name, net in self.nets.items():
            own = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
            load_full_tensors(net, own)
        groups = self.optimizer.state_dict()["param_groups"]
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        slots: dict[int, dict[str, object]] = {}
        for key, value in tensors.items():
            kind, _, rest = key.partition(".")
            if kind == "optimizer":
                index, _, slot = rest.partition(".")
                slots.setdefault(int(index), {})[slot] = shard_like(value, parameters[int(index)])
        for key, number in numbers.items():
            index, _, slot = key.partition(".")
            slots.setdefault(int(index), {})[slot] = number
        self.optimizer.load_state_dict({"state": slots, "param_groups": groups})

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.safetensors"))
