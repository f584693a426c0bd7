"""Checkpoints of a training: one file each, written atomically, from which it resumes bit for bit.

They contain no random state: batches, augmentation, attacks and dropout all depend on (seed, step), and the
learning rate is a function of the step.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from vitadel.core.errors import UsageError, short_reason
from vitadel.core.files import parse_json, write_atomically
from vitadel.core.numeric import CountOrZero, NonNegative, Probability, Range, check_number, check_ranges
from vitadel.core.oom import is_out_of_memory
from vitadel.models import Model, read_tensors, save, write_tensors
from vitadel.runs.typed_json import from_json
from vitadel.train.distributed import full_tensors, load_full_tensors, shard_like

_KEPT = 2
_KEY = "vitadel.training"  # of the header
# what the optimizers of `train.optim` keep for a weight
_SLOTS = {"AdamW": {"step", "exp_avg", "exp_avg_sq"}, "Lion": {"exp_avg"}, "SGD": {"momentum_buffer"}}
# a score of a validation, and a sum of values that are logged
_Float = Annotated[float, Range(ge=-3e38, le=3e38)]
# millions of images for thousands of epochs
_Images = Annotated[int, Range(ge=0, le=2**53)]


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

    step: CountOrZero = 0
    best: _Float | None = None
    rollbacks: CountOrZero = 0
    real: _Images = 0
    synthetic: _Images = 0
    device_hours: NonNegative = 0.0
    joules: NonNegative = 0.0
    robust: Probability | None = None
    unlogged: Mapping[str, tuple[float, int]] = field(default_factory=dict)


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
        for index, slots in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{slot}": value for slot, value in slots.items()}
        tensors = full_tensors(tensors)
        if not self.writes:
            return
        about = {_KEY: json.dumps({"progress": asdict(state)})}
        write_atomically(_path(self.folder, state.step), lambda temporary: write_tensors(temporary, tensors, about))
        for old in self._paths()[:-_KEPT]:
            old.unlink()

    def load(self, total_steps: int) -> TrainState | None:
        """Load the newest checkpoint into networks and optimizer; None if there is none.

        Args:
            total_steps: The updates of the whole training; no checkpoint has more.

        Raises:
            UsageError: If it is damaged.
        """
        paths = self._paths()
        if not paths:
            return None
        path = paths[-1]
        try:
            tensors, about = read_tensors(path)
            state = _read_state(about[_KEY], path, total_steps)
            self._fill(tensors, state.step)
        except (UsageError, AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            raise UsageError(
                f"{path} is damaged ({short_reason(error)}). Delete it: the run then resumes from the checkpoint "
                "before it."
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

    def _fill(self, tensors: Mapping[str, Tensor], step: int) -> None:
        for name, net in self.nets.items():
            own = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
            load_full_tensors(net, own)
        groups = self.optimizer.state_dict()["param_groups"]
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            kind, _, rest = key.partition(".")
            if kind == "optimizer":
                index, _, slot = rest.partition(".")
                state.setdefault(int(index), {})[slot] = value
        wanted = _SLOTS.get(type(getattr(self.optimizer, "optimizer", self.optimizer)).__name__)
        for number, slots in state.items():
            if number not in range(len(parameters)):
                raise ValueError(f"the optimizer has a weight {number}, and the network {len(parameters)}")
            _check_slots(number, slots, wanted, parameters[number], step)
            state[number] = {slot: shard_like(value, parameters[number]) for slot, value in slots.items()}
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.safetensors"))


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}.safetensors"


def _read_state(text: str, path: Path, total_steps: int) -> TrainState:
    """The state in the header of a file that may be forged; its numbers decide how much is computed."""
    content: Any = parse_json(text)
    state = from_json(TrainState, content["progress"], "its header", "")
    check_ranges(state)
    check_number("its step", Annotated[int, Range(ge=0, le=total_steps)], state.step)
    for name, (total, updates) in state.unlogged.items():
        check_number(f"unlogged.{name}", _Float, total)
        check_number(f"the updates of unlogged.{name}", Annotated[int, Range(ge=1, le=max(1, state.step))], updates)
    if path != _path(path.parent, state.step):
        raise ValueError(f"it is of step {state.step}")
    return state


def _check_slots(
    number: int, slots: Mapping[str, Tensor], wanted: Collection[str] | None, parameter: Tensor, step: int
) -> None:
    """Refuse what an optimizer would fail on later: tensors missing, or unlike their weight."""
    if wanted is not None and slots.keys() != wanted:
        raise ValueError(f"the optimizer has {sorted(slots)} of weight {number}, not {sorted(wanted)}")
    for slot, value in slots.items():
        shape = () if slot == "step" else parameter.shape
        if value.shape != shape or not value.is_floating_point():
            raise ValueError(f"{slot} of weight {number} is {value.dtype} {list(value.shape)}, not {list(shape)}")
        if slot == "step" and not 0 <= float(value) <= step:
            raise ValueError(f"step of weight {number} is {float(value)}, not from 0 to {step}")
