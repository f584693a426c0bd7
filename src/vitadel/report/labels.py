"""Labels of runs in reports, the models they belong to, and the numbers of their colors and markers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitadel.core.files import printable
from vitadel.runs import ManifestRecord

if TYPE_CHECKING:
    from vitadel.report.reader import RunRecord

Identity = tuple[str, str]  # the name of a model, and the hash of its weights


def model_name(manifest: ManifestRecord) -> str:
    """The name of the model or the recipe; for a file of weights its name without folders."""
    name = manifest.text("model", "name") or manifest.text("recipe", "name")
    start, at, weights = name.partition("@")
    file, mark, head = start.partition("#")
    if file.endswith(".safetensors") and "+" not in file:
        start = f"{Path(file).stem}{mark}{head}"
    return printable(f"{start}{at}{Path(weights).name}")


def with_labels(records: "Sequence[RunRecord]") -> "tuple[RunRecord, ...]":
    """The records with short labels, which are unique among runs with the same kind of content."""
    return _unique(_with_heads(_without_files(records)))


def _without_files(records: "Sequence[RunRecord]") -> "list[RunRecord]":
    """Labels without the files of weights, if there is only one file per network."""
    starts = [record.label.partition("@")[0] for record in records]
    files: dict[str, set[str]] = {}
    for start, record in zip(starts, records, strict=True):
        files.setdefault(start, set()).add(record.weights)
    return [
        replace(record, label=start) if len(files[start]) == 1 else record
        for start, record in zip(starts, records, strict=True)
    ]


def _with_heads(records: "Sequence[RunRecord]") -> "list[RunRecord]":
    """Labels of models with several heads: one name, and the head.

    The mean of the heads is the default, and is named only beside other heads of the same model.
    """
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        weights, head = _head(record)
        if head:
            groups.setdefault(weights, []).append(record)
    names = {weights: _shared_name([record.label for record in group]) for weights, group in groups.items()}
    several = {weights for weights, group in groups.items() if len({_head(record)[1] for record in group}) > 1}
    labeled = []
    for record in records:
        weights, head = _head(record)
        named = bool(head) and (head != "joint" or weights in several)
        labeled.append(replace(record, label=f"{names[weights]}#{head}") if named else record)
    return labeled


def _shared_name(labels: Sequence[str]) -> str:
    return next((label for label in labels if "#" not in label), labels[0].rpartition("#")[0])


def _head(record: "RunRecord") -> tuple[str, str]:
    """The weights, and which of several heads predicts; two empty texts for a model with one head."""
    head = record.manifest.head
    return (record.weights, head) if head and record.weights else ("", "")


def _unique(records: "Sequence[RunRecord]") -> "tuple[RunRecord, ...]":
    """Labels with folders, if several runs of one name have the same kind of content or different weights."""
    records = [replace(record, name=record.label) for record in records]
    shown = Counter((r.label, what) for r in records for what in r.contents)
    weights = Counter(label for label, of in {(r.label, r.weights) for r in records} if of)
    clear = [
        replace(r, label=f"{r.label} ({r.folder})")
        if any(shown[r.label, what] > 1 for what in r.contents) or (weights[r.label] > 1 and r.weights)
        else r
        for r in records
    ]
    seen: Counter[tuple[str, str]] = Counter()
    unique = []
    for record in clear:
        number = 1 + max(seen[record.label, what] for what in record.contents)
        seen.update((record.label, what) for what in record.contents)
        unique.append(record if number == 1 else replace(record, label=f"{record.label} #{number}"))
    return tuple(unique)


def identities(records: "Sequence[RunRecord]") -> dict[str, Identity]:
    """The model of every label; evaluated models come first.

    A run without weights, such as training, is of the model whose label it has, or whose name if that is its label and
    no two have it; otherwise it is of a separate model.
    """
    known: dict[str, Identity] = {}
    for record in sorted(records, key=lambda one: not one.weights):
        own = (record.name or record.label, record.weights) if record.weights else _named(record.label, known)
        known.setdefault(record.label, own)
    order = sorted(records, key=lambda one: not (one.attacks or one.perturbations))
    return {record.label: known[record.label] for record in order}


def _named(label: str, known: Mapping[str, Identity]) -> Identity:
    """The only evaluated model whose name is this label, or else a separate model."""
    models = {model for model in known.values() if model[0] == label and model[1]}
    return models.pop() if len(models) == 1 else (label, "")


def color_numbers(models: Mapping[str, Identity], colors: int) -> dict[str, int]:
    """A number for every label; those of one model are equal modulo `colors`, so they share color and marker."""
    first = {model: number for number, model in enumerate(dict.fromkeys(models.values()))}
    step = -(-len(first) // colors) * colors
    earlier: Counter[Identity] = Counter()
    numbers = {}
    for label, model in models.items():
        numbers[label] = first[model] + step * earlier[model]
        earlier[model] += 1
    return numbers


def model_names(models: Mapping[str, Identity]) -> list[str]:
    """Every model once, by its name, or by its first label if the name is not unique."""
    first = {model: label for label, model in reversed(list(models.items()))}
    count = Counter(name for name, _ in first)
    return [model[0] if count[model[0]] == 1 else first[model] for model in dict.fromkeys(models.values())]
