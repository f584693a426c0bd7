"""From rows to the numbers people quote: a pure function of the rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from vitadel.attacks import Flag, zero_gradient_flags
from vitadel.evaluate.attack_suites import SCALED, Entry
from vitadel.evaluate.book import COSTS
from vitadel.evaluate.metrics import accuracy, expected_accuracy
from vitadel.threats import Threat, spell

Columns = Mapping[str, Sequence[object]]

# points of accuracy by which a search without gradients may beat those with them, before they are to be doubted
_SQUARE_MARGIN = 0.002


def summarize(
    name: str,
    suite: str,
    entries: Sequence[Entry],
    threat: Threat | None,
    rows: Columns,
    flags: Iterable[Flag],
    precision: str,
    clean_seconds: float,
) -> dict[str, object]:
    """Accuracies with intervals, what each attack tried, felled and cost, and every reason for doubt.

    `precision` is that of the searches; verdicts are float32's whatever it is. `clean_seconds` is what the clean pass
    took; the summary's `seconds` are those and the attacks'.
    """
    fell_to, n = [str(to) for to in rows["fell_to"]], len(rows["row"])
    attacks = [_attack(entry, i, fell_to, rows) for i, entry in enumerate(entries)]
    norm, _, _ = spell(threat).partition(":") if threat is not None else ("", "", "")
    return {
        "name": name,
        "suite": suite,
        "threat": None if threat is None else {"norm": norm, "eps": threat.eps, "text": spell(threat)},
        "n": n,
        "clean": _accuracy(rows["clean_right"]),
        "robust": None if threat is None else _accuracy(rows["right"]),
        "attacks": attacks,
        "search_precision": precision if attacks else None,
        "flags": [asdict(flag) for flag in (*flags, *_doubts(attacks, n))],
        "seconds": round(clean_seconds + sum(float(str(attack["seconds"])) for attack in attacks), 3),
    }


def _accuracy(right: Sequence[object]) -> dict[str, object]:
    shares = [float(str(share)) for share in right]
    if all(share in (0, 1) for share in shares):
        return asdict(accuracy(int(sum(shares)), len(shares)))
    return asdict(expected_accuracy(shares))


def _attack(entry: Entry, place: int, fell_to: Sequence[str], rows: Columns) -> dict[str, object]:
    costs = {what: [_at(cost, place) for cost in rows[what]] for what in COSTS}
    return {
        "name": entry.name,
        "tried": sum(forwards > 0 for forwards in costs["forwards"]),
        # without those that fell to it inside a smaller threat and were not tried again
        "fell": sum(to == entry.name and spent > 0 for to, spent in zip(fell_to, costs["forwards"], strict=True)),
        **{what: round(sum(costs[what]), 3 if what == "seconds" else None) for what in COSTS},
    }


def _at(cost: object, place: int) -> float:
    assert isinstance(cost, list)
    return float(cost[place])


def _doubts(attacks: Sequence[Mapping[str, object]], n: int) -> list[Flag]:
    """What the attacks' sums over all images say against them."""
    flags = [
        replace(flag, sentence=f"{attack['name']}: {flag.sentence}")
        for attack in attacks
        for flag in zero_gradient_flags(int(str(attack["zero_gradients"])), int(str(attack["backwards"])))
    ]
    plain = [attack for attack in attacks if not str(attack["name"]).endswith(SCALED)]
    blind = [attack for attack in plain if attack["backwards"] == 0 and attack["forwards"]]
    for attack in blind:
        fell = int(str(attack["fell"]))
        if fell > _SQUARE_MARGIN * n and any(other["backwards"] for other in attacks[: attacks.index(attack)]):
            sentence = (
                f"{attack['name']} felled {fell} images that every gradient attack had left: the gradients mislead"
            )
            flags.append(Flag("square-stronger", sentence, {"images": fell, "of": n}))
    fell = sum(int(str(attack["fell"])) for attack in attacks if attack not in plain)
    if fell > _SQUARE_MARGIN * n:
        sentence = (
            f"attacks that learned from the rescaled model felled {fell} images that all others had left: "
            "its attention hides gradients, or a second try was all it took"
        )
        flags.append(Flag("scaled-stronger", sentence, {"images": fell, "of": n}))
    return flags
