"""Runs attacks on the images of a context: on which copy of the model, with one result per image.

Shape letters: B images, K classes, T targets.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitadel.attacks import AttackResult, Engine, IterativeAttack, NamedAttack
from vitadel.attacks.engine.batching import ImageResult, NonFiniteError, WorkQueue
from vitadel.attacks.engine.precision import FALLBACK, in_precision, search_model
from vitadel.attacks.isolation import isolated
from vitadel.attacks.oracle import Model, Oracle, in_own_precision
from vitadel.core.errors import UsageError, short_repr
from vitadel.core.flags import Flag
from vitadel.core.oom import in_batches
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.evaluate.context import Batch, Context, logits
from vitadel.evaluate.sanity_checks import sanity_flags
from vitadel.evaluate.store import Row, TableRows
from vitadel.goals import Diverge, Goal, Targeted, Untargeted, top_other_classes
from vitadel.losses import kl_divergence

# the cost columns of an attack's table
COSTS = ("forwards", "backwards", "seconds", "zero_gradients", "rejected")
# the table of predictions on clean images
CLEAN = "clean"
# predictions of a randomized model per image: this many to select the worst attempt, and as many new ones to score it
_SAMPLES = 20
# images of the sanity checks
_SANITY_IMAGES = 64
_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "float64"}


@dataclass(slots=True)
class AttackRunner:
    """Runs attacks on a model, or on a copy of it that is in reduced precision or compiled.

    A search that overflows in reduced precision continues in a wider one. A success counts only if the original model
    agrees.

    Args:
        ctx: The model and the images.
        engine: How attacks are executed.
        copy: The copy of the model that attacks search on; the model itself if not given.
    """

    ctx: Context
    engine: Engine
    copy: Model | None = None

    @classmethod
    def choose(cls, ctx: Context, attacks: Sequence[NamedAttack]) -> "AttackRunner":
        """Check the model on a few images and choose the copy that attacks search on; flags go into the context."""
        count = min(_SANITY_IMAGES, ctx.batch_size, len(ctx.images))

        def check(index: Tensor) -> tuple[AttackRunner, tuple[Flag, ...]]:
            return _checked(ctx, index, bool(attacks))

        _, (runner, flags) = next(in_batches(torch.arange(count), count, check))  # as many as fit into memory
        ctx.add_flags(flags)
        num_classes = ctx.logits(ctx.batch([0]).x).shape[1]
        for named in attacks:
            if isinstance(named.attack, IterativeAttack):
                flags = named.attack.find_flags(Untargeted(torch.zeros(1, dtype=torch.int64), named.loss), num_classes)
                ctx.add_flags(replace(flag, sentence=f"{named.name}: {flag.sentence}") for flag in flags)
        return runner

    @property
    def precision(self) -> str:
        """The precision of searches: that of the copy, or of the model's weights."""
        if self.copy is not None:
            return str(self.engine.on(self.ctx.device).precision)
        return _NAMES.get(in_own_precision(self.ctx.model, torch.empty(0)).dtype, "float32")

    def results(self, attack: NamedAttack, index: Sequence[int]) -> Iterator[tuple[int, ImageResult]]:
        """Attack the images in `index`; yields (index, result) as soon as an image is finished."""
        # random numbers are seeded per image, so they do not depend on the batch size
        seed = fold_seed(self.ctx.seed, *attack.name.encode())
        if not isinstance(attack.attack, IterativeAttack) or not attack.attack.uses_engine:
            yield from self._in_batches(attack, index, seed)
            return
        done: set[int] = set()
        while True:
            try:
                todo = [one for one in index if one not in done]
                for finished, result in self._with_engine(attack, attack.attack, todo, seed):
                    done.add(finished)
                    yield finished, result
            except NonFiniteError:
                self._use_wider_precision()
            else:
                return

    def _use_wider_precision(self) -> None:
        """Switch to a wider precision; called inside an `except` block, and re-raises if there is none."""
        precision = self.precision
        if self.copy is None or precision not in FALLBACK:
            raise
        wider = FALLBACK[precision]
        sentence = f"the search met numbers beyond the range of {precision} and continued in {wider}"
        self.ctx.add_flags([Flag("search-fallback", sentence, {})])
        self.engine = replace(self.engine, precision=wider)
        self.copy = in_precision(self.ctx.model, wider) if wider != "float32" else None

    def _with_engine(
        self, named: NamedAttack, attack: IterativeAttack, index: Sequence[int], seed: int
    ) -> Iterator[tuple[int, ImageResult]]:
        ctx, clean = self.ctx, TableRows(self.ctx.store.read(CLEAN))
        num_classes = clean.of_type("num_classes", int)[0]
        top_other = dict(zip(clean.index, clean.of_type("top_other_classes", list), strict=True))
        if wrong := next((one for one in top_other.values() if not _are_classes(one, num_classes)), None):
            raise UsageError(
                f"the table {CLEAN!r} of {ctx.name} has {short_repr(wrong)} for the classes that an attack aims at. "
                f"Delete {ctx.store.folder}/tables and run the same command again."
            )

        def goal_and_targets(batch: Batch) -> tuple[Goal, Tensor]:
            others_BT = torch.tensor([top_other[one] for one in batch.index.tolist()], device=ctx.device)
            return _goal(named, ctx, batch), others_BT[:, : attack.num_branches(num_classes)]

        return self.run_iterative(attack, index, goal_and_targets, seed=seed, num_classes=num_classes)

    def run_iterative(
        self,
        attack: IterativeAttack,
        index: Sequence[int],
        goal_and_targets: Callable[[Batch], tuple[Goal, Tensor]],
        *,
        seed: int,
        num_classes: int,
        confirm: bool = True,
    ) -> Iterator[tuple[int, ImageResult]]:
        """Run an iterative attack in a batch that stays full, since new images replace finished ones.

        Args:
            attack: The attack.
            index: The images.
            goal_and_targets: Returns the goal of a batch and the classes [B, T] that an attack with targets tries.
            seed: Seeds the random numbers, together with the index of an image.
            num_classes: Number of classes of the model.
            confirm: Whether a success counts only if the model confirms it, which takes a forward pass.

        Yields:
            The index and the result of each image, as soon as it is finished.
        """
        ctx, index_n = self.ctx, torch.tensor(index)

        def fetch(position_B: Tensor) -> tuple[Tensor, Goal, Tensor]:
            batch = ctx.batch(index_n[position_B.cpu()])
            return batch.x, *goal_and_targets(batch)

        highest = int(ctx.images.labels[index_n].max())
        model = Oracle(self.copy or ctx.model, highest)
        judge = Oracle(ctx.model, highest) if confirm else None
        queue = WorkQueue(RandomStreams.of(seed, index_n.to(ctx.device)), num_classes, fetch)
        engine = self.engine.on(ctx.device, 3 * ctx.image_size[0] * ctx.image_size[1])
        flags: list[Flag] = []
        with isolated(ctx.model, seed, ctx.device):
            for results in engine.run(attack, model, queue, ctx.required_threat, judge, flags):
                for result in results:
                    yield index[result.index], result
        ctx.add_flags(flags)

    def _in_batches(self, named: NamedAttack, index: Sequence[int], seed: int) -> Iterator[tuple[int, ImageResult]]:
        """For other attacks: batch by batch, with the batch's cost divided evenly among its images."""
        ctx, threat = self.ctx, self.ctx.required_threat

        def attack(index_B: Tensor) -> AttackResult:
            batch = ctx.batch(index_B)
            return named.attack(ctx.model, batch.x, _goal(named, ctx, batch), threat, seed=seed, index_B=index_B)

        for index_B, result in in_batches(index, ctx.batch_size, attack):
            for position, image_index in enumerate(index_B.tolist()):
                yield (
                    image_index,
                    ImageResult(
                        index=position,
                        success=bool(result.success[position]),
                        x_adv=result.x_adv[position].cpu().clone(),  # a view would keep the batch alive
                        prediction=int(result.prediction[position]),
                        distance=float(result.distance[position]),
                        forwards=result.forwards / len(index_B),
                        backwards=result.backwards / len(index_B),
                        zero_gradients=result.zero_gradients / len(index_B),
                        rejected=0,
                        seconds=result.seconds / len(index_B),
                    ),
                )


def _are_classes(values: Sequence[object], num_classes: int) -> bool:
    return all(type(value) is int and 0 <= value < num_classes for value in values)


def _goal(named: NamedAttack, ctx: Context, batch: Batch) -> Goal:
    """The goal of an attack on a batch of images."""
    if named.loss is kl_divergence:
        return Diverge(logits(ctx.model, batch.x).to(ctx.device))
    if named.target is None:
        return Untargeted(batch.y, named.loss)
    return Targeted(named.target(logits(ctx.model, batch.x)).to(ctx.device), named.loss)


def record_clean_predictions(ctx: Context, attacks: Sequence[NamedAttack] = ()) -> list[int]:
    """Fill the table `clean`; returns the indices of this process's images that are classified correctly."""
    randomized = is_randomized(attacks)
    num_targets = max((one.attack.targets for one in attacks if isinstance(one.attack, IterativeAttack)), default=0)

    def work(batch: Batch) -> dict[str, Any]:
        label_B, z_BK = batch.y.cpu(), ctx.logits(batch.x)
        prediction_B = ctx.predicted(z_BK)
        correct_B = (prediction_B == label_B).float()
        selected_B, scored_B = _correct_fractions(ctx.model, batch.x, label_B) if randomized else (correct_B, correct_B)
        return {
            "prediction": prediction_B,
            "correct_selected": selected_B,
            "correct_scored": scored_B,
            "num_classes": [z_BK.shape[1]] * len(batch),
            "top_other_classes": top_other_classes(z_BK, label_B, min(num_targets, z_BK.shape[1] - 1)),
        }

    ctx.map(CLEAN, work)
    table = TableRows(ctx.store.read(CLEAN))
    correct = {
        index for index, fraction in zip(table.index, table.of_type("correct_selected", float), strict=True) if fraction
    }
    return [index for index in ctx.local_part() if index in correct]


def fill_attack_table(
    runner: AttackRunner,
    attack: NamedAttack,
    index: Sequence[int],
    *,
    randomized: bool = False,
    keep: Callable[[list[Row]], None] = lambda rows: None,
) -> list[int]:
    """Fill the table of an attack.

    Args:
        runner: The model and the images.
        attack: The attack.
        index: The images to attack, of this process.
        randomized: Whether the model is randomized, and attempts are scored.
        keep: Called with finished rows, which contain `x_adv`, before they are written.

    Returns:
        The indices of images that are still robust.
    """
    ctx = runner.ctx

    def results(missing: list[int]) -> Iterator[tuple[int, Row]]:
        for finished, result in runner.results(attack, missing):
            names = ("success", "prediction", "distance", *COSTS, "x_adv")
            yield finished, {name: getattr(result, name) for name in names}

    def before_write(rows: list[Row]) -> None:
        keep(rows)
        x_adv = torch.stack([row.pop("x_adv") for row in rows])
        if randomized:
            label_B = ctx.images.labels[[row["index"] for row in rows]]
            selected_B, scored_B = _correct_fractions(ctx.model, x_adv, label_B)
            for row, selected, scored in zip(rows, selected_B.tolist(), scored_B.tolist(), strict=True):
                row.update(correct_selected=selected, correct_scored=scored)

    ctx.stream(
        attack.name,
        results,
        index=index,
        before_write=before_write,
        counts=lambda row: {"broken": bool(row.get("success"))},  # of stored rows it is checked below
    )
    table = TableRows(ctx.store.read(attack.name))
    broken = {one for one, success in zip(table.index, table.of_type("success", bool), strict=True) if success}
    return [one for one in index if one not in broken]


def is_randomized(attacks: Sequence[NamedAttack]) -> bool:
    """Whether the attacks are those for randomized models, which do not stop at a success."""
    return any(isinstance(one.attack, IterativeAttack) and not one.attack.stops_at_success for one in attacks)


def _correct_fractions(model: nn.Module, x: Tensor, label_B: Tensor) -> tuple[Tensor, Tensor]:
    """How often a randomized model is correct, on two independent sets of samples.

    One set selects the worst attempt and the other scores it: scoring on the selecting samples would be biased.
    """
    samples = torch.stack([logits(model, x, seed=seed).argmax(1) == label_B for seed in range(2 * _SAMPLES)])
    selected, scored = samples.float().view(2, _SAMPLES, -1).mean(1)
    return selected, scored


def _checked(ctx: Context, index: Tensor, with_attacks: bool) -> tuple[AttackRunner, tuple[Flag, ...]]:
    """A runner with the copy of the model to search on, and the flags of the sanity checks."""
    x, engine = ctx.batch(index).x, ctx.engine.on(ctx.device)
    flags = sanity_flags(ctx.model, x)
    if not with_attacks:
        return AttackRunner(ctx, ctx.engine), flags
    if any(flag.code == "randomized" for flag in flags):
        # a captured or compiled model may repeat the random numbers it was captured with
        return AttackRunner(ctx, replace(ctx.engine, cuda_graph=False, precision="float32", compile=False)), flags
    if engine.precision == "float32" and not engine.compile:
        return AttackRunner(ctx, ctx.engine), flags
    with isolated(ctx.model, ctx.seed, ctx.device):
        copy, precision, failed = search_model(ctx.model, x, str(engine.precision), compile=engine.compile)
    engine = replace(ctx.engine, precision=precision)
    return AttackRunner(ctx, engine, None if copy is ctx.model else copy), (*flags, *failed)
