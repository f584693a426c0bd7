"""Attacks of a study on chosen images, with one row per image, and input gradients that are exactly zero.

Shape letters: B images, K classes, T targets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vitadel.attacks import IterativeAttack
from vitadel.attacks.isolation import isolated
from vitadel.attacks.oracle import Oracle, is_zero
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.core.stats import Accuracy, accuracy
from vitadel.evaluate.attack_runner import AttackRunner
from vitadel.evaluate.context import Batch, Context
from vitadel.evaluate.store import Row, TableRows
from vitadel.goals import Goal, Untargeted, top_other_classes
from vitadel.losses import Loss, cross_entropy
from vitadel.threats import Threat


@dataclass(frozen=True, slots=True)
class AttackOutcome:
    """The results of an attack.

    Args:
        tried: The number of images attacked.
        rows: A row for each: `success`, `forwards`, `backwards`, `zero_gradients`, `seconds`.
    """

    tried: int
    rows: TableRows

    @property
    def broken(self) -> frozenset[int]:
        """The images for which it found an adversarial example."""
        pairs = zip(self.rows.index, self.rows.of_type("success", bool), strict=True)
        return frozenset(index for index, success in pairs if success)

    @property
    def share(self) -> Accuracy | None:
        """The share of broken images, None if none was tried."""
        return accuracy(len(self.broken), self.tried) if self.tried else None

    def total(self, column: str) -> float:
        """The sum of a column over all images."""
        return float(sum(self.rows.of_type(column, int, float)))


def run_attack(
    ctx: Context,
    name: str,
    attack: IterativeAttack,
    index: Sequence[int],
    threat: Threat,
    *,
    loss: Loss = cross_entropy,
    model: nn.Module | None = None,
) -> AttackOutcome:
    """Attack images on the model itself, and store a row for each as soon as its attack is finished.

    Args:
        ctx: The context.
        name: The name of the table, which also seeds the attack's random numbers.
        attack: The attack.
        index: The images.
        threat: The threat model.
        loss: What the attack maximizes.
        model: The model, the context's if not given.
    """
    target = ctx.model if model is None else model
    runner = AttackRunner(replace(ctx, model=target, threat=threat), ctx.engine)
    seed = fold_seed(ctx.seed, *name.encode())

    def results(missing: list[int]) -> Iterator[tuple[int, Row]]:
        num_classes = ctx.logits(ctx.images.images(torch.tensor(missing[:1])), model=target).shape[1]
        oracle = Oracle(target, int(ctx.images.labels[missing].max()))

        def goal_and_targets(batch: Batch) -> tuple[Goal, Tensor]:
            others_BT = torch.zeros(len(batch), 0, dtype=torch.int64, device=ctx.device)
            if attack.targets:
                with torch.no_grad():
                    others_BT = top_other_classes(oracle(batch.x), batch.y, attack.num_branches(num_classes))
            return Untargeted(batch.y, loss), others_BT

        finished = runner.run_iterative(
            attack,
            missing,
            goal_and_targets,
            seed=seed,
            num_classes=num_classes,
            # the search runs on the model itself, so a success is one unless projecting it changes it
            confirm=attack.may_leave_threat,
        )
        for image_index, result in finished:
            columns = ("success", "forwards", "backwards", "zero_gradients", "seconds")
            yield image_index, {column: getattr(result, column) for column in columns}

    ctx.stream(name, results, index=index, counts=lambda row: {"broken": int(bool(row.get("success")))})
    return AttackOutcome(len(index), ctx.table(name))


def has_zero_gradient(ctx: Context, batch: Batch, loss: Loss, threat: Threat | None) -> Tensor:
    """[B]: whether the input gradient is exactly zero: at the images, or at a random point of the threat."""
    seed = fold_seed(ctx.seed, *b"zero-gradients")
    with isolated(ctx.model, seed, ctx.device):
        x = batch.x if threat is None else threat.sample(batch.x, RandomStreams.of(seed, batch.index.to(ctx.device)))
        _, grad, _ = Oracle(ctx.model).gradient(x, Untargeted(batch.y, loss))
    return is_zero(grad)
