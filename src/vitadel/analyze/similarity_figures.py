"""Maps of how alike layers are, as exhibits: heat maps, the steps from layer to layer, and a sentence.

Shape letters: L layers, R rows, C columns.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitadel.analyze.layers import short
from vitadel.runs.exhibits import Exhibit, Heat, Line, Lines, Matrix, Table

WORDS = {"all": "all tokens", "class": "class token", "whole": "all a layer gives"}


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """A number for every pair of a row's and a column's layer; nan where there is none."""

    rows: Sequence[str]
    columns: Sequence[str]
    values_RC: Tensor

    def part(self, rows: slice, columns: slice) -> "Map":
        return Map(self.rows[rows], self.columns[columns], self.values_RC[rows, columns])

    def told(self) -> dict[str, object]:
        return {"rows": list(self.rows), "columns": list(self.columns), "values": self.values_RC.tolist()}

    @property
    def steps(self) -> list[float]:
        """From every layer to the next."""
        return [float(one) for one in self.values_RC.diagonal(1)]


def heats(title: str, caption: str, label: str, maps: Mapping[str, Map]) -> list[Heat]:
    """Maps of the same layers side by side, others one by one."""
    together: dict[tuple[str, ...], list[str]] = {}
    for name, one in maps.items():
        together.setdefault((*one.rows, "", *one.columns), []).append(name)
    return [
        Heat(
            title if len(together) == 1 else f"{title}: {WORDS[names[0]]}",
            caption,
            [Matrix(WORDS[name], maps[name].values_RC.tolist()) for name in names],
            value_label=label,
            row_label="layer",
            column_label="layer",
            rows=[short(name) for name in maps[names[0]].rows],
            columns=[short(name) for name in maps[names[0]].columns],
            low=0.0,
            high=1.0,
        )
        for names in together.values()
    ]


def steps(maps: Mapping[str, Map], label: str, n: int) -> list[Exhibit]:
    """How much of a layer's representation is left in the next, as curves and in numbers."""
    shown = {name: one for name, one in maps.items() if len(one.rows) > 1}
    if not shown:
        return []
    names = list(dict.fromkeys(layer for one in shown.values() for layer in one.rows))
    caption = f"{label} of every layer with the one before it, on {n} images: the lower, the more the layer changes."
    # layers of one map need not follow each other in another
    follow = {
        name: {one.rows[at + 1]: (one.rows[at], value) for at, value in enumerate(one.steps)}
        for name, one in shown.items()
    }
    later = [layer for layer in names if any(layer in found for found in follow.values())]
    place = {layer: number for number, layer in enumerate(names)}
    return [
        Lines(
            "From layer to layer",
            caption,
            [
                Line(WORDS[name], [place[layer] for layer in found], [value for _, value in found.values()])
                for name, found in follow.items()
            ],
            x_label="layer" if all(short(name).isdecimal() for name in names) else "layer, counted from 0",
            y_label=f"{label} with the layer before",
        ),
        Table(
            "From layer to layer, in numbers",
            caption,
            ["layer", *(WORDS[name] for name in follow)],
            [[layer, *(found[layer][1] if layer in found else None for found in follow.values())] for layer in later],
            digits=4,
        ),
    ]


def told(atlas: Mapping[str, Mapping[str, Map]]) -> str:
    """The main finding: how alike neighbors are early and late, and which layers of two models match best."""
    sentences = [f"{_halves(one)} ({WORDS[name]})" for name, one in atlas["own"].items() if len(one.rows) > 2]
    if "between" in atlas:
        sentences = [_match(atlas["between"]["whole"])]
        return sentences[0]
    if not sentences:
        return "there are too few layers to tell early from late"
    return f"the likeness of a layer and the next is, on average, {'; '.join(sentences)}"


def _halves(one: Map) -> str:
    """The mean likeness of neighbors in both halves of the network."""
    found = torch.tensor(one.steps, dtype=torch.float64)
    half = (len(found) + 1) // 2
    early, late = (_number(float(part.nanmean())) for part in (found[:half], found[half:]))
    return f"{early} in the first half and {late} in the second"


def _number(value: float) -> str:
    return "not defined" if math.isnan(value) else f"{value:.3f}"


def _match(between: Map) -> str:
    values_RC = between.values_RC.nan_to_num(-1)
    row, column = divmod(int(values_RC.argmax()), values_RC.shape[1])
    best = float(values_RC.max())
    return (
        f"the layers that are most alike are {between.rows[row]} and {between.columns[column]} of the other: {best:.3f}"
    )
