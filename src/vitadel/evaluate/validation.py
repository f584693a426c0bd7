"""A few accuracies in memory: what training needs to choose a checkpoint."""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vitadel.attacks import FGSM, Attack, Engine, frozen
from vitadel.core.device import device_of
from vitadel.core.numeric import check_seed
from vitadel.data import Split
from vitadel.evaluate.attack_suites import Entry
from vitadel.evaluate.cascade import Cascade, halving
from vitadel.evaluate.journal import Notebook
from vitadel.goals import Untargeted
from vitadel.models import Adapted, Model, with_head
from vitadel.threats import Threat


def validation_scores(
    model: nn.Module, split: Split, attack: Attack | None, threat: Threat | None, *, seed: int, batch: int = 256
) -> Mapping[str, float]:
    """Clean accuracy, and if there is an attack those after one step and after it: the value to select by comes last.

    What falls to one step counts as fallen. The accuracy after one step is that of all images, whatever was said of
    them before: a model that reads the attack has more of those right than clean ones. Of a TORA model also the robust
    head's, on the same images, clean and one step away by the joint answer.
    """
    check_seed(seed)
    entries: tuple[Entry, ...] = ()
    if attack is not None and threat is not None:
        entries = (Entry("fgsm", FGSM()), Entry("robust", attack))
    engine = Engine(batch_size=batch, cuda_graph=False, precision="float32")
    notebook = Notebook()
    cascade = Cascade(model, split, entries, threat, notebook, seed, engine)
    cascade.attack(cascade.classify())
    right = sum(float(str(share)) for share in notebook.page("clean").read()["right_scored"])
    scores = {"clean": right / len(split)}
    if threat is None or not entries:
        return scores
    scores |= {name: count / len(split) for name, count in _one_step_away(model, split, threat, seed, batch).items()}
    for entry in entries:
        right -= sum(map(bool, notebook.page(entry.name).read().get("success", [])))
    return {**scores, "robust": right / len(split)}


def _one_step_away(model: nn.Module, split: Split, threat: Threat, seed: int, batch: int) -> Mapping[str, int]:
    """How many are right, by who is asked and about what."""
    device, robust_head = device_of(model), _robust_head(model)

    def count(rows: Tensor) -> Counter[str]:
        x, y = split.images(rows).to(device), split.labels[rows].to(device)
        stepped = FGSM()(model, x, Untargeted(y), threat, seed=seed, index_B=rows.to(device))
        right = Counter[str]()
        if robust_head is not None:
            with frozen(robust_head), torch.no_grad():
                right["rob_clean"] = int((robust_head(x).argmax(1) == y).sum())
                right["rob_fgsm"] = int((robust_head(stepped.x_adv).argmax(1) == y).sum())
        right["fgsm"] = int((stepped.prediction == y).sum())
        return right

    right = Counter[str]()
    for _, some in halving(list(range(len(split))), batch, count):
        right.update(some)  # `+` would drop what is 0
    return right


def _robust_head(model: nn.Module) -> Model | None:
    if isinstance(model, Model) and isinstance(model.net, Adapted) and "rob" in model.net.tuning.names:
        return with_head(model, "rob")
    return None
