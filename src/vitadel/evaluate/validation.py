"""A few accuracies in memory: what training needs to choose a checkpoint."""

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

    The accuracy after one step is that of all images, whatever was found before: a model that reads the attack has more
    of those correct than clean ones. For a TORA model, also those of the robust head, on the same images, clean and one
    step away by the joint output.

    Args:
        model: The model.
        split: The images, often the hold-out.
        attack: The attack; without one, clean accuracy alone.
        threat: The threat model.
        seed: Seeds all random numbers.
        batch: Images at a time.

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
    left = [image for image in correct if image in stepped]
    robust = fill_attack_table(AttackRunner(ctx, engine), named, left)
    return {**scores, "robust": len(robust) / len(split)}


def _one_step_away(ctx: Context) -> tuple[Mapping[str, int], Set[int]]:
    """How many images are correct, of each head, clean and one step away; and which are so one step away."""
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
        correct.update(some)  # `+` would drop what is 0
        images.update(after)
    return correct, images


def _robust_head(model: nn.Module) -> Model | None:
    if isinstance(model, Model) and isinstance(model.net, AdaptedViT) and "rob" in model.net.tuning.names:
        return with_head(model, "rob")
    return None
