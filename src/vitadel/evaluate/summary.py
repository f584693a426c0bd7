"""From rows to the numbers people quote: a pure function of the rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vitadel.attacks import Flag, zero_gradient_flags
from vitadel.core.stats import Accuracy, accuracy, expected_accuracy
from vitadel.evaluate.attack_suites import SCALED, Entry
from vitadel.evaluate.book import COSTS
from vitadel.runs.schema import AttackRecord, SuiteRecord, ThreatRecord
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
) -> SuiteRecord:
    """Accuracies with intervals, what each attack tried, felled and cost, and every reason for doubt.

    `precision` is that of the searches; verdicts are float32's whatever it is. `clean_seconds` is what the clean pass
    took; the summary's `seconds` are those and the attacks'.
    """
    fell_to, n = [str(to) for to in rows["fell_to"]], len(rows["row"])
    attacks = [_attack(entry, i, fell_to, rows) for i, entry in enumerate(entries)]
    return SuiteRecord(
        name,
        suite,
        n,
        clean=_accuracy(rows["clean_right"]),
        threat=None if threat is None else ThreatRecord.of(spell(threat), threat.eps),
        robust=None if threat is None else _accuracy(rows["right"]),
        attacks=attacks,
        flags=(*flags, *_doubts(attacks, n)),
        seconds=round(clean_seconds + sum(attack.seconds for attack in attacks), 3),
        search_precision=precision if attacks else None,
    )


def _accuracy(right: Sequence[object]) -> Accuracy:
    shares = [float(str(share)) for share in right]
    if all(share in (0, 1) for share in shares):
        return accuracy(int(sum(shares)), len(shares))
    return expected_accuracy(shares)


def _attack(entry: Entry, place: int, fell_to: Sequence[str], rows: Columns) -> AttackRecord:
    costs = {what: [_at(cost, place) for cost in rows[what]] for what in COSTS}
    return AttackRecord(
        entry.name,
        tried=sum(forwards > 0 for forwards in costs["forwards"]),
        # without images broken by it within a smaller threat, which were not tried again
        broken=sum(to == entry.name and spent > 0 for to, spent in zip(fell_to, costs["forwards"], strict=True)),
        seconds=round(sum(costs["seconds"]), 3),
        **{what: round(sum(costs[what])) for what in COSTS if what != "seconds"},
    )


def _at(cost: object, place: int) -> float:
    assert isinstance(cost, list)
    return float(cost[place])


def _doubts(attacks: Sequence[AttackRecord], n: int) -> list[Flag]:
    """What the attacks' sums over all images say against them."""
    flags = [
        replace(flag, sentence=f"{attack.name}: {flag.sentence}")
        for attack in attacks
        for flag in zero_gradient_flags(attack.zero_gradients, attack.backwards)
    ]
    plain = [attack for attack in attacks if not attack.name.endswith(SCALED)]
    blind = [attack for attack in plain if attack.backwards == 0 and attack.forwards]
    for attack in blind:
        fell = attack.broken
        if fell > _SQUARE_MARGIN * n and any(other.backwards for other in attacks[: attacks.index(attack)]):
            sentence = f"{attack.name} felled {fell} images that every gradient attack had left: the gradients mislead"
            flags.append(Flag("square-stronger", sentence, {"images": fell, "of": n}))
    fell = sum(attack.broken for attack in attacks if attack not in plain)
    if fell > _SQUARE_MARGIN * n:
        sentence = (
            f"attacks that learned from the rescaled model felled {fell} images that all others had left: "
            "its attention hides gradients, or a second try was all it took"
        )
        flags.append(Flag("scaled-stronger", sentence, {"images": fell, "of": n}))
    return flags
