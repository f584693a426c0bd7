"""A few accuracies in memory: what training needs to choose a checkpoint."""

from collections.abc import Mapping

from torch import nn

from vitadel.attacks import FGSM, Attack, Engine
from vitadel.data import Split
from vitadel.evaluate.cascade import Cascade
from vitadel.evaluate.journal import Notebook
from vitadel.evaluate.suites import Entry
from vitadel.threat import Threat


def quick_scores(
    model: nn.Module, split: Split, attack: Attack | None, threat: Threat | None, *, seed: int, batch: int = 256
) -> Mapping[str, float]:
    """Clean accuracy, and if there is an attack those after one step and after it: the value to select by comes last.

    What falls to one step counts as fallen: the gap between the two is what the attack adds.
    """
    entries: tuple[Entry, ...] = ()
    if attack is not None and threat is not None:
        entries = (Entry("fgsm", FGSM()), Entry("robust", attack))
    engine = Engine(rows=batch, replay=False, precision="float32")
    notebook = Notebook()
    cascade = Cascade(model, split, entries, threat, notebook, seed, engine)
    cascade.attack(cascade.classify())
    right = sum(float(str(share)) for share in notebook.page("clean").read()["right_scored"])
    scores = {"clean": right / len(split)}
    for entry in entries:
        right -= sum(map(bool, notebook.page(entry.name).read().get("reached", [])))
        scores[entry.name] = right / len(split)
    return scores
