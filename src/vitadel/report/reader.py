"""Reads run folders for reports: every file is read and checked as the record class that wrote it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitadel.core.errors import UsageError, short_repr
from vitadel.core.files import printable, read_json
from vitadel.core.flags import Flag
from vitadel.core.stats import Accuracy
from vitadel.report.labels import model_name, with_labels
from vitadel.runs import ManifestRecord, Run
from vitadel.runs.schema import (
    FORMER_FLAG_CODES,
    FORMER_STUDY_NAMES,
    ROBUST,
    WRONG_BEFORE,
    AttackRecord,
    Gallery,
    ImageRows,
    Measure,
    StudyRecord,
    SuiteRecord,
    read_study,
)
from vitadel.runs.sweep_schema import SweepRecord, read_sweep

_NOT_SERIES = {"step", "epoch"}
Scores = Mapping[str, float]  # of each image, by its id


@dataclass(frozen=True, slots=True)
class AttackStep:
    """One attack of a suite, the images that it broke, and the robust accuracy after it."""

    record: AttackRecord
    broken: int
    accuracy: float | None


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedSuite:
    """A finished suite of a run.

    Args:
        name: The folder of its rows.
        record: Its summary.
        rows: What it says of every image.
        gallery: Some attacked images.
        compared: Of each measure besides the main one that models are compared by, the values of the images; by the
            name of its column.
    """

    name: str
    record: SuiteRecord
    rows: ImageRows
    gallery: Gallery | None = None
    compared: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def clean(self) -> Accuracy:
        """The clean accuracy of a suite of attacks, which always has one."""
        assert self.record.clean is not None
        return self.record.clean

    @property
    def main(self) -> Measure:
        """The main measure of a suite of perturbations, which always has one."""
        assert self.record.main is not None
        return self.record.main

    @property
    def is_randomized(self) -> bool:
        """Whether the accuracies are expected accuracies of a randomized model."""
        return any(score not in (0, 1, None) for score in (*self.rows.clean_correct, *self.rows.robust))

    @property
    def clean_correct(self) -> list[float]:
        """Per image how often it is classified correctly without attack or perturbation."""
        if self.rows.clean_correct:
            return _floats(self.rows.clean_correct)
        if self.record.main is None:
            return [float(attack != WRONG_BEFORE) for attack in self.rows.broken_by]
        pairs = zip(self.rows.label, self.rows.clean_prediction, strict=False)
        return [float(label == prediction) for label, prediction in pairs] if self.record.clean else []

    @property
    def correct(self) -> list[float]:
        """Per image how often it is classified correctly after all attacks, or under perturbations."""
        if self.record.main is not None:
            return _floats(self.rows.correct)
        return _floats(self.rows.robust) or [float(attack == ROBUST) for attack in self.rows.broken_by]

    def scores(self, measure: Measure) -> dict[str, float]:
        """What each image adds to a measure, by its id; more is better."""
        values = self.correct if measure.main else self.compared.get(measure.column, ())
        return self.by_id(values if measure.higher_is_better or measure.main else [-value for value in values])

    def by_id(self, scores: Sequence[float]) -> dict[str, float]:
        """Scores by the image's id."""
        return dict(zip(map(str, self.rows.id), scores, strict=False))

    @property
    def attack_steps(self) -> list[AttackStep]:
        """The attacks with the robust accuracy after each.

        Images that were broken within a smaller radius were not tried again, and are gone before the first attack. Of a
        randomized model only the accuracy after all attacks is known.
        """
        attacks, robust = self.record.attacks, self.record.robust
        broken = [self._broken(attack, number) for number, attack in enumerate(attacks)]
        left: list[float | None] = [None] * len(attacks)
        if robust is not None and self.is_randomized:
            left[-1:] = [robust.accuracy] * len(left[-1:])
        elif robust is not None:
            left = [(robust.correct + sum(broken[number + 1 :])) / robust.n for number in range(len(attacks))]
        return [AttackStep(*step) for step in zip(attacks, broken, left, strict=True)]

    def _broken(self, attack: AttackRecord, number: int) -> int:
        """The images tried and broken; summaries before version 1 also count those broken at smaller radii."""
        spent = [cost[number] for cost in self.rows.forwards if isinstance(cost, list) and len(cost) > number]
        if not spent or len(spent) < len(self.rows.broken_by):
            return attack.broken
        pairs = zip(self.rows.broken_by, spent, strict=True)
        return sum(name == attack.name and forwards > 0 for name, forwards in pairs)


@dataclass(frozen=True, slots=True)
class Series:
    """One logged quantity over the steps of a training."""

    event: str
    name: str
    steps: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """Accuracy against eps of one run, one norm and one suite; the first point is eps 0, the clean accuracy."""

    label: str
    norm: str
    suite: str
    points: tuple[tuple[float, Accuracy], ...]
    unit: str = ""

    @property
    def has_several_radii(self) -> bool:
        """Whether more than one eps was attacked; a single one has no shape."""
        return len(self.points) > 2


@dataclass(frozen=True, slots=True)
class RunRecord:
    """All that the page shows of one run.

    Args:
        label: Unique among the curves it appears with.
        folder: The name of the run folder.
        manifest: What the run is.
        attacks: The finished suites of attacks, in order of the radius.
        perturbations: The finished suites of perturbations.
        training: The logged quantities.
        training_flags: Flags of the training by step.
        sweep: The table of a sweep.
        study: The result of a study.
        name: The model's name, which several runs may share.
    """

    label: str
    folder: str
    manifest: ManifestRecord
    attacks: tuple[EvaluatedSuite, ...] = ()
    perturbations: tuple[EvaluatedSuite, ...] = ()
    training: tuple[Series, ...] = ()
    training_flags: tuple[tuple[int, Flag], ...] = ()
    sweep: SweepRecord | None = None
    study: StudyRecord | None = None
    name: str = ""

    @property
    def weights(self) -> str:
        """The hash of the evaluated weights; empty if there are none yet, as before training."""
        return self.manifest.text("model", "sha256")

    @property
    def contents(self) -> list[str]:
        """The kinds of things that the run has to show."""
        kinds = {"attacks": self.attacks, "training": self.training, "sweep": self.sweep}
        named = [f"study {self.study.study}"] if self.study else []
        suites = dict.fromkeys(f"suite {one.record.suite}" for one in self.perturbations)
        return [*(kind for kind, content in kinds.items() if content), *named, *suites]

    @property
    def curves(self) -> tuple[Curve, ...]:
        """The attacks in order of eps, one curve per suite and norm; of several with one eps the lowest accuracy."""
        suites: dict[tuple[str, str, str], dict[float, tuple[Accuracy, Accuracy]]] = {}
        for one in self.attacks:
            threat, robust = one.record.threat, one.record.robust
            if threat is None or threat.eps is None or robust is None:
                continue
            points = suites.setdefault((one.record.suite, threat.norm, threat.unit), {})
            if threat.eps not in points or robust.accuracy < points[threat.eps][1].accuracy:
                points[threat.eps] = one.clean, robust
        return tuple(
            Curve(
                self.label,
                norm,
                suite,
                ((0.0, points[min(points)][0]), *((eps, points[eps][1]) for eps in sorted(points))),
                unit,
            )
            for (suite, norm, unit), points in suites.items()
        )


def read_runs(folders: Sequence[Path]) -> tuple[RunRecord, ...]:
    """The records of run folders, in their order, a folder given twice taken once.

    Raises:
        UsageError: One of them is not a run, has nothing to show, or has a file that cannot be read.
    """
    if not folders:
        raise UsageError("a report needs at least one run, got none. Write: vitadel report RUN... --out report.html")
    unique = list({path.resolve(): path for path in folders}.values())
    return with_labels([_run_record(folder) for folder in unique])


def read_study_of(folder: Path) -> StudyRecord | None:
    """The result of the study in a run folder; None if it is not finished.

    A result of an earlier version without exhibits, such as an old `masking`, gives a record that only says what to do.
    """
    path = folder / "study" / "result.json"
    if not path.exists():
        return None
    content = read_json(path)
    if "exhibits" in content:
        return read_study(path)
    study = str(content.get("study", "study"))
    study = FORMER_STUDY_NAMES.get(study, study)
    remedy = (
        f"{path} is of an earlier version, whose results had no exhibits. Run the study again, into another run folder."
    )
    return StudyRecord(study, study.capitalize(), remedy, ())


def _run_record(folder: Path) -> RunRecord:
    run = Run.open(folder)
    manifest, name, table = run.manifest, printable(folder.resolve().name), folder / "table.json"
    evaluations = [_evaluation(run, name) for name in run.evaluations()]
    record = RunRecord(
        model_name(manifest) or name,
        name,
        manifest,
        attacks=tuple(sorted((one for one in evaluations if one.record.main is None), key=_by_threat)),
        perturbations=tuple(one for one in evaluations if one.record.main is not None),
        training=(*_series(run, "step"), *_series(run, "holdout")),
        training_flags=_training_flags(run),
        sweep=read_sweep(table) if manifest.kind == "sweep" and table.exists() else None,
        study=read_study_of(folder) if manifest.kind == "analyze" else None,
    )
    if not record.contents:
        raise UsageError(
            f"{folder} has nothing to report: no training log, no finished evaluation, no finished study. "
            "Let its command finish (the same command resumes it), or leave it out."
        )
    return record


def _evaluation(run: Run, name: str) -> EvaluatedSuite:
    results = run.results(name)
    summary, columns = results.read_verified()
    path, gallery = results.folder / "summary.json", results.folder / "gallery.npz"
    record = SuiteRecord.from_json(summary, path)
    if record.main is None and record.clean is None:
        raise UsageError(f"{path} has no clean accuracy, which every suite of attacks has. Run the evaluation again.")
    rows = ImageRows.from_columns(columns, results.folder / "rows.parquet")
    compared = {
        one.column: _column_of(one, columns, results.folder / "rows.parquet") for one in record.measures if one.column
    }
    return EvaluatedSuite(name, record, rows, Gallery.read(gallery) if gallery.exists() else None, compared)


def _column_of(measure: Measure, columns: Mapping[str, Sequence[object]], path: Path) -> list[float]:
    """The values of the images that a measure is compared by; none if an earlier version did not write them."""
    values = columns.get(measure.column, ())
    if wrong := [value for value in values if not (value is None or isinstance(value, int | float))]:
        raise UsageError(
            f"{path}: {printable(measure.column)} must be numbers, got {short_repr(wrong[0])}. "
            "Delete the file and run the same command again."
        )
    return _floats([value for value in values if value is None or isinstance(value, int | float)])


def _by_threat(evaluation: EvaluatedSuite) -> tuple[bool, str, str, float, str]:
    record, name = evaluation.record, evaluation.name
    if record.threat is None:
        return (False, record.suite, "", 0.0, name)
    return (True, record.suite, record.threat.norm, record.threat.eps or 0.0, name)


def _training_flags(run: Run) -> tuple[tuple[int, Flag], ...]:
    """Every alarm once: a run that was interrupted and resumed may have logged one twice."""
    flags: dict[tuple[int, str], str] = {}
    for entry in run.read_log("alarm"):
        if "at" in entry.numbers:
            code = str(entry.values.get("code"))
            flags[int(entry.numbers["at"]), FORMER_FLAG_CODES.get(code, code)] = str(entry.values.get("sentence"))
    if damaged := run.damaged_log_lines:
        flags[0, "damaged-log"] = f"{damaged} lines of log.jsonl are damaged and left out of all that is shown here"
    return tuple((step, Flag(code, sentence, {})) for (step, code), sentence in sorted(flags.items()))


def _series(run: Run, event: str) -> list[Series]:
    entries = [numbers for entry in run.read_log(event) if "step" in (numbers := entry.numbers)]
    names = dict.fromkeys(name for entry in entries for name in entry if name not in _NOT_SERIES)
    pairs = {name: [(entry["step"], entry[name]) for entry in entries if name in entry] for name in names}
    return [
        Series(event, name, tuple(step for step, _ in points), tuple(value for _, value in points))
        for name, points in pairs.items()
    ]


def _floats(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]
