"""The log of a training: means over updates, what it costs, validation scores, and flags."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from vitadel.core.flags import Flag
from vitadel.core.progress import ProgressCallback
from vitadel.runs import Run, Scalars
from vitadel.train.checkpoint import TrainState
from vitadel.train.monitor.hardware import Meter, achieved_flops

# accuracy under one step above that under many steps: the model hides its gradient from one step
_CATASTROPHIC_GAP = 0.2
# robust accuracy so far below its best does not recover
_ROBUST_DROP = 0.2
# and so far below it is more than chance on some hundred images, the same at every validation
_ROBUST_OVERFITTING_DROP = 0.06
# accuracy on one-step images above that on clean ones, more than chance on a thousand images
_LABEL_LEAKING_GAP = 0.03


class RunningMeans:
    """Means over the updates since the last line; the sums stay on the device until then, or it would wait."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._updates: Counter[str] = Counter()
        self._images = 0
        self._started = time.perf_counter()
        self.latest: Mapping[str, float] = {}

    def add(self, images: int, values: Mapping[str, Tensor]) -> None:
        """Count one update."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(value)) + value
        self._updates.update(values.keys())  # by name: not every update logs everything
        self._images += images

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside does not count: a validation is not training."""
        began = time.perf_counter()
        yield
        self._started += time.perf_counter() - began

    def state(self) -> dict[str, tuple[float, int]]:
        """The sums so far and their numbers of updates, for a checkpoint between two lines."""
        return {name: (float(total), self._updates[name]) for name, total in self._sums.items()}

    def restore(self, state: Mapping[str, Sequence[float]], device: torch.device) -> None:
        """Continue from sums of `state`."""
        self._reset()
        for name, (total, updates) in state.items():
            self._sums[name] = torch.tensor(total, device=device)
            self._updates[name] = int(updates)

    def finite(self) -> bool:
        """Whether every sum is finite."""
        return all(bool(total.isfinite().all()) for total in self._sums.values())

    def compute(self) -> dict[str, float]:
        """The means, and images per second; the next ones start again."""
        # rounded to significant digits, because a factor of attention may be 1e-7
        means = {name: float(f"{float(total) / self._updates[name]:.7g}") for name, total in self._sums.items()}
        rate = self._images / (time.perf_counter() - self._started)
        means["images_per_second"] = round(rate, 2)
        self._reset()
        self.latest = means
        return means


class TrainingLog:
    """Writes `log.jsonl` and TensorBoard's files of a run, and reports flags.

    Args:
        run: The run folder.
        device: What is measured.
        world_size: How many processes train.
        writes: Whether this process writes.
        peak_flops: What the device can do per second; None if that is not known.
        flops: FLOPs of the forward pass of an image.
        notify: Gets flags as messages.
    """

    def __init__(
        self,
        run: Run,
        device: torch.device,
        world_size: int,
        *,
        writes: bool,
        peak_flops: float | None,
        flops: float,
        notify: ProgressCallback,
    ) -> None:
        self.means = RunningMeans()
        self.meter = Meter(device, world_size)
        self._run, self._world_size, self._notify = run, world_size, notify
        self._scalars = Scalars(run.folder / "tensorboard") if writes else None
        self._peak, self._flops = peak_flops, flops

    def step(self, state: TrainState, *, epoch: float, lr: float, passes: float) -> TrainState:
        """Write the means since the last line; returns the state with the cost of these updates."""
        means, used = self.means.compute(), self.meter.read()
        means["images_per_second"] *= self._world_size
        state = replace(
            state,
            device_hours=state.device_hours + (used["gpu_hours"] or used.get("cpu_hours", 0.0)),
            joules=state.joules + used.get("energy_joules", 0.0),
        )
        shown: dict[str, float] = {name: round(used[name], 3) for name in ("utilization", "memory_mib") if name in used}
        numbers: dict[str, float] = {"epoch": epoch, "lr": lr, **means, **shown}
        numbers["device_hours"] = round(state.device_hours, 6)
        if state.joules:
            numbers["kilowatt_hours"] = round(state.joules / 3.6e6, 6)
        if self._peak is not None:
            done = achieved_flops(means["images_per_second"], self._flops, passes)
            numbers["flop_utilization"] = round(done / (self._peak * self._world_size), 4)
        self._write("step", state.step, numbers)
        return state

    def validation(self, step: int, scores: Mapping[str, float], best_robust: float | None) -> None:
        """Write the scores of a validation, and flags about them."""
        self._write("holdout", step, scores)
        for flag in overfitting_flags(scores, best_robust):
            self.flag(step, flag)

    def report_gaps(self, step: int, every: int) -> None:
        """Flag lines up to `step`, one after `every` updates, that are not in the file any more."""
        if self._scalars is None:
            return
        expected = range(every, step + 1, every)
        missing = set(expected) - {entry.values.get("step") for entry in self._run.read_log("step")}
        if missing:
            sentence = f"log.jsonl has lost {len(missing)} of {len(expected)} lines up to step {step}; weights have not"
            self.flag(step, Flag("log-incomplete", sentence, {"missing": len(missing)}))

    def flag(self, step: int, flag: Flag) -> None:
        """Write and report a flag."""
        if self._scalars is not None:
            self._run.log("alarm", at=step, code=flag.code, sentence=flag.sentence, evidence=flag.evidence)
        self._notify(f"flag at step {step}: {flag.sentence}", 0, 0, {})

    def _write(self, event: str, step: int, numbers: Mapping[str, float]) -> None:
        if self._scalars is not None:
            self._run.log(event, step=step, **numbers)
            self._scalars.add(step, {f"{event}/{name}": value for name, value in numbers.items()})


def overfitting_flags(scores: Mapping[str, float], best: float | None) -> list[Flag]:
    """Catastrophic overfitting, label leaking and robust overfitting, as far as validation scores show them.

    Args:
        scores: Accuracies `clean`, `fgsm` (one step) and `robust` (many), and `rob_clean` and `rob_fgsm` of a robust
            head; any may be missing.
        best: The best robust accuracy so far.
    """
    flags = []
    clean, one_step, robust = (scores.get(name) for name in ("clean", "fgsm", "robust"))
    if one_step is not None and robust is not None and one_step - robust > _CATASTROPHIC_GAP:
        sentence = (
            f"catastrophic overfitting: one step leaves {one_step:.1%} correct, many steps {robust:.1%}. "
            "Use more attack steps, a smaller step size or a shorter training"
        )
        flags.append(Flag("overfitting", sentence, {"fgsm": one_step, "robust": robust}))
    if one_step is not None and clean is not None and one_step - clean > _LABEL_LEAKING_GAP:
        sentence = (
            f"label leaking: images attacked by one step are classified better ({one_step:.1%}) than clean ones "
            f"({clean:.1%}). Use two attack steps or a random start"
        )
        flags.append(Flag("label-leaking", sentence, {"fgsm": one_step, "clean": clean}))
    head_clean, head_one_step = scores.get("rob_clean"), scores.get("rob_fgsm")
    if head_clean is not None and head_one_step is not None and head_one_step - head_clean > _LABEL_LEAKING_GAP:
        sentence = (
            f"label leaking in the robust head: it classifies {head_one_step:.1%} of images attacked through the joint "
            f"output correctly, and {head_clean:.1%} of clean ones. It may recognize the attack instead of the image; "
            "set objective.phase1_attack=own"
        )
        flags.append(Flag("head-leaking", sentence, {"rob_fgsm": head_one_step, "rob_clean": head_clean}))
    if best is not None and robust is not None and best - robust > _ROBUST_DROP:
        sentence = f"robust accuracy dropped from {best:.1%} to {robust:.1%}; the best weights are kept"
        flags.append(Flag("robust-accuracy-drop", sentence, {"best": best, "robust": robust}))
    elif best is not None and robust is not None and best - robust > _ROBUST_OVERFITTING_DROP:
        sentence = (
            f"robust overfitting: robust accuracy was {best:.1%} and is {robust:.1%}; the best weights are kept. "
            "Train for fewer epochs, or mix images (plan.mixing)"
        )
        flags.append(Flag("robust-overfitting", sentence, {"best": best, "robust": robust}))
    return flags
