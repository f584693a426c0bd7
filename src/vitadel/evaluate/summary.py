"""From rows to the numbers people quote: a pure function of the rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from vitadel.attacks import Flag, zero_gradient_flags
from vitadel.evaluate.cascade import COSTS, STANDING, WRONG
from vitadel.evaluate.metrics import accuracy
from vitadel.evaluate.suites import Suite
from vitadel.threat import Threat, spell

Columns = Mapping[str, Sequence[object]]


def summarise(
    name: str, suite: Suite, threat: Threat | None, rows: Columns, flags: Iterable[Flag]
) -> dict[str, object]:
    """Accuracies with intervals, what each attack tried, felled and cost, and every reason for doubt."""
    fell_to, n = [str(to) for to in rows["fell_to"]], len(rows["row"])
    clean = accuracy(sum(to != WRONG for to in fell_to), n)
    robust = accuracy(sum(to == STANDING for to in fell_to), n) if threat is not None else None
    attacks = [_attack(suite.entries[i].name, i, fell_to, rows) for i in range(len(suite.entries))]
    norm, _, _ = spell(threat).partition(":") if threat is not None else ("", "", "")
    return {
        "name": name,
        "suite": suite.name,
        "threat": None if threat is None else {"norm": norm, "eps": threat.eps, "text": spell(threat)},
        "n": n,
        "clean": asdict(clean),
        "robust": None if robust is None else asdict(robust),
        "attacks": attacks,
        "flags": [asdict(flag) for flag in (*flags, *_doubts(attacks))],
        "seconds": round(sum(float(str(attack["seconds"])) for attack in attacks), 3),
    }


def _attack(name: str, place: int, fell_to: Sequence[str], rows: Columns) -> dict[str, object]:
    costs = {what: [_at(cost, place) for cost in rows[what]] for what in COSTS}
    return {
        "name": name,
        "tried": sum(forwards > 0 for forwards in costs["forwards"]),
        "fell": sum(to == name for to in fell_to),
        "forwards": round(sum(costs["forwards"])),
        "backwards": round(sum(costs["backwards"])),
        "seconds": round(sum(costs["seconds"]), 3),
        "zero_gradients": round(sum(costs["zero_gradients"])),
    }


def _at(cost: object, place: int) -> float:
    assert isinstance(cost, list)
    return float(cost[place])


def _doubts(attacks: Sequence[Mapping[str, object]]) -> list[Flag]:
    """What the attacks' sums over all batches say against them."""
    return [
        replace(flag, sentence=f"{attack['name']}: {flag.sentence}")
        for attack in attacks
        for flag in zero_gradient_flags(int(str(attack["zero_gradients"])), int(str(attack["backwards"])))
    ]
