"""Two accuracies in memory: what training needs to choose a checkpoint."""

from collections.abc import Mapping

from torch import nn

from vitadel.attacks import Attack, Engine
from vitadel.data import Split
from vitadel.evaluate.cascade import Cascade
from vitadel.evaluate.journal import Notebook
from vitadel.evaluate.suites import Entry
from vitadel.threat import Threat


def quick_scores(
    model: nn.Module, split: Split, attack: Attack | None, threat: Threat | None, *, seed: int, batch: int = 256
) -> Mapping[str, float]:
    """Clean accuracy, and robust accuracy after it if there is an attack: the value to select by comes last."""
    entries = (Entry("check", attack),) if attack is not None and threat is not None else ()
    engine = Engine(rows=batch, replay=False, precision="float32")
    notebook = Notebook()
    cascade = Cascade(model, split, entries, threat, notebook, seed, engine)
    cascade.attack(cascade.classify())
    right = sum(float(str(share)) for share in notebook.page("clean").read()["right_scored"])
    scores = {"clean": right / len(split)}
    if not entries:
        return scores
    fell = sum(map(bool, notebook.page("check").read().get("reached", [])))
    return {**scores, "robust": (right - fell) / len(split)}
