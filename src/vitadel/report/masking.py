"""What a study of gradient masking found, read from its run folder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vitadel.report.json_fields import Told, mapping, mappings, number, values, whole
from vitadel.report.records import Accuracy

Points = tuple[tuple[float, Accuracy], ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One row of the verdict; `details` are its shares with their intervals."""

    code: str
    sentence: str
    points: str
    outcome: bool
    details: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """The gaps of one attention, or of one of its heads: shares of its rows per bin and beyond each line, in [0, 1]."""

    name: str
    rows: int
    counts: NDArray[np.float64]
    beyond: tuple[float, ...]
    median: float
    greatest: float
    heads: tuple["Gaps", ...] = ()


@dataclass(frozen=True, slots=True)
class Attack:
    """What one attack of the study tried, felled and cost."""

    name: str
    tried: int
    fell: int
    share: Accuracy | None
    forwards: int
    backwards: int
    zero_gradients: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Masking:
    """A finished study of masking."""

    answer: str
    because: str
    evidence: tuple[Evidence, ...]
    threat: str
    norm: str
    n: int
    clean: Accuracy
    factors: tuple[float, ...]
    tried: int
    lines: tuple[tuple[str, float], ...]
    edges: tuple[float, ...]
    plain: tuple[Gaps, ...]
    scaled: tuple[Gaps, ...]
    eps: Points
    pgd: Points
    aas: Points
    original: Points
    rescaled: Points
    rescaled_clean: Points
    attacks: tuple[Attack, ...]
    seconds: float
    settings: Told


def masking(t: Told) -> Masking:
    """A finished study, from its result."""
    verdict, threat, gaps, factors = (mapping(t[key]) for key in ("verdict", "threat", "gaps", "factors"))
    clean = _accuracy(t["clean"])
    eps, iterations, blocks = (mappings(t[key]) for key in ("eps", "iterations", "blocks"))
    return Masking(
        answer=str(verdict["answer"]),
        because=str(verdict["because"]),
        evidence=tuple(_evidence(one) for one in mappings(verdict["evidence"])),
        threat=str(threat["text"]),
        norm=str(threat["norm"]),
        n=whole(t["n"]),
        clean=clean,
        factors=tuple(number(one) for one in values(factors["attentions"])),
        tried=whole(factors["tried"]),
        lines=tuple((str(one["name"]), number(one["gap"])) for one in mappings(t["lines"])),
        edges=tuple(number(edge) for edge in values(t["edges"])),
        plain=tuple(_attention(one) for one in mappings(gaps["plain"])),
        scaled=tuple(_attention(one) for one in mappings(gaps["scaled"])),
        eps=((0.0, clean), *((number(one["eps"]), _accuracy(one["right"])) for one in eps)),
        pgd=_points(iterations, "steps", "pgd"),
        aas=_points(iterations, "steps", "aas"),
        original=_points(blocks, "blocks", "original"),
        rescaled=_points(blocks, "blocks", "rescaled"),
        rescaled_clean=_points(blocks, "blocks", "rescaled_clean"),
        attacks=tuple(_attack(one) for one in mappings(t["attacks"])),
        seconds=number(t["seconds"]),
        settings=mapping(t["settings"]),
    )


def _points(points: Sequence[Told], at: str, name: str) -> Points:
    return tuple((number(one[at]), _accuracy(one[name])) for one in points)


def _evidence(told: Told) -> Evidence:
    numbers = mapping(told["numbers"])
    names = [key.removesuffix("_share") for key in numbers if f"{key.removesuffix('_share')}_low" in numbers]
    details = tuple(_detail(name, numbers) for name in dict.fromkeys(names) if f"{name}_share" in numbers)
    return Evidence(str(told["code"]), str(told["sentence"]), str(told["points"]), bool(told["outcome"]), details)


def _detail(name: str, numbers: Told) -> str:
    share, low, high = (100 * number(numbers[f"{name}_{part}"]) for part in ("share", "low", "high"))
    return f"{name.replace('_', ' ')} {share:.1f}% [{low:.1f}\N{EN DASH}{high:.1f}]"


def _attention(told: Told) -> Gaps:
    heads = tuple(_gaps(f"head {number}", one) for number, one in enumerate(mappings(told["heads"])))
    return replace(_gaps(str(told["name"]), mapping(told["all"])), heads=heads)


def _gaps(name: str, told: Told) -> Gaps:
    rows = whole(told["rows"])
    counts = np.asarray(values(told["counts"]), dtype=np.float64) / max(1, rows)
    beyond = tuple(number(count) / max(1, rows) for count in values(told["beyond"]))
    return Gaps(name, rows, counts, beyond, number(told["median"]), number(told["max"]))


def _attack(told: Told) -> Attack:
    share = None if told["share"] is None else _accuracy(told["share"])
    keys = ("tried", "fell", "forwards", "backwards", "zero_gradients")
    tried, fell, forwards, backwards, zero = (whole(told[key]) for key in keys)
    return Attack(str(told["name"]), tried, fell, share, forwards, backwards, zero, number(told["seconds"]))


def _accuracy(value: object) -> Accuracy:
    told = mapping(value)
    share, low, high = (number(told[key]) for key in ("accuracy", "low", "high"))
    return Accuracy(whole(told["correct"]), whole(told["n"]), share, low, high)
