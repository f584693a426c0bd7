"""Attacks on the images of a context: which copy of the model they search on, and their results image by image.

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
from vitadel.core.flags import Flag
from vitadel.core.oom import in_batches
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.evaluate.context import Batch, Context, logits
from vitadel.evaluate.sanity_checks import sanity_flags
from vitadel.evaluate.store import Row, TableRows
from vitadel.goals import Diverge, Goal, Targeted, Untargeted, top_other_classes
from vitadel.losses import kl_divergence

# what every attack costs per image
COSTS = ("forwards", "backwards", "seconds", "zero_gradients", "rejected")
# the table of the images as they are
CLEAN = "clean"
# predictions of a randomized model per image: this number to select the worst attempt by, and as many fresh ones to
# score
_SAMPLES = 20
# images of the sanity checks
_CHECKED = 64
_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "float64"}


@dataclass(slots=True)
class AttackRunner:
    """How attacks compute the model: as it is, or a copy in reduced precision, compiled.

    A search in reduced precision that meets numbers beyond its range continues in a wider one. A success counts only if
    the model itself agrees.

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
        count = min(_CHECKED, ctx.batch_size, len(ctx.images))

        def check(index: Tensor) -> tuple[AttackRunner, tuple[Flag, ...]]:
            return _checked(ctx, index, bool(attacks))

        _, (runner, flags) = next(in_batches(torch.arange(count), count, check))  # as many as fit into memory
        ctx.add_flags(flags)
        num_classes = ctx.logits(ctx.batch([0]).x).shape[1]
        for one in attacks:
            if isinstance(one.attack, IterativeAttack):
                flags = one.attack.find_flags(Untargeted(torch.zeros(1, dtype=torch.int64), one.loss), num_classes)
                ctx.add_flags(replace(flag, sentence=f"{one.name}: {flag.sentence}") for flag in flags)
        return runner

    @property
    def precision(self) -> str:
        """What searches are computed in: reduced if there is such a copy, or if the model itself is."""
        if self.copy is not None:
            return str(self.engine.on(self.ctx.device).precision)
        return _NAMES.get(in_own_precision(self.ctx.model, torch.empty(0)).dtype, "float32")

    def results(self, attack: NamedAttack, index: Sequence[int]) -> Iterator[tuple[int, ImageResult]]:
        """Attack the images in `index`; each result is yielded with its image's index as soon as it is known."""
        # random numbers are drawn per image, so another batch size draws the same ones
        seed = fold_seed(self.ctx.seed, *attack.name.encode())
        if not isinstance(attack.attack, IterativeAttack) or not attack.attack.uses_engine:
            yield from self._in_batches(attack, index, seed)
            return
        done: set[int] = set()
        while True:
            try:
                todo = [image for image in index if image not in done]
                for image, result in self._with_engine(attack, attack.attack, todo, seed):
                    done.add(image)
                    yield image, result
            except NonFiniteError:
                self._use_wider_precision()
            else:
                return

    def _use_wider_precision(self) -> None:
        """Continue in a wider precision; called while the error is handled."""
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
        """A batch that stays full: images enter as others finish."""
        ctx, threat = self.ctx, self.ctx.required_threat
        images, clean = torch.tensor(index), ctx.store.read(CLEAN)
        top_other = dict(zip(clean["index"], clean["top_other_classes"], strict=True))
        num_classes = clean["num_classes"][0]

        def fetch(places: Tensor) -> tuple[Tensor, Goal, Tensor]:
            batch = ctx.batch(images[places])
            others_BT = torch.tensor([top_other[image] for image in batch.index.tolist()], device=ctx.device)
            return batch.x, _goal(named, ctx, batch), others_BT[:, : attack.num_branches(num_classes)]

        highest = int(ctx.images.labels[images].max())
        model, judge = Oracle(self.copy or ctx.model, highest), Oracle(ctx.model, highest)
        queue = WorkQueue(RandomStreams.of(seed, images.to(ctx.device)), num_classes, fetch)
        engine = self.engine.on(ctx.device, 3 * ctx.image_size[0] * ctx.image_size[1])
        flags: list[Flag] = []
        with isolated(ctx.model, seed, ctx.device):
            for results in engine.run(attack, model, queue, threat, judge, flags):
                for result in results:
                    yield index[result.index], result
        ctx.add_flags(flags)

    def _in_batches(self, named: NamedAttack, index: Sequence[int], seed: int) -> Iterator[tuple[int, ImageResult]]:
        """For attacks that are not iterative: batch by batch, with costs shared out evenly."""
        ctx, threat = self.ctx, self.ctx.required_threat

        def attack(some: Tensor) -> AttackResult:
            batch = ctx.batch(some)
            return named.attack(ctx.model, batch.x, _goal(named, ctx, batch), threat, seed=seed, index_B=some)

        for some, result in in_batches(index, ctx.batch_size, attack):
            for place, image in enumerate(some.tolist()):
                yield (
                    image,
                    ImageResult(
                        index=place,
                        success=bool(result.success[place]),
                        x_adv=result.x_adv[place].cpu().clone(),  # a view would keep the batch alive
                        prediction=int(result.prediction[place]),
                        distance=float(result.distance[place]),
                        forwards=result.forwards / len(some),
                        backwards=result.backwards / len(some),
                        zero_gradients=result.zero_gradients / len(some),
                        rejected=0,
                        seconds=result.seconds / len(some),
                    ),
                )


def _goal(named: NamedAttack, ctx: Context, batch: Batch) -> Goal:
    """What an attack wants of some images."""
    if named.loss is kl_divergence:
        return Diverge(logits(ctx.model, batch.x).to(ctx.device))
    if named.target is None:
        return Untargeted(batch.y, named.loss)
    return Targeted(named.target(logits(ctx.model, batch.x)).to(ctx.device), named.loss)


def record_clean_predictions(ctx: Context, attacks: Sequence[NamedAttack] = ()) -> list[int]:
    """Fill the table `clean`; the images of this process that are classified correctly."""
    randomized = is_randomized(attacks)
    most = max((one.attack.targets for one in attacks if isinstance(one.attack, IterativeAttack)), default=0)

    def work(batch: Batch) -> dict[str, Any]:
        label_B, z_BK = batch.y.cpu(), ctx.logits(batch.x)
        prediction_B = ctx.predicted(z_BK)
        correct_B = (prediction_B == label_B).float()
        selected_B, scored_B = _correct_shares(ctx.model, batch.x, label_B) if randomized else (correct_B, correct_B)
        return {
            "prediction": prediction_B,
            "correct_selected": selected_B,
            "correct_scored": scored_B,
            "num_classes": [z_BK.shape[1]] * len(batch),
            "top_other_classes": top_other_classes(z_BK, label_B, min(most, z_BK.shape[1] - 1)),
        }

    ctx.map(CLEAN, work)
    table = TableRows(ctx.store.read(CLEAN))
    correct = {image for image, share in zip(table.index, table["correct_selected"], strict=True) if share}
    return [image for image in ctx.local_part() if image in correct]


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
        keep: Called with finished rows, with `x_adv` in them, before they are written.

    Returns:
        The images that it did not break.
    """
    ctx = runner.ctx

    def results(missing: list[int]) -> Iterator[tuple[int, Row]]:
        for image, result in runner.results(attack, missing):
            names = ("success", "prediction", "distance", *COSTS, "x_adv")
            yield image, {name: getattr(result, name) for name in names}

    def before_write(rows: list[Row]) -> None:
        keep(rows)
        x_adv = torch.stack([row.pop("x_adv") for row in rows])
        if randomized:
            shares = _correct_shares(ctx.model, x_adv, ctx.images.labels[[row["index"] for row in rows]])
            for row, selected, scored in zip(rows, *(share.tolist() for share in shares), strict=True):
                row.update(correct_selected=selected, correct_scored=scored)

    ctx.stream(
        attack.name,
        results,
        index=index,
        before_write=before_write,
        counts=lambda row: {"broken": bool(row["success"])},
    )
    table = TableRows(ctx.store.read(attack.name))
    broken = {image for image, success in zip(table.index, table["success"], strict=True) if success}
    return [image for image in index if image not in broken]


def is_randomized(attacks: Sequence[NamedAttack]) -> bool:
    """Whether the attacks are those for randomized models, which define no success."""
    return any(isinstance(one.attack, IterativeAttack) and not one.attack.stops_at_success for one in attacks)


def _correct_shares(model: nn.Module, x: Tensor, label_B: Tensor) -> tuple[Tensor, Tensor]:
    """How often a randomized model is correct, twice: scoring on the samples that select would be biased upward."""
    samples = torch.stack([logits(model, x, seed=seed).argmax(1) == label_B for seed in range(2 * _SAMPLES)])
    selected, scored = samples.float().view(2, _SAMPLES, -1).mean(1)
    return selected, scored


def _checked(ctx: Context, index: Tensor, with_attacks: bool) -> tuple[AttackRunner, tuple[Flag, ...]]:
    """The copy of the model to search on, and flags for what was found on the way."""
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
