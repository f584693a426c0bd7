"""Clean and robust accuracy in memory, by which training selects a checkpoint."""

from collections import Counter
from collections.abc import Mapping, Set

import torch
from torch import Tensor, nn

from vitadel.attacks import FGSM, Attack, Engine, NamedAttack
from vitadel.attacks.isolation import eval_without_weight_gradients
from vitadel.core.oom import in_batches
from vitadel.data import Split
from vitadel.evaluate.attack_runner import AttackRunner, fill_attack_table, record_clean_predictions
from vitadel.evaluate.context import Context
from vitadel.goals import Untargeted
from vitadel.models import AdaptedViT, Model, with_head
from vitadel.threats import Threat


def validation_scores(
    model: nn.Module, split: Split, attack: Attack | None, threat: Threat | None, *, seed: int, batch: int = 256
) -> Mapping[str, float]:
    """Clean and robust accuracy on some images, in memory.

    The accuracy under FGSM counts all images, also those that are misclassified without an attack: a model that
    recognizes the attack (label leaking) classifies more of these correctly than clean images. For a TORA model there
    are also the accuracies of the robust head, on clean images and on those of FGSM on the joint output.

    Args:
        model: The model.
        split: The images, often the hold-out.
        attack: The attack; without one, clean accuracy alone.
        threat: The threat model.
        seed: Seeds all random numbers.
        batch: Batch size.

    Returns:
        `clean`, with an attack also `fgsm` and `robust`. An image that FGSM breaks counts as broken.
    """
    engine = Engine(batch_size=batch, cuda_graph=False, precision="float32")
    ctx = Context(model, split, threat=threat, seed=seed, engine=engine)
    named = None if attack is None else NamedAttack("robust", attack)
    correct = record_clean_predictions(ctx, () if named is None else (named,))
    scores = {"clean": len(correct) / len(split)}
    if named is None or threat is None:
        return scores
    counts, stepped = _one_step_away(ctx)
    scores |= {name: count / len(split) for name, count in counts.items()}
    remaining = [index for index in correct if index in stepped]
    robust = fill_attack_table(AttackRunner(ctx, engine), named, remaining)
    return {**scores, "robust": len(robust) / len(split)}


def _one_step_away(ctx: Context) -> tuple[Mapping[str, int], Set[int]]:
    """The number of correct images under FGSM, and of each head; and the indices of those correct under FGSM."""
    assert ctx.threat is not None
    threat, robust_head = ctx.threat, _robust_head(ctx.model)

    def count(index: Tensor) -> tuple[Counter[str], list[int]]:
        batch = ctx.batch(index)
        goal = Untargeted(batch.y)
        stepped = FGSM()(ctx.model, batch.x, goal, threat, seed=ctx.seed, index_B=index.to(ctx.device))
        correct = Counter[str]()
        if robust_head is not None:
            with eval_without_weight_gradients(robust_head), torch.no_grad():
                correct["rob_clean"] = int((robust_head(batch.x).argmax(1) == batch.y).sum())
                correct["rob_fgsm"] = int((robust_head(stepped.x_adv).argmax(1) == batch.y).sum())
        correct_B = (stepped.prediction == batch.y).cpu()
        correct["fgsm"] = int(correct_B.sum())
        return correct, index[correct_B].tolist()

    correct, images = Counter[str](), set[int]()
    for _, (some, after) in in_batches(torch.arange(len(ctx.images)), ctx.batch_size, count):
        correct.update(some)  # `+` would drop zeros
        images.update(after)
    return correct, images


def _robust_head(model: nn.Module) -> Model | None:
    if isinstance(model, Model) and isinstance(model.net, AdaptedViT) and "rob" in model.net.tuning.names:
        return with_head(model, "rob")
    return None
