"""What a study of gradient masking found, read from its run folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitadel.errors import UsageError
from vitadel.report.records import Accuracy
from vitadel.runs import read_json

Told = Mapping[str, object]
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


def read_masking(folder: Path) -> Masking | None:
    """The study in a run folder, if it is one of masking and finished."""
    path = folder / "study" / "result.json"
    if not path.exists():
        return None
    told = read_json(path)
    if told.get("study") != "masking":
        return None
    try:
        return _masking(told)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is not as the study wrote it ({error!r}). Delete it and run the study again."
        ) from error


def _masking(t: Told) -> Masking:
    verdict, threat, gaps, factors = (_dict(t[key]) for key in ("verdict", "threat", "gaps", "factors"))
    clean = _accuracy(t["clean"])
    eps, iterations, blocks = (_list(t[key]) for key in ("eps", "iterations", "blocks"))
    return Masking(
        answer=str(verdict["answer"]),
        because=str(verdict["because"]),
        evidence=tuple(_evidence(one) for one in _list(verdict["evidence"])),
        threat=str(threat["text"]),
        norm=str(threat["norm"]),
        n=_int(t["n"]),
        clean=clean,
        factors=tuple(_float(one) for one in _values(factors["attentions"])),
        tried=_int(factors["tried"]),
        lines=tuple((str(one["name"]), _float(one["gap"])) for one in _list(t["lines"])),
        edges=tuple(_float(edge) for edge in _values(t["edges"])),
        plain=tuple(_attention(one) for one in _list(gaps["plain"])),
        scaled=tuple(_attention(one) for one in _list(gaps["scaled"])),
        eps=((0.0, clean), *((_float(one["eps"]), _accuracy(one["right"])) for one in eps)),
        pgd=_points(iterations, "steps", "pgd"),
        aas=_points(iterations, "steps", "aas"),
        original=_points(blocks, "blocks", "original"),
        rescaled=_points(blocks, "blocks", "rescaled"),
        rescaled_clean=_points(blocks, "blocks", "rescaled_clean"),
        attacks=tuple(_attack(one) for one in _list(t["attacks"])),
        seconds=_float(t["seconds"]),
        settings=_dict(t["settings"]),
    )


def _points(points: Sequence[Told], at: str, name: str) -> Points:
    return tuple((_float(one[at]), _accuracy(one[name])) for one in points)


def _evidence(told: Told) -> Evidence:
    numbers = _dict(told["numbers"])
    names = [key.removesuffix("_share") for key in numbers if f"{key.removesuffix('_share')}_low" in numbers]
    details = tuple(_detail(name, numbers) for name in dict.fromkeys(names) if f"{name}_share" in numbers)
    return Evidence(str(told["code"]), str(told["sentence"]), str(told["points"]), bool(told["outcome"]), details)


def _detail(name: str, numbers: Told) -> str:
    share, low, high = (100 * _float(numbers[f"{name}_{part}"]) for part in ("share", "low", "high"))
    return f"{name.replace('_', ' ')} {share:.1f}% [{low:.1f}\N{EN DASH}{high:.1f}]"


def _attention(told: Told) -> Gaps:
    heads = tuple(_gaps(f"head {number}", one) for number, one in enumerate(_list(told["heads"])))
    return replace(_gaps(str(told["name"]), _dict(told["all"])), heads=heads)


def _gaps(name: str, told: Told) -> Gaps:
    rows = _int(told["rows"])
    counts = np.asarray(_values(told["counts"]), dtype=np.float64) / max(1, rows)
    beyond = tuple(_float(count) / max(1, rows) for count in _values(told["beyond"]))
    return Gaps(name, rows, counts, beyond, _float(told["median"]), _float(told["max"]))


def _attack(told: Told) -> Attack:
    share = None if told["share"] is None else _accuracy(told["share"])
    keys = ("tried", "fell", "forwards", "backwards", "zero_gradients")
    tried, fell, forwards, backwards, zero = (_int(told[key]) for key in keys)
    return Attack(str(told["name"]), tried, fell, share, forwards, backwards, zero, _float(told["seconds"]))


def _accuracy(value: object) -> Accuracy:
    told = _dict(value)
    share, low, high = (_float(told[key]) for key in ("accuracy", "low", "high"))
    return Accuracy(_int(told["correct"]), _int(told["n"]), share, low, high)


def _dict(value: object) -> Told:
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected, got {value!r:.40}")
    return value


def _values(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"a list was expected, got {value!r:.40}")
    return value


def _list(value: object) -> list[Told]:
    return [_dict(one) for one in _values(value)]


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"a number was expected, got {value!r:.40}")
    return float(value)


def _int(value: object) -> int:
    return int(_float(value))
