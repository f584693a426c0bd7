"""Which runs are of one model, and the numbers that choose colors and signs."""

from collections import Counter
from collections.abc import Mapping, Sequence

from vitadel.report.figures.base import PALETTE
from vitadel.report.records import Record

Identity = tuple[str, str]  # what a model is called, and the hash of its weights


def identities(records: Sequence[Record]) -> dict[str, Identity]:
    """The model of every label, those that were measured first.

    A run without weights, such as training, is of the model whose label it has, or whose name if that is its label and
    no two have it; else it is of a model of its own.
    """
    known: dict[str, Identity] = {}
    for record in sorted(records, key=lambda one: not one.weights):
        own = (record.name or record.label, record.weights) if record.weights else _named(record.label, known)
        known.setdefault(record.label, own)
    order = sorted(records, key=lambda one: not (one.evaluations or one.surveys))
    return {record.label: known[record.label] for record in order}


def _named(label: str, known: Mapping[str, Identity]) -> Identity:
    """The one measured model that is called like a label; without it, one of the label's own."""
    found = {model for model in known.values() if model[0] == label and model[1]}
    return found.pop() if len(found) == 1 else (label, "")


def numbers(models: Mapping[str, Identity]) -> dict[str, int]:
    """A number for every label; those of one model leave the same remainder, and so have one color and one sign."""
    places = {model: place for place, model in enumerate(dict.fromkeys(models.values()))}
    round_ = -(-len(places) // len(PALETTE)) * len(PALETTE)
    earlier: Counter[Identity] = Counter()
    numbered = {}
    for label, model in models.items():
        numbered[label] = places[model] + round_ * earlier[model]
        earlier[model] += 1
    return numbered


def names(models: Mapping[str, Identity]) -> list[str]:
    """Every model once, by its name, or by its first label where others are called the same."""
    first = {model: label for label, model in reversed(list(models.items()))}
    called = Counter(name for name, _ in first)
    return [model[0] if called[model[0]] == 1 else first[model] for model in dict.fromkeys(models.values())]
