"""From run folders to records: everything is read and checked here, once."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitadel.core.errors import UsageError, reason
from vitadel.core.files import read_json
from vitadel.report.exhibits import Findings
from vitadel.report.manifest_text import compact
from vitadel.report.masking import Masking
from vitadel.report.records import (
    Accuracy,
    Alarm,
    AttackCost,
    Curve,
    Evaluation,
    Flag,
    Gallery,
    Record,
    Series,
    Sweep,
    SweepRow,
    Threat,
)
from vitadel.report.studies import read_study
from vitadel.report.surveys import Survey, survey
from vitadel.runs import ResultFolder, Run

_NOT_SERIES = {"event", "time", "step", "epoch"}


def collect(runs: Sequence[Path]) -> tuple[Record, ...]:
    """The records of `runs`, in their order, a folder given twice taken once."""
    if not runs:
        raise UsageError("a report needs at least one run, got none. Write: vitadel report RUN... --out report.html")
    folders = list({path.resolve(): path for path in runs}.values())
    return _with_unique_labels(_with_heads(_without_files([_record(folder) for folder in folders])))


def curves(record: Record) -> tuple[Curve, ...]:
    """The evaluations of one run, put in order of eps, one curve per suite and norm."""
    found: dict[tuple[str, str], dict[float, Evaluation]] = {}
    for evaluation in record.evaluations:
        threat, robust = evaluation.threat, evaluation.robust
        if threat is None or threat.eps is None or robust is None:
            continue
        at = found.setdefault((evaluation.suite, threat.norm), {})
        earlier = at.get(threat.eps)
        if earlier is None or earlier.robust is None or robust.value < earlier.robust.value:
            at[threat.eps] = evaluation
    return tuple(_curve(record.label, norm, suite, at) for (suite, norm), at in found.items())


def _curve(label: str, norm: str, suite: str, at: Mapping[float, Evaluation]) -> Curve:
    attacked = [(eps, robust) for eps in sorted(at) if (robust := at[eps].robust) is not None]
    return Curve(label, norm, suite, ((0.0, at[min(at)].clean), *attacked))


def _record(folder: Path) -> Record:
    run = Run.open(folder)
    manifest = run.manifest.to_json()
    found = [_finished(run, name) for name in run.evaluations()]
    evaluations = sorted((one for one in found if isinstance(one, Evaluation)), key=_by_threat)
    surveys = tuple(one for one in found if isinstance(one, Survey))
    training = (*_series(run, "step"), *_series(run, "holdout"))
    sweep = _sweep(folder / "table.json") if manifest.get("kind") == "sweep" else None
    study = read_study(folder) if manifest.get("kind") == "analyze" else None
    if not found and not training and not sweep and not study:
        raise UsageError(
            f"{folder} has nothing to report: no training log, no finished evaluation, no finished study. "
            "Let its command finish (the same command resumes it), or leave it out."
        )
    name = _printable(folder.resolve().name)
    label = _printable(_model_name(manifest)) or name
    return Record(
        label,
        name,
        manifest,
        tuple(evaluations),
        training,
        sweep,
        _alarms(run),
        masking=study if isinstance(study, Masking) else None,
        findings=study if isinstance(study, Findings) else None,
        surveys=surveys,
    )


def _alarms(run: Run) -> tuple[Alarm, ...]:
    """Every alarm once: a run that was stopped and went on may have raised one twice."""
    found = {
        (int(_number(entry.get("at"))), _text(entry.get("code"))): _text(entry.get("sentence"))
        for entry in (one.values for one in run.read_log("alarm"))
        if math.isfinite(_number(entry.get("at")))
    }
    if damaged := run.damaged_log_lines:
        found[0, "damaged-log"] = f"{damaged} lines of log.jsonl are damaged and left out of all that is shown here"
    return tuple(Alarm(step, code, sentence) for (step, code), sentence in sorted(found.items()))


def _printable(text: str) -> str:
    """A name that pages and figures can hold: of a file name that is not UTF-8, the odd bytes spelled out."""
    return text.encode(errors="backslashreplace").decode()


def _model_name(manifest: Mapping[str, object]) -> str:
    parts = _mapping(manifest.get("parts"))
    names = (_mapping(parts.get(part)).get("name") for part in ("model", "recipe"))
    name = next((name for name in names if isinstance(name, str) and name), "")
    # of a file its name will do: provenance has the way there
    start, at, weights = name.partition("@")
    file, mark, head = start.partition("#")
    if file.endswith(".safetensors") and "+" not in file:
        start = f"{Path(file).stem}{mark}{head}"
    return f"{start}{at}{Path(weights).name}"


def _without_files(records: Sequence[Record]) -> list[Record]:
    """Networks without the files of their weights, where the page has one file of each: provenance names it."""
    starts = [record.label.partition("@")[0] for record in records]
    files: dict[str, set[str]] = {}
    for start, record in zip(starts, records, strict=True):
        files.setdefault(start, set()).add(record.weights)
    return [
        replace(record, label=start) if len(files[start]) == 1 else record
        for start, record in zip(starts, records, strict=True)
    ]


def _with_heads(records: Sequence[Record]) -> list[Record]:
    """Of a model with several heads the name and the head: whoever measured one by its folder's name meant the same.

    The mean of the heads is what a model answers with if nobody chooses, and is named only beside others.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        weights, head = _head(record)
        if head:
            groups.setdefault(weights, []).append(record)
    names = {weights: _shared_name([record.label for record in group]) for weights, group in groups.items()}
    several = {weights for weights, group in groups.items() if len({_head(record)[1] for record in group}) > 1}
    labeled = []
    for record in records:
        weights, head = _head(record)
        named = bool(head) and (head != "joint" or weights in several)
        labeled.append(replace(record, label=f"{names[weights]}#{head}") if named else record)
    return labeled


def _shared_name(labels: Sequence[str]) -> str:
    return next((label for label in labels if "#" not in label), labels[0].rpartition("#")[0])


def _head(record: Record) -> tuple[str, str]:
    """The weights, and which of several heads answers; two empty texts for a model with one head."""
    model = _mapping(_mapping(record.manifest.get("parts")).get("model"))
    tuning = _mapping(_mapping(model.get("spec")).get("tuning"))
    head, weights = tuning.get("head", tuning.get("answer")), model.get("sha256")
    return (weights, head) if isinstance(head, str) and isinstance(weights, str) else ("", "")


def _with_unique_labels(records: Sequence[Record]) -> tuple[Record, ...]:
    """Tell runs of one name apart by their folders, if they show the same kind of thing or are of other weights."""
    records = [replace(record, name=record.label) for record in records]
    shown = Counter((r.label, what) for r in records for what in _shows(r))
    weights = Counter(label for label, of in {(r.label, r.weights) for r in records} if of)
    clear = [
        replace(r, label=f"{r.label} ({r.folder})")
        if any(shown[r.label, what] > 1 for what in _shows(r)) or (weights[r.label] > 1 and r.weights)
        else r
        for r in records
    ]
    seen: Counter[tuple[str, str]] = Counter()
    unique = []
    for record in clear:
        number = 1 + max(seen[record.label, what] for what in _shows(record))
        seen.update((record.label, what) for what in _shows(record))
        unique.append(record if number == 1 else replace(record, label=f"{record.label} #{number}"))
    return tuple(unique)


def _shows(record: Record) -> list[str]:
    kinds: dict[str, object] = {"evaluations": record.evaluations, "training": record.training}
    kinds |= {"sweep": record.sweep, "masking": record.masking}
    kinds |= {f"study {record.findings.study}": record.findings} if record.findings else {}
    kinds |= {f"survey {one.suite}": one for one in record.surveys}
    return [what for what, there in kinds.items() if there]


def _by_threat(evaluation: Evaluation) -> tuple[bool, str, str, float, str]:
    threat = evaluation.threat
    if threat is None:
        return (False, evaluation.suite, "", 0.0, evaluation.name)
    return (True, evaluation.suite, threat.norm, threat.eps or 0.0, evaluation.name)


def _finished(run: Run, name: str) -> Evaluation | Survey:
    rows = run.results(name)
    summary, columns = rows.checked()
    return _survey(rows, summary, columns) if "measures" in summary else _evaluation(rows, summary, columns)


def _survey(rows: ResultFolder, summary: Mapping[str, object], columns: Mapping[str, Sequence[object]]) -> Survey:
    try:
        return survey(
            summary,
            rows.folder.name,
            clean=_accuracy(summary.get("clean")),
            threat=_threat(summary.get("threat")),
            flags=[_flag(entry) for entry in _mappings(summary.get("flags"))],
            columns=columns,
        )
    except UsageError as error:
        raise UsageError(f"{rows.folder / 'summary.json'}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{rows.folder / 'summary.json'} is not as the survey wrote it ({error!r}). Run the evaluation again."
        ) from error


def _evaluation(
    rows: ResultFolder, summary: Mapping[str, object], columns: Mapping[str, Sequence[object]]
) -> Evaluation:
    clean = _accuracy(summary.get("clean"))
    if clean is None:
        raise UsageError(
            f"{rows.folder / 'summary.json'} should give 'clean' as correct, n, accuracy, low and high, "
            f"got {summary.get('clean')!r}. Run the evaluation again."
        )
    found = Evaluation(
        name=rows.folder.name,
        suite=_text(summary.get("suite")),
        threat=_threat(summary.get("threat")),
        n=clean.n,
        clean=clean,
        robust=_accuracy(summary.get("robust")),
        attacks=tuple(_attack(entry) for entry in _mappings(summary.get("attacks"))),
        flags=tuple(_flag(entry) for entry in _mappings(summary.get("flags"))),
        fell_to=tuple(_text(value) for value in columns.get("broken_by", [])),
        size=tuple(_number(value) for value in columns.get("distance", [])),
        gallery=_gallery(rows.folder / "gallery.npz"),
        clean_right=tuple(_number(value) for value in columns.get("clean_correct", [])),
        right=tuple(_number(value) for value in columns.get("robust", [])),
        precision=_text(summary.get("search_precision")),
        ids=tuple(str(value) for value in columns.get("id", [])),
        labels=tuple(str(value) for value in columns.get("label", [])),
    )
    return replace(found, attacks=_with_what_is_left(found, columns.get("forwards", [])))


def _with_what_is_left(evaluation: Evaluation, forwards: Sequence[object]) -> tuple[AttackCost, ...]:
    """The attacks with what fell of what they tried, and the robust accuracy after each.

    Images that fell inside a smaller radius were not tried again, and are gone before the first attack. Of a random
    model only the accuracy after all attacks is known.
    """
    attacks = [replace(a, fell=_fell(a, i, evaluation.fell_to, forwards)) for i, a in enumerate(evaluation.attacks)]
    if evaluation.is_expected:
        last = evaluation.robust.value if evaluation.robust else None
        return (*attacks[:-1], *(replace(attack, after=last) for attack in attacks[-1:]))
    fell = [attack.fell for attack in attacks if attack.fell is not None]
    if evaluation.robust is None or len(fell) < len(attacks):
        return tuple(attacks)
    left = [evaluation.robust.correct + sum(fell[i + 1 :]) for i in range(len(fell))]
    return tuple(replace(attack, after=count / evaluation.n) for attack, count in zip(attacks, left, strict=True))


def _fell(attack: AttackCost, place: int, fell_to: Sequence[str], forwards: Sequence[object]) -> int | None:
    """How many of the images that this attack tried fell to it; the summary's count if the rows do not say."""
    spent = [cost[place] for cost in forwards if isinstance(cost, list) and len(cost) > place]
    if not spent or len(spent) < len(fell_to):
        return attack.fell
    return sum(to == attack.name and _number(cost) > 0 for to, cost in zip(fell_to, spent, strict=True))


def _accuracy(value: object) -> Accuracy | None:
    told = _mapping(value)
    numbers = [_number(told.get(key)) for key in ("correct", "n", "accuracy", "low", "high")]
    if not all(map(math.isfinite, numbers)):
        return None
    correct, n, share, low, high = numbers
    return Accuracy(int(correct), int(n), share, low, high)


def _threat(value: object) -> Threat | None:
    told = _mapping(value)
    if not told:
        return None
    norm, eps = _text(told.get("norm")), _number(told.get("eps"))
    text = _text(told.get("text")) or (f"{norm}:{eps:.4g}" if math.isfinite(eps) else norm)
    return Threat(norm, eps if math.isfinite(eps) else None, text)


def _attack(told: Mapping[str, object]) -> AttackCost:
    tried, fell, forwards, backwards = (
        _count(told.get(key, told.get("fell") if key == "broken" else None))
        for key in ("tried", "broken", "forwards", "backwards")
    )
    seconds = _number(told.get("seconds"))
    known = seconds if math.isfinite(seconds) else None
    rejected = _count(told.get("rejected", told.get("denied")))
    return AttackCost(_text(told.get("name")), tried, fell, forwards, backwards, known, rejected=rejected)


def _flag(told: Mapping[str, object]) -> Flag:
    evidence = _mapping(told.get("evidence"))
    text = ", ".join(f"{key} = {compact(value)}" for key, value in evidence.items())
    return Flag(_text(told.get("code")), _text(told.get("sentence")), text)


def _gallery(path: Path) -> Gallery | None:
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            return Gallery(
                clean=stored["clean"].astype(np.float32) / np.float32(255),
                adversarial=stored["adversarial"].astype(np.float32),
                label=tuple(int(v) for v in stored["label"]),
                clean_prediction=tuple(int(v) for v in stored["clean_prediction"]),
                prediction=tuple(int(v) for v in stored["prediction"]),
                fell_to=tuple(str(v) for v in stored["broken_by" if "broken_by" in stored else "fell_to"]),
                classes=tuple(str(v) for v in stored["classes"]),
                eps=float(stored["eps"]),
                norm=str(stored["norm"]),
            )
    except Exception as error:  # a damaged archive can raise anything
        raise UsageError(f"cannot read {path}: {reason(error)}. Delete it to report without its pictures.") from error


def _series(run: Run, event: str) -> tuple[Series, ...]:
    entries = [
        entry for entry in (one.values for one in run.read_log(event)) if math.isfinite(_number(entry.get("step")))
    ]
    names = dict.fromkeys(key for entry in entries for key in entry if key not in _NOT_SERIES)
    series = (_one_series(event, name, entries) for name in names)
    return tuple(s for s in series if s.values)


def _one_series(event: str, name: str, entries: Iterable[Mapping[str, object]]) -> Series:
    pairs = [(_number(entry["step"]), _number(entry.get(name))) for entry in entries]
    finite = [(step, value) for step, value in pairs if math.isfinite(value)]
    return Series(event, name, tuple(step for step, _ in finite), tuple(value for _, value in finite))


def _sweep(path: Path) -> Sweep | None:
    """A sweep as far as it got; None before its first combination is through."""
    if not path.exists():
        return None
    told = read_json(path)
    axes, best, published = told.get("axes"), _mapping(told.get("best")), _mapping(told.get("published"))
    names = tuple(str(axis) for axis in axes) if isinstance(axes, list) else ()
    source, attack, note = (_text(published.get(key)) for key in ("source", "attack", "note"))
    return Sweep(
        axes=names,
        threat=_text(told.get("threat")),
        measure=_text(best.get("measure")),
        published=f"{source}; robust under {attack}. {note}".strip() if published else "",
        rows=tuple(_sweep_row(row, names, best.get("rows")) for row in _mappings(told.get("rows"))),
    )


def _sweep_row(told: Mapping[str, object], axes: Sequence[str], best: object) -> SweepRow:
    values, holdout, test, published = (_mapping(told.get(key)) for key in ("values", "holdout", "test", "published"))
    return SweepRow(
        values=tuple(_text(values.get(axis)) for axis in axes),
        holdout=(_finite(holdout.get("clean")), _finite(holdout.get("robust"))),
        test=(_accuracy(test.get("clean")), _accuracy(test.get("robust"))),
        published=(_finite(published.get("clean")), _finite(published.get("robust"))),
        failed=_text(told.get("reason")),
        best=isinstance(best, list) and told.get("name") in best,
    )


def _finite(value: object) -> float | None:
    number = _number(value)
    return number if math.isfinite(number) else None


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _mappings(value: object) -> list[Mapping[str, object]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _count(value: object) -> int | None:
    number = _number(value)
    return int(number) if math.isfinite(number) else None
