"""What an evaluation that is no cascade of attacks found: its measures, its conventions, and what it shows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitadel.core.errors import UsageError
from vitadel.report.exhibits import Exhibit, exhibits
from vitadel.report.json_fields import Told, flag, mapping, mappings, number, text
from vitadel.report.manifest_text import compact
from vitadel.report.records import Accuracy, Flag, Threat

# kinds of measures that are shares of images, and so lie in [0, 1] and are read in percent
SHARES = frozenset({"accuracy", "error", "bias", "share"})
# kinds that say how much goes wrong, and so may be drawn against the size of a model
ERRORS = frozenset({"error", "mCE", "relative mCE"})


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a survey, nan if it is undefined on these images.

    `low` and `high` are the ends of its 95% interval and `n` the images it counts, None if the survey does not say.
    """

    name: str
    value: float
    low: float | None
    high: float | None
    n: int | None
    kind: str
    higher_is_better: bool
    main: bool

    @property
    def is_share(self) -> bool:
        return self.kind in SHARES

    @property
    def shown(self) -> str:
        return figure(self.value, is_share=self.is_share)

    @property
    def interval(self) -> str:
        if self.low is None or self.high is None:
            return ""
        ends = (figure(end, is_share=self.is_share) for end in (self.low, self.high))
        return "\N{EN DASH}".join(ends)


@dataclass(frozen=True, slots=True)
class Survey:
    """One finished survey; `right` is its main verdict on every image, between 0 and 1, nan where it has none.

    `clean` is the accuracy on the images as they are, where there are such images.
    """

    name: str
    suite: str
    title: str
    sentence: str
    n: int
    clean: Accuracy | None
    threat: Threat | None
    measures: tuple[Measure, ...]
    conventions: tuple[tuple[str, str], ...]
    exhibits: tuple[Exhibit, ...]
    flags: tuple[Flag, ...]
    ids: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    clean_right: tuple[float, ...] = ()
    right: tuple[float, ...] = ()

    @property
    def main(self) -> Measure:
        return next(measure for measure in self.measures if measure.main)


def figure(value: float, *, is_share: bool) -> str:
    """A number as a table prints it: shares in percent, others with as many decimals as their size asks for."""
    if math.isnan(value):
        return "\N{EN DASH}"
    if is_share:
        return f"{100 * value:.1f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def signed(difference: float, *, is_share: bool) -> str:
    """A difference with its sign; points of percent if it is one of shares."""
    text = figure(abs(difference), is_share=is_share)
    return text if float(text) == 0 else ("+" if difference > 0 else "\N{MINUS SIGN}") + text


def survey(
    t: Told,
    name: str,
    *,
    clean: Accuracy | None,
    threat: Threat | None,
    flags: Sequence[Flag],
    columns: Mapping[str, Sequence[object]],
) -> Survey:
    """A finished survey, from its summary and its rows."""
    measures = tuple(_measure(one) for one in mappings(t["measures"]))
    mains = [one for one in measures if one.main]
    if len(mains) != 1 or math.isnan(mains[0].value):
        raise UsageError(f"a survey has one main measure with a value, got {len(mains)}. Run the evaluation again.")
    label, said = columns.get("label", ()), columns.get("clean_prediction", ())
    return Survey(
        name=name,
        suite=text(t["suite"]),
        title=text(t["title"]),
        sentence=text(t["sentence"]),
        n=int(number(t["n"])),
        clean=clean,
        threat=threat,
        measures=measures,
        conventions=tuple((key, compact(value)) for key, value in mapping(t["conventions"]).items()),
        exhibits=exhibits(t["exhibits"]),
        flags=tuple(flags),
        ids=tuple(str(one) for one in columns.get("id", ())),
        labels=tuple(str(one) for one in label),
        clean_right=tuple(float(a == b) for a, b in zip(label, said, strict=False)) if clean else (),
        right=tuple(_number_or_gap(one) for one in columns.get("correct", ())),
    )


def _measure(t: Told) -> Measure:
    ends = [None if t.get(key) is None else number(t[key]) for key in ("low", "high")]
    n = None if t.get("n") is None else int(number(t["n"]))
    name, value, kind = text(t["name"]), _number_or_gap(t["value"]), text(t["kind"])
    return Measure(name, value, ends[0], ends[1], n, kind, flag(t["higher_is_better"]), flag(t.get("main", False)))


def _number_or_gap(value: object) -> float:
    return math.nan if value is None else number(value)
