"""The training loop: one loop for every objective, on one device or many.

Shape letters: B images, K classes.
"""

import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.optim import Optimizer

from vitadel.core.errors import Stopped, UsageError
from vitadel.core.files import write_whole
from vitadel.core.progress import Notify, silent
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.data import Split
from vitadel.models import Adapted, Model, attention_scales, save
from vitadel.objectives import Examples, Objective, TrainingTime
from vitadel.runs import Run, Scalars
from vitadel.train.attack_model import AttackModel
from vitadel.train.checkpoint import Progress, read_state, write_state
from vitadel.train.config import Plan, Precision, ema_decay, learning_rate
from vitadel.train.graph_capture import RecordedLoss, Told
from vitadel.train.input.loader import Batch, Loader
from vitadel.train.input.sampler import Order, Pick
from vitadel.train.monitor.alarms import Alarm, alarms
from vitadel.train.monitor.meters import Meter, achieved_flops, forward_flops, peak_flops
from vitadel.train.monitor.running_means import RunningMeans
from vitadel.train.preparation import Synthetic, answer_as_asked, begin_training, is_recordable
from vitadel.train.sharding import all_finite, shard, whole
from vitadel.train.stop_signal import StopSignal, stop_on_sigterm

Scores = Mapping[str, float]
Check = Callable[[nn.Module], Scores]

# streams of one run's seed, and of one step's
_DETOUR, _STEP = 5, 2
_AUGMENT, _MIX = 1, 2
# how often a loss that is no number may send a run back before it is given up
_ROLLBACKS = 3


def fit(
    model: Model,
    objective: Objective,
    train: Split,
    plan: Plan,
    run: Run,
    *,
    seed: int,
    synthetic: Synthetic | None = None,
    check: Check | None = None,
    notify: Notify = silent,
) -> Model:
    """Train `model` in place and return what evaluation should use: the averaged weights if there are any.

    `check` scores a model on the hold-out; the weights with the best score (its last value) are kept as `best`.
    Killed at any moment and called again, it ends with the same weights, bit for bit on one CPU. SIGTERM ends it after
    the running update, with a checkpoint. A loss that is no number sends it back to the last checkpoint, with other
    draws from there.
    """
    # accelerate remembers the first precision it was asked for and refuses any other in the same process
    AcceleratorState._reset_state()
    accelerator = Accelerator(
        mixed_precision="bf16" if plan.precision is Precision.BF16 else "no",
        kwargs_handlers=[
            DistributedDataParallelKwargs(
                # an objective may make two passes before its backward one; buffers sent in between would undo the first
                broadcast_buffers=False,
                # of a network with adapters, the last fusion reaches no answer that is trained
                find_unused_parameters=objective.selective or isinstance(model.net, Adapted),
            )
        ],
    )
    order = begin_training(model, objective, train, plan, synthetic, seed=seed, world=accelerator.num_processes)
    model.to(accelerator.device)
    average = None if plan.ema is None else ModelEmaV3(model, decay=plan.full_ema)
    if plan.shard and accelerator.num_processes > 1:
        for net in (model, *([] if average is None else [average.module])):
            shard(net, accelerator.device)
    optimizer = plan.optimizer.build(model.net)
    nets = {"model": model} if average is None else {"model": model, "average": average.module}
    peak = _peak(accelerator.device, plan.precision)
    flops = 0.0 if peak is None else forward_flops(model)  # counted before compiling, which hides the operations
    plan.compile.applied(model.net)
    loader = Loader(train, None if synthetic is None else synthetic.images, accelerator.device)
    job = _Job(accelerator, model, objective, loader, order, plan, run, seed, optimizer, average, nets, check, notify)
    job.peak, job.flops = peak, flops
    job.set_up_fast_paths()
    try:
        with stop_on_sigterm() as stop_signal:
            job.run_all(stop_signal)
    finally:  # what accelerate and `answer_as_asked` left on it
        for name in ("forward", "_is_accelerate_prepared"):
            model.__dict__.pop(name, None)
    attention_scales.drop_training_buffers(job.deployed.net)
    return job.deployed


def _peak(device: torch.device, precision: Precision) -> float | None:
    """What this process's device could do at most; unknown for a CPU and in float32."""
    known = device.type == "cuda" and precision is Precision.BF16
    return peak_flops(torch.cuda.get_device_name(device)) if known else None


def _worth_logging(used: Mapping[str, float]) -> dict[str, float]:
    return {name: round(used[name], 3) for name in ("utilization", "memory_mib") if name in used}


class _Broken(Exception):
    """The loss is no number any more."""


@dataclass(slots=True)
class _Job:
    """What one call of `fit` holds on to."""

    accelerator: Accelerator
    model: Model
    objective: Objective
    loader: Loader
    order: Order
    plan: Plan
    run: Run
    seed: int
    optimizer: Optimizer
    average: ModelEmaV3 | None
    nets: Mapping[str, nn.Module]
    check: Check | None
    notify: Notify
    running_means: RunningMeans = field(default_factory=RunningMeans)
    wrapped: nn.Module = field(init=False)
    meter: Meter = field(init=False)
    scalars: Scalars | None = field(init=False)
    peak: float | None = None
    flops: float = 0.0
    attack_model: AttackModel | None = None
    records_losses: bool = False
    recorded: dict[str, RecordedLoss] = field(default_factory=dict)
    # as it was when the hold-out was last looked at
    scored: Progress | None = None

    @property
    def steps_per_epoch(self) -> int:
        return self.order.steps_per_epoch

    @property
    def total(self) -> int:
        return self.plan.all_epochs * self.steps_per_epoch

    @property
    def is_main(self) -> bool:
        return bool(self.accelerator.is_main_process)

    @property
    def deployed(self) -> Model:
        chosen = self.model if self.average is None else self.average.module
        assert isinstance(chosen, Model)
        return chosen.eval()

    def set_up_fast_paths(self) -> None:
        """Have attacks crafted on a copy in bf16 and passes recorded, where the plan wants and nothing forbids it."""
        plan = self.plan
        records = self.accelerator.num_processes == 1 and is_recordable(plan, self.accelerator.device)
        if plan.precision is Precision.BF16 and plan.attack_model and not plan.shard:
            self.attack_model = AttackModel(self.model, plan.compile, record=records)
        self.records_losses = records and self.objective.recordable

    # ---------------------------------------------------------------- course

    def run_all(self, stop_signal: StopSignal) -> None:
        progress = self._read()
        if self.plan.shard:  # cut already: no second wrapper around it
            self.wrapped, self.optimizer = self.model, self.accelerator.prepare(self.optimizer)
        else:
            with warnings.catch_warnings():  # accelerate still calls the setting by its old name
                warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
                self.wrapped, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)
            answer_as_asked(self.model)
        self.meter = Meter(self.accelerator.device, self.accelerator.num_processes)
        self.scalars = Scalars(self.run.folder / "tensorboard") if self.is_main else None
        if progress is None:  # so that there is always a state to go back to
            progress = Progress()
            self._checkpoint(progress)
        self._refuse_without_best(progress)
        while True:
            try:
                self._run_from(progress, stop_signal)
                break
            except _Broken as broken:
                progress = self._go_back(str(broken))
        self._save("final")

    def _run_from(self, progress: Progress, stop_signal: StopSignal) -> None:
        self.meter.start()
        with closing(self._batches(progress)) as batches:
            for pick, x, y in batches:
                self._update(progress, pick, x, y)
                made = self.order.synthetic_per_batch
                progress = replace(
                    progress,
                    step=progress.step + 1,
                    real=progress.real + self.order.batch - made,
                    synthetic=progress.synthetic + made,
                )
                if self._due(progress.step, self.plan.log_every_steps):
                    progress = self._log(progress)
                with self.running_means.paused():
                    if self._due(progress.step, self.plan.check_every_epochs * self.steps_per_epoch):
                        progress = self._hold_out(progress)
                    if self._due(progress.step, self.plan.checkpoint_every_steps):
                        self._checkpoint(progress)
                if self._asked_to_stop(progress.step, stop_signal):
                    self._checkpoint(progress)
                    raise Stopped(f"stopped at step {progress.step}, which is saved: the same command goes on.")

    def _read(self) -> Progress | None:
        """The newest state, the same for all processes: none may write the next one before all have read this one."""
        progress = read_state(self.run.checkpoints, self.nets, self.optimizer)
        self.accelerator.wait_for_everyone()
        return progress

    def _refuse_without_best(self, progress: Progress) -> None:
        """Without the best weights so far, those that come next would pass for the best."""
        best = self.run.checkpoints / "best.safetensors"
        if progress.best is not None and not best.exists():
            raise UsageError(
                f"{best} is missing, the weights with the best hold-out score so far ({progress.best:.4g}). Restore "
                f"it, or delete {self.run.checkpoints}/step-*.safetensors and the same command trains from the start."
            )

    def _due(self, step: int, every: int) -> bool:
        return step % every == 0 or step == self.total

    def _asked_to_stop(self, step: int, stop_signal: StopSignal) -> bool:
        """Whether any process heard the bell; processes agree on it only now and then, since asking makes them wait."""
        if self.accelerator.num_processes == 1:
            return stop_signal.requested
        if not self._due(step, self.plan.log_every_steps):
            return False
        heard = torch.tensor(float(stop_signal.requested), device=self.accelerator.device)
        return bool(self.accelerator.reduce(heard, "sum") > 0)

    def _seed(self, progress: Progress) -> int:
        """After a broken loss other draws: the same ones would break it again."""
        return fold_seed(self.seed, _DETOUR, progress.rollbacks) if progress.rollbacks else self.seed

    def _batches(self, progress: Progress) -> Generator[Batch, None, None]:
        order = replace(self.order, seed=self._seed(progress))
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        picks = order.picks(range(progress.step, self.total), rank, world)
        if self.plan.host is None:
            return self.loader.batches(picks)
        return self.loader.augmented(picks, self.plan.host, order.seed, progress.step, self.plan.workers)

    def _go_back(self, why: str) -> Progress:
        progress = self._read()
        assert progress is not None
        if progress.rollbacks >= _ROLLBACKS:
            raise UsageError(
                f"{why}, for the {_ROLLBACKS + 1}th time. Lower the learning rate or set plan.clip_norm; "
                "the last checkpoint is untouched."
            )
        # the best weights on the disk may be of an update that is undone now, and still only better ones replace them
        scored = self.scored or progress
        progress = replace(progress, rollbacks=progress.rollbacks + 1, best=scored.best, robust=scored.robust)
        self.running_means = RunningMeans()
        sentence = f"{why}: back to step {progress.step}, with other draws from there"
        self._alarm(progress.step, [Alarm("not-finite", sentence, {"rollbacks": progress.rollbacks})])
        # written down, or a run that breaks again and again would never count beyond one
        self._checkpoint(progress)
        return progress

    # ---------------------------------------------------------------- update

    def _update(self, progress: Progress, pick: Pick, x: Tensor, y: Tensor) -> None:
        step = progress.step
        seed = fold_seed(self._seed(progress), _STEP, step)
        # dropout and stochastic depth draw from the global generator; seeding it per step makes a restart exact
        torch.manual_seed(fold_seed(seed, self.accelerator.process_index))
        index_B = pick.index_B.to(x.device, non_blocking=True)
        x, y = self._augmented(x, y, seed, index_B)
        objective = self.objective.at(self._moment(step))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.plan, step, self.steps_per_epoch)
        self.wrapped.train()
        if self.attack_model is not None:
            self.attack_model.learn()
        told: list[Told] = []
        parts = list(zip(*(each.chunk(self.plan.accumulate) for each in (x, y, index_B)), strict=True))
        for number, (x_part, y_part, index_part) in enumerate(parts):
            last = number == len(parts) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.wrapped):
                with self.accelerator.autocast():
                    examples = objective.prepare(self.crafter, x_part, y_part, seed=seed, index_B=index_part)
                if self.records_losses:
                    told.append(self._recorded(objective)(examples))
                else:
                    told.append(self._learned(objective, examples, len(x_part) / len(x)))
        if "loss" in told[-1]:
            moved = self._move_weights(step)
            told = [{**one, **moved} for one in told]
        if self.average is not None:
            attention_scales.copy(self.model.net, self.average.module.net)
        self.running_means.add(len(x), {name: torch.stack([one[name] for one in told]).mean() for name in told[0]})
        self.notify("training", step + 1, self.total, self.running_means.latest)

    def _recorded(self, objective: Objective) -> RecordedLoss:
        """The loss of this stage, which its first batch records."""
        if objective.stage not in self.recorded:
            learns = partial(self._learned, objective, share=1.0)
            self.recorded[objective.stage] = RecordedLoss(self.model, learns)
        return self.recorded[objective.stage]

    def _learned(self, objective: Objective, examples: Examples, share: float) -> Told:
        """Leave the gradients of this share of the loss on the weights; the loss, if it trains, and the logs."""
        with self.accelerator.autocast():
            result = objective.loss(self.wrapped, examples)
        if result.trains:
            self.accelerator.backward(result.loss * share)
        result.undo()
        return {**({"loss": result.loss.detach()} if result.trains else {}), **result.logs}

    def _move_weights(self, step: int) -> dict[str, Tensor]:
        """One step of the optimizer and of the average; the gradient's norm if it is clipped."""
        told: dict[str, Tensor] = {}
        if self.plan.clip_norm is not None:
            norm = self.accelerator.clip_grad_norm_(self.wrapped.parameters(), self.plan.clip_norm)
            told = whole({"gradient_norm": norm.detach()})
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.decay = ema_decay(self.plan, step, self.total)
            self.average.update(self.model)
        return told

    def _moment(self, step: int) -> TrainingTime:
        """Where training stands at update number `step`."""
        return TrainingTime((step + 1) / self.steps_per_epoch, self.plan.all_epochs, self.steps_per_epoch)

    @property
    def crafter(self) -> nn.Module:
        """What attacks are crafted on."""
        return self.wrapped if self.attack_model is None else self.attack_model

    def _augmented(self, x: Tensor, y: Tensor, seed: int, index_B: Tensor) -> tuple[Tensor, Tensor]:
        if self.plan.augment is not None:
            x = self.plan.augment(x, RandomStreams.of(fold_seed(seed, _AUGMENT), index_B))
        if self.plan.mixing is None:
            return x, y
        assert self.model.spec is not None
        return self.plan.mixing(x, y, self.model.spec.num_classes, seed=fold_seed(seed, _MIX))

    # -------------------------------------------------------------- watching

    def _refuse_broken_weights(self, step: int) -> None:
        """Nothing is written after a loss that is no number: the last good checkpoint must stay the last.

        The weights are looked at too: a gradient can be no number where the loss still is one.
        """
        fine = self.running_means.finite() and all_finite(self.model)
        broken = torch.tensor(float(not fine), device=self.accelerator.device)
        if bool(self.accelerator.reduce(broken, "sum") > 0):
            raise _Broken(f"the loss is no longer finite at step {step}")

    def _log(self, progress: Progress) -> Progress:
        step = progress.step
        self._refuse_broken_weights(step)
        means, used = self.running_means.close(), self.meter.read()
        means["images_per_second"] *= self.accelerator.num_processes  # of all of them together
        progress = replace(
            progress,
            device_hours=progress.device_hours + (used["gpu_hours"] or used.get("cpu_hours", 0.0)),
            joules=progress.joules + used.get("energy_joules", 0.0),
        )
        rate = learning_rate(self.plan, step - 1, self.steps_per_epoch)
        numbers = {"epoch": step / self.steps_per_epoch, "lr": rate, **means, **_worth_logging(used)}
        numbers["device_hours"] = round(progress.device_hours, 6)
        if progress.joules:
            numbers["kilowatt_hours"] = round(progress.joules / 3.6e6, 6)
        if self.peak is not None:
            done = achieved_flops(
                means["images_per_second"], self.flops, self.objective.at(self._moment(step - 1)).passes
            )
            numbers["flop_utilization"] = round(done / (self.peak * self.accelerator.num_processes), 4)
        self._write("step", step, numbers)
        return progress

    def _write(self, event: str, step: int, numbers: Mapping[str, float]) -> None:
        if self.is_main:
            assert self.scalars is not None
            self.run.log(event, step=step, **numbers)
            self.scalars.add(step, {f"{event}/{name}": value for name, value in numbers.items()})

    def _alarm(self, step: int, found: list[Alarm]) -> None:
        for alarm in found:
            if self.is_main:
                self.run.log("alarm", at=step, code=alarm.code, sentence=alarm.sentence, evidence=alarm.evidence)
            self.notify(f"alarm at step {step}: {alarm.sentence}", 0, 0, {})

    def _hold_out(self, progress: Progress) -> Progress:
        if self.check is None:
            return progress
        self._refuse_broken_weights(progress.step)
        with torch.compiler.set_stance("force_eager"):  # every number of images left standing would be compiled anew
            scores = self.check(self.deployed)
        *_, score = scores.values()
        self._write("holdout", progress.step, scores)
        self._alarm(progress.step, alarms(scores, progress.robust))
        if "robust" in scores:
            progress = replace(progress, robust=max(progress.robust or 0.0, scores["robust"]))
        if progress.best is None or score > progress.best:
            self._save("best", {"vitadel.selected": f"step {progress.step}, hold-out {dict(scores)}"})
            progress = replace(progress, best=score)
        self.scored = progress
        return progress

    def _save(self, name: str, about: Mapping[str, str] | None = None) -> None:
        tensors = whole(self.deployed.net.state_dict())
        if self.is_main:
            path = self.run.checkpoints / f"{name}.safetensors"
            write_whole(path, lambda beside: save(self.deployed, beside, about, tensors=tensors))

    def _checkpoint(self, progress: Progress) -> None:
        self._refuse_broken_weights(progress.step)
        write_state(self.run.checkpoints, progress, self.nets, self.optimizer, writes=self.is_main)
        self.accelerator.wait_for_everyone()
