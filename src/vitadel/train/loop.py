"""The training loop: one loop for every objective, on one device or many.

Shape letters: B images.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.optim import Optimizer

from vitadel.data import Split, batches
from vitadel.draws import Draws, fold_seed
from vitadel.errors import UsageError
from vitadel.models import Model, save
from vitadel.objectives import Objective
from vitadel.runs import Notify, Run, silent, write_whole
from vitadel.train.checkpoint import Progress, read_state, write_state
from vitadel.train.plan import Plan, Precision, learning_rate

Scores = Mapping[str, float]
Check = Callable[[nn.Module], Scores]

# streams of one run's seed
_ORDER, _STEP = 1, 2


def fit(
    model: Model,
    objective: Objective,
    train: Split,
    plan: Plan,
    run: Run,
    *,
    seed: int,
    check: Check | None = None,
    notify: Notify = silent,
) -> Model:
    """Train `model` in place and return what evaluation should use: the averaged weights if there are any.

    `check` scores a model on the hold-out; the weights with the best score (its last value) are kept as `best`.
    Killed at any moment and called again, it ends with the same weights, bit for bit on one CPU.
    """
    if len(train) == 0:
        raise UsageError("the training split is empty. Choose another data set or a longer slice.")
    # accelerate remembers the first precision it was asked for and refuses any other in the same process
    AcceleratorState._reset_state()
    accelerator = Accelerator(mixed_precision="bf16" if plan.precision is Precision.BF16 else "no")
    if plan.batch % accelerator.num_processes:
        raise UsageError(
            f"plan.batch of {plan.batch} cannot be shared evenly by {accelerator.num_processes} processes."
        )
    model.to(accelerator.device)
    optimiser = plan.optimiser.build(model.net)
    average = None if plan.ema is None else ModelEmaV3(model, decay=plan.ema)
    nets = {"model": model} if average is None else {"model": model, "average": average.module}
    progress = read_state(run.checkpoints, nets, optimiser)
    job = _Job(accelerator, model, objective, train, plan, run, seed, optimiser, average, nets, check, notify)
    job.run_from(progress)
    return job.deployed


@dataclass(slots=True)
class _Job:
    """What one call of `fit` holds on to."""

    accelerator: Accelerator
    model: Model
    objective: Objective
    train: Split
    plan: Plan
    run: Run
    seed: int
    optimiser: Optimizer
    average: ModelEmaV3 | None
    nets: Mapping[str, nn.Module]
    check: Check | None
    notify: Notify
    window: "_Window" = field(default_factory=lambda: _Window())

    @property
    def batch(self) -> int:
        return min(self.plan.batch, len(self.train))

    @property
    def steps_per_epoch(self) -> int:
        return len(self.train) // self.batch

    @property
    def total(self) -> int:
        return self.plan.epochs * self.steps_per_epoch

    @property
    def deployed(self) -> Model:
        chosen = self.model if self.average is None else self.average.module
        assert isinstance(chosen, Model)
        return chosen.eval()

    def run_from(self, progress: Progress) -> None:
        wrapped, self.optimiser = self.accelerator.prepare(self.model, self.optimiser)
        for rows, x, y in batches(self.train, self._order(progress.step)):
            self._update(wrapped, progress.step, rows, x, y)
            progress = replace(progress, step=progress.step + 1)
            if self._due(progress.step, self.plan.log_every_steps):
                self._log(progress.step)
            if self._due(progress.step, self.plan.check_every_epochs * self.steps_per_epoch):
                progress = self._hold_out(progress)
            if self._due(progress.step, self.plan.checkpoint_every_steps):
                self._checkpoint(progress)
        if self.accelerator.is_main_process:
            write_whole(self.run.checkpoints / "final.safetensors", lambda beside: save(self.deployed, beside))

    def _due(self, step: int, every: int) -> bool:
        return step % every == 0 or step == self.total

    def _order(self, first: int) -> Iterator[Tensor]:
        """The rows of each coming batch, this process's share of them; a function of (seed, step) alone."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        for step in range(first, self.total):
            epoch, place = divmod(step, self.steps_per_epoch)
            if place == 0 or step == first:
                generator = torch.Generator().manual_seed(fold_seed(self.seed, _ORDER, epoch))
                shuffled = torch.randperm(len(self.train), generator=generator)
            yield shuffled[place * self.batch : (place + 1) * self.batch][rank::world]

    def _update(self, wrapped: nn.Module, step: int, rows: Tensor, x: Tensor, y: Tensor) -> None:
        device = self.accelerator.device
        rows, x, y = rows.to(device), x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        seed = fold_seed(self.seed, _STEP, step)
        # dropout and stochastic depth draw from the global generator; seeding it per step makes a restart exact
        torch.manual_seed(fold_seed(seed, self.accelerator.process_index))
        if self.plan.augment is not None:
            x = self.plan.augment(x, Draws.of(fold_seed(seed, 1), rows))
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(self.plan, step, self.steps_per_epoch)
        wrapped.train()
        with self.accelerator.autocast():
            result = self.objective.at((step + 1) / self.total)(wrapped, x, y, seed=seed, index_B=rows)
        self.accelerator.backward(result.loss)
        if self.plan.clip_norm is not None:
            self.accelerator.clip_grad_norm_(wrapped.parameters(), self.plan.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad()
        if self.average is not None:
            self.average.update(self.model)
        self.window.add(len(rows), {"loss": result.loss.detach(), **result.logs})
        self.notify("training", step + 1, self.total, self.window.latest)

    def _refuse_broken_weights(self, step: int) -> None:
        """Nothing is written after a loss that is no number: the last good checkpoint must stay the last."""
        if not self.window.finite():
            raise UsageError(
                f"the loss is no longer finite at step {step}. Lower the learning rate or set plan.clip_norm; "
                "the last checkpoint is untouched."
            )

    def _log(self, step: int) -> None:
        self._refuse_broken_weights(step)
        means = self.window.close()
        if self.accelerator.is_main_process:
            rate = learning_rate(self.plan, step - 1, self.steps_per_epoch)
            self.run.log("step", step=step, epoch=step / self.steps_per_epoch, lr=rate, **means)

    def _hold_out(self, progress: Progress) -> Progress:
        if self.check is None:
            return progress
        self._refuse_broken_weights(progress.step)
        scores = self.check(self.deployed)
        *_, score = scores.values()
        if self.accelerator.is_main_process:
            self.run.log("holdout", step=progress.step, **scores)
        if progress.best is not None and score <= progress.best:
            return progress
        if self.accelerator.is_main_process:
            about = {"vitadel.selected": f"step {progress.step}, hold-out {dict(scores)}"}
            write_whole(self.run.checkpoints / "best.safetensors", lambda beside: save(self.deployed, beside, about))
        return replace(progress, best=score)

    def _checkpoint(self, progress: Progress) -> None:
        self._refuse_broken_weights(progress.step)
        if self.accelerator.is_main_process:
            write_state(self.run.checkpoints, progress, self.nets, self.optimiser)
        self.accelerator.wait_for_everyone()


class _Window:
    """Means over the updates since the last log line, kept on the device until they are asked for."""

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._updates = 0
        self._images = 0
        self._started = time.perf_counter()
        self.latest: Mapping[str, float] = {}

    def add(self, images: int, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(value)) + value
        self._updates += 1
        self._images += images

    def finite(self) -> bool:
        return all(bool(total.isfinite().all()) for total in self._sums.values())

    def close(self) -> dict[str, float]:
        means = {name: round(float(total) / self._updates, 6) for name, total in self._sums.items()}
        means["images_per_second"] = round(self._images / (time.perf_counter() - self._started), 2)
        self._open()
        self.latest = means
        return means
