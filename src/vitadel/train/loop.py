"""The training loop, for every objective, on one device or several.

Shape letters: B images, K classes.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import closing, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitadel.core.cuda_graph import GraphedBackward
from vitadel.core.errors import Stopped, UsageError
from vitadel.core.flags import Flag
from vitadel.core.progress import ProgressCallback, silent
from vitadel.core.rng import fold_seed
from vitadel.data import Split
from vitadel.models import AdaptedViT, Model, attention_scales
from vitadel.objectives import Examples, Objective, TrainingTime
from vitadel.runs import Run
from vitadel.train.attack_model import AttackModel
from vitadel.train.checkpoint import Checkpoints, TrainState
from vitadel.train.config import Precision, TrainingConfig, ema_decay, learning_rate, update_seed
from vitadel.train.distributed import (
    StopSignal,
    all_finite,
    any_process,
    full_tensors,
    make_accelerator,
    prepare,
    shard,
    stop_on_sigterm,
    undo_prepare,
)
from vitadel.train.input.loader import Loader, TrainingBatch
from vitadel.train.monitor.hardware import forward_flops, peak_flops
from vitadel.train.monitor.training_log import TrainingLog
from vitadel.train.setup import Synthetic, set_up

Scores = Mapping[str, float]
Validate = Callable[[nn.Module], Scores]
# the score that selects the checkpoint: the first of these that a validation has
SELECTED_BY = ("score", "robust", "clean")

# a stream of the seed of a run
_AFTER_ROLLBACK = 5
# how often a run may roll back after a non-finite loss
_ROLLBACKS = 3


class _NotFinite(Exception):
    """The loss or the weights are not finite."""


class Trainer:
    """Trains a model in place.

    A `Trainer` on the folder of an interrupted run resumes it and ends with the same weights, bit for bit on one CPU.
    SIGTERM ends training after the current update, with a checkpoint. A non-finite loss rolls training back to the last
    checkpoint and continues with different random numbers.

    Args:
        model: The model to train.
        objective: The objective to minimize.
        train: The training images.
        config: All other settings.
        run: The run folder, for log and checkpoints.
        seed: The seed of all random numbers.
        synthetic: Synthetic images, and their share of every batch.
        validate: Scores a model on the hold-out; the weights with the best `score`, else `robust`, else `clean`, are
            kept as `best`.
        notify: Reports progress.

    Example:
        >>> model = Trainer(model, Standard(), data.train, config, run, seed=0).fit()
    """

    def __init__(
        self,
        model: Model,
        objective: Objective,
        train: Split,
        config: TrainingConfig,
        run: Run,
        *,
        seed: int,
        synthetic: Synthetic | None = None,
        validate: Validate | None = None,
        notify: ProgressCallback = silent,
    ) -> None:
        self.model, self.objective, self.config, self.seed = model, objective, config, seed
        self.validation, self.notify = validate, notify
        bf16 = config.precision is Precision.BF16
        self.accelerator = make_accelerator(
            bf16=bf16,
            # in a network with adapters, no trained output depends on the last fusion
            find_unused_parameters=objective.trains_subsets or isinstance(model.net, AdaptedViT),
        )
        from timm.utils import ModelEmaV3

        device, world_size = self.accelerator.device, self.accelerator.num_processes
        is_main = bool(self.accelerator.is_main_process)
        self.sampler = set_up(model, objective, train, config, synthetic, seed=seed, world_size=world_size)
        model.to(device)
        self.average = None if config.ema is None else ModelEmaV3(model, decay=config.ema_per_update)
        nets: dict[str, nn.Module] = {"model": model}
        if self.average is not None:
            nets["average"] = self.average.module
        if config.shard and world_size > 1:
            for net in nets.values():
                shard(net, device)
        optimizer = config.optimizer.build(model.net)
        self.checkpoints = Checkpoints(run.checkpoints, nets, optimizer, writes=is_main)
        peak = peak_flops(torch.cuda.get_device_name(device)) if bf16 and device.type == "cuda" else None
        flops = 0.0 if peak is None else forward_flops(model)  # before compilation, which hides the operations
        config.compile.apply(model.net)
        self.loader = Loader(
            train, None if synthetic is None else synthetic.images, device, config.pil_augment, config.num_workers
        )
        cuda_graphs = world_size == 1 and config.supports_cuda_graphs(device)
        self.attack_model: AttackModel | None = None
        if bf16 and config.attack_model and not config.shard:
            self.attack_model = AttackModel(model, config.compile, cuda_graphs=cuda_graphs)
        self.captures_loss = cuda_graphs and objective.capturable
        self.graphed_losses: dict[str, GraphedBackward] = {}
        self.log = TrainingLog(run, device, world_size, writes=is_main, peak_flops=peak, flops=flops, notify=notify)
        self.state = TrainState()
        # the state of the last validation; a rollback may undo the update that its best weights are from
        self.validated: TrainState | None = None

    def fit(self) -> Model:
        """Train to the end, from the newest checkpoint if there is one.

        Returns:
            The model to evaluate: the averaged weights if there are any, else the model itself.

        Raises:
            Stopped: If SIGTERM arrives.
            UsageError: If a checkpoint is damaged, or the loss is non-finite several times.
        """
        try:
            with stop_on_sigterm() as stop:
                self._resume()
                while True:
                    try:
                        self._train(stop)
                        break
                    except _NotFinite as error:
                        self._roll_back(str(error))
            self.checkpoints.save_model("final", self.evaluated_model)
        finally:
            undo_prepare(self.model)
        attention_scales.drop_training_buffers(self.evaluated_model.net)
        return self.evaluated_model

    @property
    def evaluated_model(self) -> Model:
        """The averaged weights if there are any, else the model."""
        chosen = self.model if self.average is None else self.average.module
        assert isinstance(chosen, Model)
        return chosen.eval()

    @property
    def total_steps(self) -> int:
        """Total number of updates."""
        return self.config.total_epochs * self.sampler.steps_per_epoch

    # --------------------------------------------------------- training loop

    def _resume(self) -> None:
        """Load the newest checkpoint, or write a first one, so that there is always one to roll back to."""
        loaded = self._load_checkpoint()
        optimizer = self.checkpoints.optimizer
        self.wrapped, self.optimizer = prepare(self.accelerator, self.model, optimizer, shard=self.config.shard)
        self.checkpoints.optimizer = self.optimizer
        if loaded is None:
            self._save_checkpoint()
        else:
            self._continue_from(loaded)
            self.log.report_gaps(loaded.step, self.config.log_every_steps)
        self.checkpoints.check_best_exists(self.state)

    def _continue_from(self, state: TrainState) -> None:
        self.state = state
        self.log.means.restore(state.unlogged, self.accelerator.device)

    def _train(self, stop: StopSignal) -> None:
        """Update, log, validate and checkpoint until the end."""
        config, per_epoch = self.config, self.sampler.steps_per_epoch
        self.log.meter.start()
        with closing(self._batches()) as batches:
            for batch in batches:
                self._update(batch)
                synthetic = self.sampler.synthetic_per_batch
                self.state = replace(
                    self.state,
                    step=self.state.step + 1,
                    real=self.state.real + self.sampler.batch_size - synthetic,
                    synthetic=self.state.synthetic + synthetic,
                )
                if self._due(config.log_every_steps):
                    self._log()
                with self.log.means.paused():
                    if self._due(config.validate_every_epochs * per_epoch):
                        self._validate()
                    if self._due(config.checkpoint_every_steps):
                        self._save_checkpoint()
                if self._should_stop(stop):
                    self._save_checkpoint()
                    raise Stopped(f"stopped at step {self.state.step}, which is saved: the same command resumes.")

    def _batches(self) -> Generator[TrainingBatch, None, None]:
        sampler = replace(self.sampler, seed=self._run_seed)
        rank, world_size = self.accelerator.process_index, self.accelerator.num_processes
        indices = sampler.batches(range(self.state.step, self.total_steps), rank, world_size)
        return self.loader.batches(indices, seed=sampler.seed)

    @property
    def _run_seed(self) -> int:
        """The seed of the run; after a rollback a new one, since the same random numbers would give the same result."""
        rollbacks = self.state.rollbacks
        return fold_seed(self.seed, _AFTER_ROLLBACK, rollbacks) if rollbacks else self.seed

    def _due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.total_steps

    def _should_stop(self, stop: StopSignal) -> bool:
        """Whether any process got the signal; several processes synchronize on it only when they log."""
        if self.accelerator.num_processes == 1:
            return stop.requested
        return self._due(self.config.log_every_steps) and any_process(self.accelerator, stop.requested)

    # ---------------------------------------------------------------- update

    def _update(self, batch: TrainingBatch) -> None:
        """One update: augment, attack, loss and backward pass (in parts, if `grad_accum_steps` is set), optimizer."""
        index, x, y = batch
        step, config = self.state.step, self.config
        seed = update_seed(self._run_seed, step)
        # dropout and stochastic depth use the global generator; seeded at every step, a resumed run is exact
        torch.manual_seed(fold_seed(seed, self.accelerator.process_index))
        index_B = index.index_B.to(x.device, non_blocking=True)
        assert self.model.spec is not None
        x, y = config.augmented(x, y, self.model.spec.num_classes, seed=seed, index_B=index_B)
        objective = self.objective.at(self._time(step))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config, step, self.sampler.steps_per_epoch)
        self.wrapped.train()
        if self.attack_model is not None:
            self.attack_model.copy_weights()
        attacked = self.wrapped if self.attack_model is None else self.attack_model
        logs: list[Mapping[str, Tensor]] = []
        parts = list(zip(*(tensor.chunk(config.grad_accum_steps) for tensor in (x, y, index_B)), strict=True))
        for number, (x_part, y_part, index_part) in enumerate(parts, 1):
            with nullcontext() if number == len(parts) else self.accelerator.no_sync(self.wrapped):
                with self.accelerator.autocast():
                    examples = objective.prepare(attacked, x_part, y_part, seed=seed, index_B=index_part)
                logs.append(self._loss_and_backward(objective, examples, len(x_part) / len(x)))
        if "loss" in logs[-1]:
            norm = self._optimizer_step(step)
            logs = [{**one, **norm} for one in logs]
        if self.average is not None:
            attention_scales.copy_factors(self.model.net, self.average.module.net)
        means = self.log.means
        means.add(len(x), {name: torch.stack([one[name] for one in logs]).mean() for name in logs[0]})
        self.notify("training", step + 1, self.total_steps, means.latest)

    def _time(self, step: int) -> TrainingTime:
        per_epoch = self.sampler.steps_per_epoch
        return TrainingTime((step + 1) / per_epoch, self.config.total_epochs, per_epoch)

    def _loss_and_backward(self, objective: Objective, examples: Examples, share: float) -> Mapping[str, Tensor]:
        """Add the gradients of this share of the loss to the weights; returns the loss and its logs."""
        if not self.captures_loss:
            return self.backward(objective, share, examples)
        if objective.phase not in self.graphed_losses:  # `grad_accum_steps` is 1 then, and so is `share`
            self.graphed_losses[objective.phase] = GraphedBackward(
                self.model, lambda x, y, x_adv: self.backward(objective, 1.0, Examples(x, y, x_adv))
            )
        return self.graphed_losses[objective.phase](examples.x, examples.y, examples.x_adv)

    def backward(self, objective: Objective, share: float, examples: Examples) -> Mapping[str, Tensor]:
        """Add the gradients of `share` of the loss, and undo what the examples changed, also after an error."""
        with self.accelerator.autocast():
            output = objective.loss(self.wrapped, examples)
        try:
            if output.trains:
                self.accelerator.backward(output.loss * share)
        finally:
            output.undo()
        return {**({"loss": output.loss.detach()} if output.trains else {}), **output.logs}

    def _optimizer_step(self, step: int) -> dict[str, Tensor]:
        """Update weights and average; returns the norm of the gradient if it is clipped."""
        norm: dict[str, Tensor] = {}
        if self.config.clip_grad is not None:
            value = self.accelerator.clip_grad_norm_(self.wrapped.parameters(), self.config.clip_grad)
            norm = full_tensors({"gradient_norm": value.detach()})
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.decay = ema_decay(self.config, step, self.total_steps)
            self.average.update(self.model)
        return norm

    # ------------------------------------------- log, validation, checkpoints

    def _log(self) -> None:
        self._raise_non_finite()
        step, per_epoch = self.state.step, self.sampler.steps_per_epoch
        self.state = self.log.step(
            self.state,
            epoch=step / per_epoch,
            lr=learning_rate(self.config, step - 1, per_epoch),
            passes=self.objective.at(self._time(step - 1)).passes,
        )

    def _validate(self) -> None:
        """Score the model on the hold-out; the best weights so far are kept as `best`."""
        if self.validation is None:
            return
        self._raise_non_finite()
        with torch.compiler.set_stance("force_eager"):  # or every batch size would be compiled
            scores = self.validation(self.evaluated_model)
        score = next(scores[name] for name in SELECTED_BY if name in scores)
        self.log.validation(self.state.step, scores, self.state.robust)
        if "robust" in scores:
            self.state = replace(self.state, robust=max(self.state.robust or 0.0, scores["robust"]))
        if self.state.best is None or score > self.state.best:
            selected = f"step {self.state.step}, hold-out {dict(scores)}"
            self.checkpoints.save_model("best", self.evaluated_model, {"vitadel.selected": selected})
            self.state = replace(self.state, best=score)
        self.validated = self.state

    def _save_checkpoint(self) -> None:
        self._raise_non_finite()
        self.state = replace(self.state, unlogged=self.log.means.state())
        self.checkpoints.save(self.state)
        self.accelerator.wait_for_everyone()

    def _load_checkpoint(self) -> TrainState | None:
        """Load the newest checkpoint; no process writes the next one before all have read this one."""
        state = self.checkpoints.load(self.total_steps)
        self.accelerator.wait_for_everyone()
        return state

    def _raise_non_finite(self) -> None:
        """Raise before non-finite values are written, so that the last checkpoint is a good one.

        Checks the weights as well: a gradient can be non-finite although the loss is finite.
        """
        finite = self.log.means.finite() and all_finite(self.model)
        if any_process(self.accelerator, not finite):
            raise _NotFinite(f"the loss is no longer finite at step {self.state.step}")

    def _roll_back(self, why: str) -> None:
        """Return to the last checkpoint, and continue with different random numbers."""
        state = self._load_checkpoint()
        assert state is not None
        if state.rollbacks >= _ROLLBACKS:
            raise UsageError(
                f"{why}, for the {_ROLLBACKS + 1}th time. Lower the learning rate or set plan.clip_grad; "
                "the last checkpoint is untouched."
            )
        # the file of the best weights may be from an update that is undone here; only better weights replace it
        scored = self.validated or state
        self._continue_from(replace(state, rollbacks=state.rollbacks + 1, best=scored.best, robust=scored.robust))
        sentence = f"{why}: rolled back to step {state.step}, with different random numbers from there"
        self.log.flag(state.step, Flag("not-finite", sentence, {"rollbacks": self.state.rollbacks}))
        # saved at once, so that rollbacks are counted across restarts
        self._save_checkpoint()
