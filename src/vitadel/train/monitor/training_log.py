"""The log of a training: means over updates, its cost, validation scores, and flags."""

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

# flags of a validation: code, two scores, the difference above which it is raised, and the sentence
_OVERFITTING = (
    (
        "overfitting",
        "fgsm",
        "robust",
        0.2,
        "catastrophic overfitting: one step leaves {high:.1%} correct, many steps {low:.1%}. Use more attack steps, a "
        "smaller step size or a shorter training",
    ),
    (
        "label-leaking",
        "fgsm",
        "clean",
        0.03,  # more than chance on a thousand images
        "label leaking: images attacked by one step are classified better ({high:.1%}) than clean ones ({low:.1%}). "
        "Use two attack steps or a random start",
    ),
    (
        "head-leaking",
        "rob_fgsm",
        "rob_clean",
        0.03,
        "label leaking in the robust head: it classifies {high:.1%} of images attacked through the joint output "
        "correctly, and {low:.1%} of clean ones. It may recognize the attack instead of the image; set "
        "objective.phase1_attack=own",
    ),
    (
        "robust-accuracy-drop",
        "best",
        "robust",
        0.2,  # training does not recover from it
        "robust accuracy dropped from {high:.1%} to {low:.1%}; the best weights are kept",
    ),
    (
        "robust-overfitting",
        "best",
        "robust",
        0.06,  # more than chance on a few hundred images, the same ones at every validation
        "robust overfitting: robust accuracy was {high:.1%} and is {low:.1%}; the best weights are kept. Train for "
        "fewer epochs, or mix images (plan.mixing)",
    ),
)


class RunningMeans:
    """Running means since the last log line; the sums stay on the device, so that no update waits for a transfer."""

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
        """Context manager: the time inside is not counted as training, as that of a validation."""
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
        """The means, and images per second; starts new sums."""
        # significant digits, because an attention scaling factor may be 1e-7
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
        device: The device to measure.
        world_size: The number of processes.
        writes: Whether this process writes.
        peak_flops: Peak FLOPs per second of the device; None if unknown.
        flops: FLOPs of the forward pass of an image.
        notify: Reports flags as messages.
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
        """Write the scores of a validation, and flags that they raise."""
        self._write("holdout", step, scores)
        for flag in overfitting_flags(scores, best_robust):
            self.flag(step, flag)

    def report_gaps(self, step: int, every: int) -> None:
        """Raise a flag if lines up to `step`, one after `every` updates, are missing in the file."""
        if self._scalars is None:
            return
        expected = range(every, step + 1, every)
        missing = set(expected) - {entry.values.get("step") for entry in self._run.read_log("step")}
        if missing:
            sentence = (
                f"log.jsonl lacks {len(missing)} of {len(expected)} lines up to step {step}; weights are complete"
            )
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
    known = {**scores, "best": best}
    flags: dict[str, Flag] = {}
    for code, higher, lower, threshold, sentence in _OVERFITTING:
        high, low = known.get(higher), known.get(lower)
        if high is not None and low is not None and high - low > threshold:
            flags[code] = Flag(code, sentence.format(high=high, low=low), {higher: high, lower: low})
    if "robust-accuracy-drop" in flags:
        flags.pop("robust-overfitting")
    return list(flags.values())
