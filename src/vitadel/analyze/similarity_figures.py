"""Maps of the similarity of layers, as exhibits: heat maps, the steps from layer to layer, and a sentence.

Shape letters: L layers, R rows, C columns.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitadel.analyze.layers import axis_label
from vitadel.runs.exhibits import Exhibit, Heatmap, Line, Lines, Matrix, Table

_LABELS = {"all": "all tokens", "class": "class token", "whole": "all a layer gives"}


@dataclass(frozen=True, slots=True, eq=False)
class SimilarityMap:
    """The similarity of the layers `rows` to the layers `columns`; NaN where it is undefined."""

    rows: Sequence[str]
    columns: Sequence[str]
    values_RC: Tensor

    def part(self, rows: slice, columns: slice) -> "SimilarityMap":
        return SimilarityMap(self.rows[rows], self.columns[columns], self.values_RC[rows, columns])

    def numbers(self) -> dict[str, object]:
        """The map as JSON values."""
        return {"rows": list(self.rows), "columns": list(self.columns), "values": self.values_RC.tolist()}

    @property
    def steps(self) -> list[float]:
        """The similarity of every layer to the next."""
        return [float(one) for one in self.values_RC.diagonal(1)]


def heat_maps(title: str, caption: str, label: str, maps: Mapping[str, SimilarityMap]) -> list[Exhibit]:
    """Heat maps; those of the same layers are side by side in one figure."""
    together: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name, one in maps.items():
        together.setdefault((tuple(one.rows), tuple(one.columns)), []).append(name)
    return [
        Heatmap(
            title if len(together) == 1 else f"{title}: {_LABELS[names[0]]}",
            caption,
            [Matrix(_LABELS[name], maps[name].values_RC.tolist()) for name in names],
            value_label=label,
            row_label="layer",
            column_label="layer",
            rows=[axis_label(name) for name in rows],
            columns=[axis_label(name) for name in columns],
            low=0.0,
            high=1.0,
        )
        for (rows, columns), names in together.items()
    ]


def steps(maps: Mapping[str, SimilarityMap], label: str, n: int) -> list[Exhibit]:
    """The similarity of each layer to the one before it, as curves and as a table."""
    # consecutive layers of one map may not be consecutive in another
    follow = {_LABELS[name]: dict(zip(one.rows[1:], one.steps, strict=True)) for name, one in maps.items()}
    follow = {name: numbers for name, numbers in follow.items() if numbers}
    if not follow:
        return []
    layers = list(dict.fromkeys(layer for one in maps.values() if len(one.rows) > 1 for layer in one.rows))
    caption = f"{label} of every layer with the one before it, on {n} images: the lower, the more the layer changes."
    number = {layer: number for number, layer in enumerate(layers)}
    return [
        Lines(
            "From layer to layer",
            caption,
            [
                Line(name, [number[layer] for layer in numbers], list(numbers.values()))
                for name, numbers in follow.items()
            ],
            x_label="layer" if all(axis_label(name).isdecimal() for name in layers) else "layer, counted from 0",
            y_label=f"{label} with the layer before",
        ),
        Table(
            "From layer to layer (table)",
            caption,
            ["layer", *follow],
            [
                [layer, *(numbers.get(layer) for numbers in follow.values())]
                for layer in layers
                if any(layer in numbers for numbers in follow.values())
            ],
            digits=4,
        ),
    ]


def main_finding(maps: Mapping[str, Mapping[str, SimilarityMap]]) -> str:
    """The similarity of consecutive layers in both halves, or the most similar layers of two models."""
    if "between" in maps:
        between = maps["between"]["whole"]
        values_RC = between.values_RC.nan_to_num(-1)
        row, column = divmod(int(values_RC.argmax()), values_RC.shape[1])
        match = f"{between.rows[row]} and {between.columns[column]} of the other"
        return f"the most similar layers are {match}: {float(values_RC.max()):.3f}"
    sentences = [f"{_halves(one)} ({_LABELS[name]})" for name, one in maps["own"].items() if len(one.rows) > 2]
    if not sentences:
        return "there are too few layers to compare the halves of the network"
    return f"the similarity between consecutive layers is, on average, {'; '.join(sentences)}"


def _halves(one: SimilarityMap) -> str:
    """The mean similarity of consecutive layers in both halves of the network."""
    numbers = torch.tensor(one.steps, dtype=torch.float64)
    half = (len(numbers) + 1) // 2
    means = (float(part.nanmean()) for part in (numbers[:half], numbers[half:]))
    early, late = ("not defined" if math.isnan(mean) else f"{mean:.3f}" for mean in means)
    return f"{early} in the first half and {late} in the second"
