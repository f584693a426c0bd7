"""Models side by side: one row per model, one column per number that may be compared.

Numbers share a column only if images, threat and conventions are the same.
"""

import enum
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from vitadel.core.errors import UsageError, spelled, unknown_name_error
from vitadel.core.flags import Flag
from vitadel.core.stats import Accuracy, PairedTest, paired_difference, paired_test
from vitadel.report.reader import EvaluatedSuite, RunRecord
from vitadel.report.text import compact, signed
from vitadel.runs.schema import Measure, SuiteRecord, ThreatRecord

# suites that are AutoAttack with its published budgets, in order of preference, and how they are marked
_AUTOATTACK = {"autoattack": "", "autoattack-rand": "rand", "autoattack-plus": "plus"}
# conventions of the model or of the cost, which do not make numbers incomparable
_OWN_CONVENTIONS = frozenset({"preprocess", "seed", "grid_images", "mapped"})
# suffix of suites that evaluate the rescaled model instead of the model
_RESCALED_SUFFIX = "-paper-protocol"


class ColumnKind(enum.Enum):
    """The kind of numbers in a column."""

    CLEAN = "clean"
    AUTOATTACK = "autoattack"
    BEST_KNOWN = "best-known"
    SUITE = "suite"


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """One number that models are compared by.

    Args:
        key: Its name for programs, unique in a comparison.
        kind: The kind of numbers in it.
        title: Its heading.
        about: What distinguishes it, such as the threat.
        unit: The kind of the measure, as in `vitadel.runs.schema.Measure`.
        is_share: Whether it lies in [0, 1] and is shown in percent.
        higher_is_better: Whether higher values are better.
    """

    key: str
    kind: ColumnKind
    title: str
    about: str
    unit: str
    is_share: bool
    higher_is_better: bool


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """A model's number in a column.

    Args:
        value: The number.
        low: The lower end of its 95% interval.
        high: The upper end.
        n: Images.
        note: The suite that gave the number, if there are several.
        scores: The score of each image, by id.
        delta: The difference to the baseline.
        delta_low: The lower end of the difference's 95% interval; None for numbers that are not 0 or 1 per image.
        delta_high: The upper end.
        paired: The test of that difference.
        best: Whether it is the best of its column.
    """

    value: float
    low: float | None
    high: float | None
    n: int | None
    note: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    delta: float | None = None
    delta_low: float | None = None
    delta_high: float | None = None
    paired: PairedTest | None = None
    best: bool = False


def version_of(score: Score | None, column: ComparedColumn) -> str:
    """Which AutoAttack it was, if not the standard one."""
    return "" if score is None or column.kind is not ColumnKind.AUTOATTACK else score.note


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model.

    Args:
        label: Its name.
        labels: The labels of its runs.
        parameters: Number of parameters.
        family: The first word of its architecture's name.
        preprocess: Its preprocessing.
        scores: One for each column, None if it was not measured.
        flags: Reasons why its numbers may be unreliable, with the evaluations that raised them.
        unreliable: Whether an attack raised one of them.
        rank: Its rank; None if it has no number in the column that ranks.
    """

    label: str
    labels: tuple[str, ...]
    parameters: int | None
    family: str
    preprocess: tuple[str, ...]
    scores: tuple[Score | None, ...]
    flags: tuple[tuple[str, Flag], ...]
    unreliable: bool
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Models in order of rank, by the column `ranked_by`."""

    columns: tuple[ComparedColumn, ...]
    rows: tuple[ModelRow, ...]
    ranked_by: int
    baseline: str | None = None

    @property
    def clean(self) -> int | None:
        """The column of clean accuracy that most models have."""
        return next((number for number, column in enumerate(self.columns) if column.kind is ColumnKind.CLEAN), None)


@dataclass(frozen=True, slots=True)
class _Model:
    """All results of one set of weights under one name."""

    label: str
    records: tuple[RunRecord, ...]

    @property
    def attacks(self) -> list[EvaluatedSuite]:
        attacks = [one for record in self.records for one in record.attacks]
        return [one for one in attacks if not one.record.suite.endswith(_RESCALED_SUFFIX)]

    @property
    def perturbations(self) -> list[EvaluatedSuite]:
        return [one for record in self.records for one in record.perturbations]

    def attacks_at(self, threat: ThreatRecord, images: str) -> list[EvaluatedSuite]:
        """The attacks within a threat on a set of images."""
        return [one for one in self.attacks if _attacked_at(one, threat) and _images(one) == images]


_Scores = dict[str, Score]  # by the model's label


@dataclass(frozen=True, slots=True)
class _ColumnScores:
    """A column with its scores; `differences` may distinguish it from another column of the same title."""

    column: ComparedColumn
    differences: tuple[str, ...]
    scores: _Scores


def compare_models(records: Sequence[RunRecord], baseline: str | None = None) -> Comparison | None:
    """The models of `records` against each other, and against the one called `baseline`.

    Returns:
        The comparison; None if no model was evaluated.
    """
    models = _models(records)
    result = [*_clean(models), *_robust(models, records), *_perturbed(models)]
    if not result:
        if baseline is not None:
            raise UsageError(f"{spelled('baseline', baseline)}: no model was evaluated. Give runs of vitadel evaluate.")
        return None
    columns, scores = _distinguished(result), [_with_best(one.column, one.scores) for one in result]
    base = None if baseline is None else _baseline(baseline, models).label
    if base is not None:
        scores = [_with_differences(base, column) for column in scores]
    rows = [_row(model, [column.get(model.label) for column in scores]) for model in models]
    by = _ranked_by(columns, scores)
    return Comparison(columns, _ranked(rows, by, columns), by, base)


def delta_text(score: Score, column: ComparedColumn) -> str:
    """The difference to the baseline with its sign: in points for a share, otherwise in the number's own unit."""
    return "" if score.delta is None else signed(score.delta, is_share=column.is_share)


def delta_interval(score: Score, column: ComparedColumn) -> str:
    """The 95% interval of that difference, empty where there is none."""
    if score.delta_low is None or score.delta_high is None:
        return ""
    low, high = (signed(end, is_share=column.is_share) for end in (score.delta_low, score.delta_high))
    return f"{low}, {high}"


def _models(records: Sequence[RunRecord]) -> list[_Model]:
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        if record.attacks or record.perturbations:
            groups.setdefault((record.name or record.label, record.weights), []).append(record)
    names = [name for name, _ in groups]
    labels = [name if names.count(name) == 1 else group[0].label for (name, _), group in groups.items()]
    return [_Model(label, tuple(group)) for label, group in zip(labels, groups.values(), strict=True)]


def _baseline(text: str, models: Sequence[_Model]) -> _Model:
    names = {name: model for model in models for name in (model.label, *(r.label for r in model.records))}
    if text not in names:
        raise unknown_name_error("baseline", text, names)
    return names[text]


def _clean(models: Sequence[_Model]) -> list[_ColumnScores]:
    """The columns of clean accuracy, one for each set of images that adds a model."""
    scores: dict[str, _Scores] = {}
    suites: dict[str, set[str]] = {}
    for model in models:
        for one in (*model.attacks, *model.perturbations):
            if one.record.clean is not None:
                images = _images(one)
                score = _score(one.record.clean, one.by_id(one.clean_correct))
                scores.setdefault(images, {}).setdefault(model.label, score)
                suites.setdefault(images, set()).add(one.record.suite if one.record.main else "")

    # a suite of perturbations may have its own images; those of attacks, or of several suites, are the usual ones
    def preference(images: str) -> tuple[int, bool, int, int]:
        return -len(scores[images]), "" not in suites[images], -len(suites[images]), -_most(scores[images])

    kept = _image_sets_needed({images: scores[images] for images in sorted(scores, key=preference)})
    return [_accuracies(ColumnKind.CLEAN, "Clean", "", scores[images]) for images in kept]


def _robust(models: Sequence[_Model], records: Sequence[RunRecord]) -> list[_ColumnScores]:
    attacks = [one for model in models for one in model.attacks if one.record.threat and one.record.robust]
    columns: list[_ColumnScores] = []
    for threat in _threats(attacks, records):
        sets: dict[str, _Scores] = {}
        for images in dict.fromkeys(_images(one) for one in attacks if _attacked_at(one, threat)):
            sets[images] = _scores_of(models, partial(_best_known, threat=threat, images=images))
        order = sorted(sets, key=lambda images: (-len(sets[images]), -_most(sets[images])))
        shown = _image_sets_needed({images: sets[images] for images in order})
        auto = {images: _scores_of(models, partial(_autoattack, threat=threat, images=images)) for images in order}
        # AutoAttack is expensive, so it is shown even if it was run on fewer images than other attacks
        shown_auto = _image_sets_needed({images: scores for images, scores in auto.items() if scores})
        for images in order:
            about = threat.text if images in shown else f"{threat.text}, {_most(sets[images])} images"
            if images in shown_auto:
                columns.append(_accuracies(ColumnKind.AUTOATTACK, "AutoAttack", about, auto[images]))
            if images in shown:
                columns.append(_accuracies(ColumnKind.BEST_KNOWN, "Best known", about, sets[images]))
    return columns


def _scores_of(models: Sequence[_Model], find: Callable[[_Model], Score | None]) -> _Scores:
    scores = {model.label: find(model) for model in models}
    return {label: score for label, score in scores.items() if score is not None}


def _threats(attacks: Sequence[EvaluatedSuite], records: Sequence[RunRecord]) -> list[ThreatRecord]:
    """The threats to compare at: those of AutoAttack, or that a run was given; otherwise the middle of every norm."""
    pairs = [(one.record.threat, one.record.suite) for one in attacks if one.record.threat]
    known = {threat.text: threat for threat, _ in pairs}
    wanted = {(threat.norm, threat.eps) for threat, suite in pairs if suite in _AUTOATTACK}
    wanted |= {(r.manifest.text("threat", "is").lower(), r.manifest.find("threat", "eps")) for r in records}
    chosen = [threat for threat in known.values() if (threat.norm, threat.eps) in wanted]
    if not chosen:
        for norm in dict.fromkeys(threat.norm for threat in known.values()):
            in_order = sorted((t for t in known.values() if t.norm == norm), key=lambda t: t.eps or 0.0)
            chosen.append(in_order[len(in_order) // 2])
    return sorted(chosen, key=lambda threat: (threat.norm, threat.eps or 0.0))


def _attacked_at(one: EvaluatedSuite, threat: ThreatRecord) -> bool:
    return bool(one.record.threat and one.record.threat.text == threat.text and one.record.robust)


def _best_known(model: _Model, threat: ThreatRecord, images: str) -> Score | None:
    """The lowest accuracy of all suites: each is an upper bound, so the lowest is the tightest."""
    scores = [
        _score(one.record.robust, one.by_id(one.correct), note=one.record.suite)
        for one in model.attacks_at(threat, images)
        if one.record.robust
    ]
    scores += [
        replace(_measure_score(one, one.main), note=one.record.suite)
        for one in model.perturbations
        if one.record.threat and one.record.threat.text == threat.text
        if one.main.kind == "accuracy" and _images(one) == images
    ]
    return min(scores, key=lambda score: score.value, default=None)


def _autoattack(model: _Model, threat: ThreatRecord, images: str) -> Score | None:
    by_suite = {one.record.suite: one for one in reversed(model.attacks_at(threat, images))}
    for suite, note in _AUTOATTACK.items():
        if suite in by_suite and (robust := by_suite[suite].record.robust) is not None:
            return _score(robust, by_suite[suite].by_id(by_suite[suite].correct), note=note)
    return None


def _perturbed(models: Sequence[_Model]) -> list[_ColumnScores]:
    """The columns of suites in the order in which they appear, with the main measure of each first."""
    result: dict[tuple[object, ...], _ColumnScores] = {}
    for model in models:
        for one in model.perturbations:
            suite, threat = one.record, one.record.threat.text if one.record.threat else ""
            conventions = {
                name: f"{name}: {compact(value)}"
                for name, value in (suite.conventions or {}).items()
                if name not in _OWN_CONVENTIONS and not name.startswith("forwards")
            }
            differences = (f"{suite.n} images", threat, *conventions.values())
            circle = _circle(model, conventions.pop("sources", ""))
            for measure in _compared(one):
                column = _column(suite, measure)
                key = (column, threat, _images(one), suite.n, *conventions.values(), circle)
                scores = result.setdefault(key, _ColumnScores(column, differences, {})).scores
                scores.setdefault(model.label, _measure_score(one, measure))
    suites = list(dict.fromkeys(one.column.title for one in result.values()))
    main = {_column(one.record, one.main) for model in models for one in model.perturbations}
    return sorted(result.values(), key=lambda one: (suites.index(one.column.title), one.column not in main))


def _compared(suite: EvaluatedSuite) -> list[Measure]:
    """The measures of a suite that models are compared by: the main one, and those with a column in the rows."""
    return [one for one in suite.record.measures if one.main or (one.column and one.value is not None)]


def _column(suite: SuiteRecord, measure: Measure) -> ComparedColumn:
    key = suite.suite if measure.main else f"{suite.suite} {measure.name}"
    share, higher = measure.is_share, measure.higher_is_better
    return ComparedColumn(key, ColumnKind.SUITE, suite.title, measure.name, measure.kind, share, higher)


def _circle(model: _Model, sources: str) -> frozenset[str]:
    """The weights of a model and of its transfer sources: models that are each other's sources are comparable."""
    own = {record.weights[:8] for record in model.records if record.weights}
    return frozenset(re.findall(r"=([0-9a-f]{8})\b", sources)) | own if sources else frozenset()


def _measure_score(one: EvaluatedSuite, measure: Measure) -> Score:
    assert measure.value is not None  # guaranteed for main measures; others without a value are left out
    scores = one.scores(measure)
    return Score(measure.value, measure.low, measure.high, measure.n or one.record.n, "", scores)


def _image_sets_needed(sets: Mapping[str, _Scores]) -> list[str]:
    """The sets of images, in order of preference, that have a model which no earlier set has."""
    kept: list[str] = []
    for images, scores in sets.items():
        if not any(scores.keys() <= sets[earlier].keys() for earlier in kept):
            kept.append(images)
    return kept


def _accuracies(kind: ColumnKind, title: str, about: str, scores: _Scores) -> _ColumnScores:
    key = f"{kind.value} {about}".strip()
    column = ComparedColumn(key, kind, title, about, "accuracy", is_share=True, higher_is_better=True)
    return _ColumnScores(column, (f"{_most(scores)} images",), scores)


def _distinguished(scores: Sequence[_ColumnScores]) -> tuple[ComparedColumn, ...]:
    """The columns, with distinguishing words in `about` and unique keys for those with the same title."""
    keys: list[str] = []
    named = []
    for one in scores:
        column, head = one.column, (one.column.title, one.column.about)
        same_title = [set(other.differences) for other in scores if (other.column.title, other.column.about) == head]
        own = [word for word in one.differences if word and not all(word in other for other in same_title)]
        keys.append(column.key)
        number = keys.count(column.key)
        key = column.key if number == 1 else f"{column.key} #{number}"
        named.append(replace(column, key=key, about="; ".join(filter(None, (column.about, *own)))))
    return tuple(named)


def _with_best(column: ComparedColumn, scores: _Scores) -> _Scores:
    values = {score.value for score in scores.values()}
    best = (max if column.higher_is_better else min)(values)
    return {label: replace(score, best=len(values) > 1 and score.value == best) for label, score in scores.items()}


def _with_differences(baseline: str, scores: _Scores) -> _Scores:
    if (base := scores.get(baseline)) is None:
        return scores
    return {label: score if label == baseline else _with_difference(score, base) for label, score in scores.items()}


def _with_difference(score: Score, base: Score) -> Score:
    delta, paired = score.value - base.value, paired_test(score.scores, base.scores)
    low, high = None, None
    if paired is not None and paired.exact:
        difference = paired_difference(paired.first_better, paired.second_better, paired.n)
        # not so if one of them has more images, or if the number is not the mean of its scores
        if math.isclose(difference.value, delta, abs_tol=1e-9):
            low, high = difference.low, difference.high
    return replace(score, delta=delta, delta_low=low, delta_high=high, paired=paired)


def _ranked_by(columns: Sequence[ComparedColumn], scores: Sequence[_Scores]) -> int:
    """The column of robust accuracy that most models have; without one the first suite's, else clean accuracy."""
    order = (ColumnKind.BEST_KNOWN, ColumnKind.SUITE, ColumnKind.CLEAN)
    candidates = [number for number, column in enumerate(columns) if column.kind in order]
    return min(candidates, key=lambda number: (order.index(columns[number].kind), -len(scores[number]), number))


def _ranked(rows: Sequence[ModelRow], by: int, columns: Sequence[ComparedColumn]) -> tuple[ModelRow, ...]:
    sign = -1 if columns[by].higher_is_better else 1
    measured = [row for row in rows if row.scores[by]]
    measured.sort(key=lambda row: (sign * _value(row, by), -_value(row, 0)))
    values = [_value(row, by) for row in measured]
    ranked = [replace(row, rank=1 + values.index(value)) for row, value in zip(measured, values, strict=True)]
    return (*ranked, *(row for row in rows if not row.scores[by]))


def _value(row: ModelRow, column: int) -> float:
    score = row.scores[column]
    return -math.inf if score is None else score.value


def _row(model: _Model, scores: Sequence[Score | None]) -> ModelRow:
    flagged = [(one.name, flag) for one in model.attacks for flag in one.record.flags]
    flags = [*flagged, *((one.name, flag) for one in model.perturbations for flag in one.record.flags)]
    manifests = [record.manifest for record in model.records]
    counts = [manifest.find("model", "parameters") for manifest in manifests]
    preprocess = [compact(manifest.find("data", "preprocess") or "") for manifest in manifests]
    return ModelRow(
        label=model.label,
        labels=tuple(dict.fromkeys(record.label for record in model.records)),
        parameters=next((count for count in counts if isinstance(count, int) and count > 0), None),
        family=next(filter(None, (_family(manifest.text("model", "spec", "name")) for manifest in manifests)), ""),
        preprocess=tuple(dict.fromkeys(filter(None, preprocess))),
        scores=tuple(scores),
        flags=tuple({(name, flag.code): (name, flag) for name, flag in flags}.values()),
        unreliable=bool(flagged),
    )


def _family(name: str) -> str:
    """The first word of an architecture's name: `vit` of `timm:vit_tiny_patch16_224`, `resnet` of `resnet18`."""
    word = re.match(r"[a-z]+", name.rpartition(":")[2].lower().removeprefix("test_"))
    return word.group() if word else ""


def _score(accuracy: Accuracy, scores: Mapping[str, float], note: str = "") -> Score:
    return Score(accuracy.accuracy, accuracy.low, accuracy.high, accuracy.n, note, scores)


def _images(one: EvaluatedSuite) -> str:
    """A hash of the names and labels of the images, equal for evaluations of the same images."""
    ids = "\n".join((*map(str, one.rows.id), "", *map(str, one.rows.label)))
    text = ids if one.rows.id else f"{one.record.n} without names"
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _most(scores: _Scores) -> int:
    return max((score.n or 0 for score in scores.values()), default=0)
