"""Two accuracies in memory: what training needs to choose a checkpoint."""

from collections.abc import Mapping

import torch
from torch import nn

from vitadel.attacks import Attack
from vitadel.data import Split, batches
from vitadel.evaluate.cascade import STANDING, WRONG, classify, strike
from vitadel.evaluate.suites import Entry
from vitadel.threat import Threat


def quick_scores(
    model: nn.Module, split: Split, attack: Attack | None, threat: Threat | None, *, seed: int, batch: int = 256
) -> Mapping[str, float]:
    """Clean accuracy, and robust accuracy after it if there is an attack: the value to select by comes last."""
    right = standing = 0
    for row_B, x, label_B in batches(split, torch.arange(len(split)).split(batch)):
        judged = classify(model, row_B, x, label_B)
        right += sum(name != WRONG for name in judged.fell_to)
        if attack is not None and threat is not None:
            strike(model, judged, Entry("check", attack), threat, seed=seed)
        standing += sum(name == STANDING for name in judged.fell_to)
    scores = {"clean": right / len(split)}
    return scores if attack is None else {**scores, "robust": standing / len(split)}
