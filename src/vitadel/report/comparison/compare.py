"""Models side by side: one row per model, one column per number that may be compared.

Numbers share a column only if they mean the same: the same images, the same threat, the same conventions.
"""

import enum
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vitadel.core.errors import UsageError, unknown
from vitadel.core.stats import PairedTest, paired_test
from vitadel.report.manifest_text import compact
from vitadel.report.records import Accuracy, Evaluation, Flag, Record, Threat
from vitadel.report.surveys import Survey, signed

# suites that are AutoAttack with its published budgets, the one to be shown first
_AUTOATTACK = {"adversarial": "", "adversarial-rand": "rand", "adversarial-plus": "plus"}
_NO_QUESTION = frozenset({"preprocess", "seed", "grid_images", "mapped"})
_ANOTHER_NETWORK = "-paper-protocol"  # how suites end that score the rescaled model in place of the model


class Kind(enum.Enum):
    """What a column holds."""

    CLEAN = "clean"
    AUTOATTACK = "autoattack"
    BEST_KNOWN = "best-known"
    SURVEY = "survey"


@dataclass(frozen=True, slots=True)
class Column:
    """One number that models are compared by; `about` says which exactly, `unit` what kind of number it is."""

    key: str
    kind: Kind
    title: str
    about: str
    unit: str
    is_share: bool
    higher_is_better: bool


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """A model's number in a column; `verdicts` are those on each image, by id, that it was counted from.

    `note` says by what it was found. `delta` is the difference to the baseline, which `paired` says how far to trust.
    """

    value: float
    low: float | None
    high: float | None
    n: int | None
    note: str = ""
    verdicts: Mapping[str, float] = field(default_factory=dict)
    delta: float | None = None
    paired: PairedTest | None = None
    best: bool = False


def version_of(score: Score | None, column: Column) -> str:
    """Which AutoAttack it was, if not the standard one."""
    return "" if score is None or column.kind is not Kind.AUTOATTACK else score.note


@dataclass(frozen=True, slots=True)
class Row:
    """One model; `flags` are reasons to doubt its numbers, `unreliable` says that one speaks against an attack's."""

    label: str
    also: tuple[str, ...]
    parameters: int | None
    family: str
    preprocess: tuple[str, ...]
    scores: tuple[Score | None, ...]
    flags: tuple[tuple[str, Flag], ...]
    unreliable: bool
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows in order of rank, by the column `ranked_by`."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    ranked_by: int
    baseline: str | None = None

    @property
    def clean(self) -> int | None:
        """The column of the accuracy on clean images that most models have."""
        return next((at for at, column in enumerate(self.columns) if column.kind is Kind.CLEAN), None)


@dataclass(frozen=True, slots=True)
class _Model:
    """All that was measured of one set of weights under one name."""

    label: str
    records: tuple[Record, ...]

    @property
    def cascades(self) -> list[Evaluation]:
        found = [one for record in self.records for one in record.evaluations]
        return [one for one in found if not one.suite.endswith(_ANOTHER_NETWORK)]

    @property
    def surveys(self) -> list[Survey]:
        return [one for record in self.records for one in record.surveys]

    @property
    def measured(self) -> list[Evaluation | Survey]:
        return [*self.cascades, *self.surveys]


_Scores = dict[str, Score]  # by the model's label


@dataclass(frozen=True, slots=True)
class _Found:
    """A column with its scores; `apart` is what may tell it from another of the same title."""

    column: Column
    apart: tuple[str, ...]
    scores: _Scores


def compare_models(records: Sequence[Record], baseline: str | None = None) -> Comparison | None:
    """The models of `records` against each other, and against the one called `baseline`; None if none was measured."""
    models = _models(records)
    found = [*_clean(models), *_robust(models, records), *_surveyed(models)]
    if not found:
        if baseline is not None:
            raise UsageError(f"--baseline {baseline!r}: no model was evaluated. Give runs of vitadel evaluate.")
        return None
    columns, scores = _named_apart(found), [_with_best(one.column, one.scores) for one in found]
    base = None if baseline is None else _baseline(baseline, models)
    if base is not None:
        scores = [_against(base.label, column) for column in scores]
    rows = [_row(model, [column.get(model.label) for column in scores]) for model in models]
    by = _ranked_by(columns, scores)
    told = None if base is None else base.label
    return Comparison(columns, _ranked(rows, by, columns), by, told)


def delta_text(score: Score, column: Column) -> str:
    """The difference to the baseline with its sign: points of a share, else the number's own unit."""
    return "" if score.delta is None else signed(score.delta, is_share=column.is_share)


def p_text(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _models(records: Sequence[Record]) -> list[_Model]:
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.evaluations or record.surveys:
            groups.setdefault((record.name or record.label, record.weights), []).append(record)
    names = [name for name, _ in groups]
    labels = [name if names.count(name) == 1 else group[0].label for (name, _), group in groups.items()]
    return [_Model(label, tuple(group)) for label, group in zip(labels, groups.values(), strict=True)]


def _baseline(text: str, models: Sequence[_Model]) -> _Model:
    names = {name: model for model in models for name in (model.label, *(r.label for r in model.records))}
    if text not in names:
        raise unknown("baseline", text, names)
    return names[text]


def _clean(models: Sequence[_Model]) -> list[_Found]:
    """The accuracy on clean images; of several sets of images those that tell of models which others do not."""
    found: dict[str, _Scores] = {}
    asked: dict[str, set[str]] = {}
    for model in models:
        for one in model.measured:
            if one.clean is not None:
                images = _images(one)
                found.setdefault(images, {}).setdefault(model.label, _score(one.clean, _by_id(one.ids, _right(one))))
                asked.setdefault(images, set()).add(one.suite if isinstance(one, Survey) else "")
    # a survey's own images may be anything; those that attacks started from, or several surveys, are the usual ones
    order = sorted(found, key=lambda at: (-len(found[at]), "" not in asked[at], -len(asked[at]), -_most(found[at])))
    kept = _needed({images: found[images] for images in order})
    return [_accuracies(Kind.CLEAN, "Clean", "", found[images]) for images in kept]


def _robust(models: Sequence[_Model], records: Sequence[Record]) -> list[_Found]:
    attacked = [(one.threat, one) for model in models for one in model.cascades if one.threat and one.robust]
    columns: list[_Found] = []
    for threat in _threats([(threat, one.suite) for threat, one in attacked], records):
        sets: dict[str, _Scores] = {}
        for images in dict.fromkeys(_images(one) for at, one in attacked if at.text == threat.text):
            scores = {model.label: _best_known(model, threat, images) for model in models}
            sets[images] = {label: score for label, score in scores.items() if score is not None}
        order = sorted(sets, key=lambda at: (-len(sets[at]), -_most(sets[at])))
        shown = _needed({images: sets[images] for images in order})
        auto = {images: _by_autoattack(models, threat, images) for images in order}
        # AutoAttack is dear: on fewer images than the rest it still is what people look for
        looked_for = _needed({images: scores for images, scores in auto.items() if scores})
        for images in order:
            about = threat.text if images in shown else f"{threat.text}, {_most(sets[images])} images"
            columns += [_accuracies(Kind.AUTOATTACK, "AutoAttack", about, auto[images])] if images in looked_for else []
            columns += [_accuracies(Kind.BEST_KNOWN, "Best known", about, sets[images])] if images in shown else []
    return columns


def _threats(attacked: Sequence[tuple[Threat, str]], records: Sequence[Record]) -> list[Threat]:
    """The threats to compare at: where AutoAttack ran, or that a run was told; else the middle one of every norm."""
    known = {threat.text: threat for threat, _ in attacked}
    told = {(threat.norm, threat.eps) for threat, suite in attacked if suite in _AUTOATTACK}
    told |= {at for record in records if (at := _told_threat(record)) is not None}
    chosen = [threat for threat in known.values() if (threat.norm, threat.eps) in told]
    if not chosen:
        for norm in dict.fromkeys(threat.norm for threat in known.values()):
            in_order = sorted((t for t in known.values() if t.norm == norm), key=lambda t: t.eps or 0.0)
            chosen.append(in_order[len(in_order) // 2])
    return sorted(chosen, key=lambda threat: (threat.norm, threat.eps or 0.0))


def _told_threat(record: Record) -> tuple[str, float] | None:
    parts = record.manifest.get("parts")
    threat = parts.get("threat") if isinstance(parts, dict) else None
    if not isinstance(threat, dict) or not isinstance(threat.get("eps"), int | float):
        return None
    return str(threat.get("is", "")).lower(), float(threat["eps"])


def _best_known(model: _Model, threat: Threat, images: str) -> Score | None:
    """The lowest accuracy that anything left: every one is an upper bound, so the lowest is the best."""
    found = [
        _score(one.robust, _by_id(one.ids, _standing(one)), note=one.suite)
        for one in _at(model, threat, images)
        if one.robust is not None
    ]
    found += [
        replace(_main(one), note=one.suite)
        for one in model.surveys
        if one.threat and one.threat.text == threat.text and one.main.kind == "accuracy" and _images(one) == images
    ]
    return min(found, key=lambda score: score.value, default=None)


def _by_autoattack(models: Sequence[_Model], threat: Threat, images: str) -> _Scores:
    scores = {model.label: _autoattack(model, threat, images) for model in models}
    return {label: score for label, score in scores.items() if score is not None}


def _autoattack(model: _Model, threat: Threat, images: str) -> Score | None:
    found = {one.suite: one for one in reversed(_at(model, threat, images))}
    for suite, note in _AUTOATTACK.items():
        if suite in found and (robust := found[suite].robust) is not None:
            return _score(robust, _by_id(found[suite].ids, _standing(found[suite])), note=note)
    return None


def _at(model: _Model, threat: Threat, images: str) -> list[Evaluation]:
    return [
        one
        for one in model.cascades
        if one.threat and one.threat.text == threat.text and one.robust and _images(one) == images
    ]


def _surveyed(models: Sequence[_Model]) -> list[_Found]:
    found: dict[tuple[object, ...], _Found] = {}
    for model in models:
        for one in model.surveys:
            main, threat = one.main, one.threat.text if one.threat else ""
            column = Column(
                one.suite, Kind.SURVEY, one.title, main.name, main.kind, main.is_share, main.higher_is_better
            )
            asked = {name: f"{name}: {value}" for name, value in one.conventions if not _is_no_question(name)}
            apart = (f"{one.n} images", threat, *asked.values())
            sources = asked.pop("sources", "")
            key = (column, threat, _images(one), one.n, *asked.values(), _circle(model, sources))
            found.setdefault(key, _Found(column, apart, {})).scores.setdefault(model.label, _main(one))
    return list(found.values())


def _circle(model: _Model, sources: str) -> frozenset[str]:
    """The weights of a model and of those it was compared with: each of a circle has the others as its sources."""
    own = {weights[:8] for record in model.records if (weights := record.weights)}
    return frozenset(re.findall(r"=([0-9a-f]{8})\b", sources)) | own if sources else frozenset()


def _is_no_question(convention: str) -> bool:
    """Whether a convention is the model's own, such as its image size, or only says what an answer cost."""
    return convention in _NO_QUESTION or convention.startswith("forwards")


def _main(survey: Survey) -> Score:
    main = survey.main
    return Score(main.value, main.low, main.high, main.n or survey.n, "", _by_id(survey.ids, survey.right))


def _needed(sets: Mapping[str, _Scores]) -> list[str]:
    """Of sets of images, in order of preference, those with a model that no earlier one has."""
    kept: list[str] = []
    for images, scores in sets.items():
        if not any(scores.keys() <= sets[earlier].keys() for earlier in kept):
            kept.append(images)
    return kept


def _accuracies(kind: Kind, title: str, about: str, scores: _Scores) -> _Found:
    key = f"{kind.value} {about}".strip()
    column = Column(key, kind, title, about, "accuracy", is_share=True, higher_is_better=True)
    return _Found(column, (f"{_most(scores)} images",), scores)


def _named_apart(found: Sequence[_Found]) -> tuple[Column, ...]:
    """The columns; of those with one title each says what tells it apart, and has a key of its own."""
    keys: list[str] = []
    named = []
    for one in found:
        column = one.column
        twins = [set(other.apart) for other in found if _head(other.column) == _head(column)]
        own = [word for word in one.apart if word and not all(word in twin for twin in twins)]
        keys.append(column.key)
        number = keys.count(column.key)
        key = column.key if number == 1 else f"{column.key} #{number}"
        named.append(replace(column, key=key, about="; ".join(filter(None, (column.about, *own)))))
    return tuple(named)


def _head(column: Column) -> tuple[str, str]:
    return column.title, column.about


def _with_best(column: Column, scores: _Scores) -> _Scores:
    values = {score.value for score in scores.values()}
    best = (max if column.higher_is_better else min)(values)
    return {label: replace(score, best=len(values) > 1 and score.value == best) for label, score in scores.items()}


def _against(baseline: str, scores: _Scores) -> _Scores:
    base = scores.get(baseline)
    if base is None:
        return scores
    return {
        label: score
        if label == baseline
        else replace(score, delta=score.value - base.value, paired=paired_test(score.verdicts, base.verdicts))
        for label, score in scores.items()
    }


def _ranked_by(columns: Sequence[Column], scores: Sequence[_Scores]) -> int:
    """The column of robust accuracy that most models have; without one the first survey's, else clean accuracy."""
    order = (Kind.BEST_KNOWN, Kind.SURVEY, Kind.CLEAN)
    candidates = [at for at, column in enumerate(columns) if column.kind in order]
    return min(candidates, key=lambda at: (order.index(columns[at].kind), -len(scores[at]), at))


def _ranked(rows: Sequence[Row], by: int, columns: Sequence[Column]) -> tuple[Row, ...]:
    sign = -1 if columns[by].higher_is_better else 1
    there = sorted((row for row in rows if row.scores[by]), key=lambda row: (sign * _value(row, by), -_value(row, 0)))
    values = [_value(row, by) for row in there]
    ranked = [replace(row, rank=1 + values.index(value)) for row, value in zip(there, values, strict=True)]
    return (*ranked, *(row for row in rows if not row.scores[by]))


def _value(row: Row, column: int) -> float:
    score = row.scores[column]
    return -math.inf if score is None else score.value


def _row(model: _Model, scores: Sequence[Score | None]) -> Row:
    doubted = [(one.name, flag) for one in model.cascades for flag in one.flags]
    flags = [*doubted, *((one.name, flag) for one in model.surveys for flag in one.flags)]
    return Row(
        label=model.label,
        also=tuple(dict.fromkeys(record.label for record in model.records)),
        parameters=next((count for record in model.records if (count := _parameters(record)) is not None), None),
        family=next((family for record in model.records if (family := _family(record))), ""),
        preprocess=tuple(dict.fromkeys(filter(None, map(_preprocess, model.records)))),
        scores=tuple(scores),
        flags=tuple({(name, flag.code): (name, flag) for name, flag in flags}.values()),
        unreliable=bool(doubted),
    )


def _model_part(record: Record) -> Mapping[str, object]:
    parts = record.manifest.get("parts")
    model = parts.get("model") if isinstance(parts, dict) else None
    return model if isinstance(model, dict) else {}


def _parameters(record: Record) -> int | None:
    count = _model_part(record).get("parameters")
    return count if isinstance(count, int) and count > 0 else None


def _preprocess(record: Record) -> str:
    parts = record.manifest.get("parts")
    data = parts.get("data") if isinstance(parts, dict) else None
    return compact(data["preprocess"]) if isinstance(data, dict) and data.get("preprocess") else ""


def _family(record: Record) -> str:
    """The first word of an architecture's name: `vit` of `timm:vit_tiny_patch16_224`, `resnet` of `resnet18`."""
    spec = _model_part(record).get("spec")
    name = str(spec.get("name", "")) if isinstance(spec, dict) else ""
    word = re.match(r"[a-z]+", name.rpartition(":")[2].lower().removeprefix("test_"))
    return word.group() if word else ""


def _score(accuracy: Accuracy, verdicts: Mapping[str, float], note: str = "") -> Score:
    return Score(accuracy.value, accuracy.low, accuracy.high, accuracy.n, note, verdicts)


def _images(one: Evaluation | Survey) -> str:
    """Two evaluations have the same images if the names and the labels are the same."""
    told = "\n".join((*one.ids, "", *one.labels)) if one.ids else f"{one.n} without names"
    return hashlib.sha256(told.encode(errors="surrogatepass")).hexdigest()


def _by_id(ids: Sequence[str], verdicts: Iterable[float]) -> dict[str, float]:
    return dict(zip(ids, verdicts, strict=False))


def _right(one: Evaluation | Survey) -> Sequence[float]:
    if one.clean_right or isinstance(one, Survey):
        return one.clean_right
    return [float(to != "clean") for to in one.fell_to]


def _standing(one: Evaluation) -> Sequence[float]:
    return one.right or [float(to == "") for to in one.fell_to]


def _most(scores: _Scores) -> int:
    return max((score.n or 0 for score in scores.values()), default=0)
