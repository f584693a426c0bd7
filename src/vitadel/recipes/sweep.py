"""Sweeps: a recipe trained for every combination of some settings, or several models, with the results in one table.

folder/manifest.json            which sweep this is
folder/<combination>/           a training run like any other
folder/<combination>/test/      its evaluation, if the sweep has columns; further ones are `test-...`
folder/start/                   the network that rows freeze, if the sweep trains it
folder/table.json               one row per combination: a `vitadel.runs.sweep_schema.SweepRecord`
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vitadel import models
from vitadel.core.device import device_name
from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.core.files import slug, write_json
from vitadel.core.oom import is_out_of_memory
from vitadel.core.progress import DeferredProgress, ProgressCallback, prefixed, silent
from vitadel.core.stats import Accuracy
from vitadel.recipes.axes import AXES, Axis, Value
from vitadel.recipes.columns import Column, EvaluationTask, evaluations, measured, select
from vitadel.recipes.combinations import Combination, Sweep
from vitadel.recipes.published import GPU_HOURS, PublishedAccuracy, PublishedSweep
from vitadel.recipes.recipe import Recipe
from vitadel.recipes.runner import train_recipe
from vitadel.recipes.scale import image_difference
from vitadel.recipes.small import START
from vitadel.runs import Run
from vitadel.runs.schema import Measure, SuiteRecord
from vitadel.runs.sweep_schema import (
    BestCombinations,
    ColumnRecord,
    CombinationRecord,
    HoldoutScores,
    PublishedScores,
    PublishedTable,
    SweepRecord,
    TestScores,
)
from vitadel.train import launch_ranks

__all__ = [
    "AXES",
    "Axis",
    "Column",
    "Combination",
    "PublishedAccuracy",
    "PublishedSweep",
    "Sweep",
    "Value",
    "best_combinations",
    "holdout_scores",
    "run_sweep",
]

# what decides which combination is best: the first of these that was measured. Test images come last: the best of
# many by them would look better than it is
_MEASURES = (("holdout", "robust"), ("holdout", "clean"), ("test", "robust"), ("test", "clean"))
# what training writes into the best checkpoint
_SELECTED = re.compile(r"step (?P<step>\d+), hold-out (?P<scores>\{[^{}]*\})")
# the column of clean accuracy, which every evaluation of attacks measures
_CLEAN = "clean"

# carries out an evaluation
Evaluate = Callable[[EvaluationTask, ProgressCallback], Sequence[SuiteRecord]]


def run_sweep(
    sweep: Sweep,
    folder: Path,
    *,
    evaluate: Evaluate | None = None,
    notify: ProgressCallback = silent,
    command: str | None = None,
) -> SweepRecord:
    """Train and evaluate every combination in `folder`.

    Interrupted and called again, finished combinations are skipped and the interrupted one resumes. A combination that
    fails is tried again then; the others are trained nevertheless.

    Args:
        sweep: What to train.
        folder: The run folder; one of another sweep is refused.
        evaluate: Carries out an evaluation; needed if the sweep has columns.
        notify: Reports progress.
        command: What the manifest records as the command.

    Returns:
        The table, as it is also written to `table.json`.

    Raises:
        UsageError: If a combination cannot be trained, before any training, or the folder belongs to another run.
    """
    assert evaluate is not None or not sweep.evaluates, "a sweep with columns needs a way to evaluate"
    deferred = DeferredProgress(notify)
    combinations = sweep.combinations(deferred)
    sweep.check(combinations)
    _check_models(combinations, folder)
    left_out = sweep.left_out(combinations)
    parts = sweep.parts(combinations)
    run = Run.claim(folder, "sweep", parts, device=device_name(), ranks=launch_ranks(), command=command)
    deferred.release()
    for one in left_out:
        notify(one, 0, 0, {})
    first = sweep.starting_recipe(combinations)
    if first is not None and not _is_finished(folder / START):
        train_recipe(
            first, folder / START, data_spec=sweep.data, notify=prefixed(notify, f"{START}: "), command=command
        )
    rows: list[CombinationRecord] = []
    for number, combination in enumerate(combinations, 1):
        reports = prefixed(notify, f"{number}/{len(combinations)} {combination.name}: ")
        rows.append(_train_and_evaluate(sweep, combination, run, evaluate, reports, command))
        if Ranks.of_launch().rank == 0:
            write_json(folder / "table.json", sweep_record(sweep, rows, left_out).to_json())
    return sweep_record(sweep, rows, left_out)


def _check_models(combinations: Sequence[Combination], folder: Path) -> None:
    """Refuse models that do not exist: without this, all rows before them would be computed first."""
    for one in combinations:
        model = one.model or one.recipe.model.start
        if model == START or (one.trained is not None and _is_finished(folder / one.folder)):
            continue
        try:
            models.check_exists(model)
        except UsageError as error:
            raise UsageError(f"{one.name}: {error}") from None


def _train_and_evaluate(
    sweep: Sweep, one: Combination, run: Run, evaluate: Evaluate | None, notify: ProgressCallback, command: str | None
) -> CombinationRecord:
    folder, reason, holdout, test = run.folder / one.folder, None, None, None
    columns: list[ColumnRecord] = []
    try:
        if one.trained is not None and not _is_finished(folder):
            recipe = _started(one.trained, run.folder)
            train_recipe(recipe, folder, data_spec=sweep.data, notify=notify, command=command)
        holdout = holdout_scores(Run.open(folder)) if one.trained is not None and _is_finished(folder) else None
        if evaluate and one.columns:
            test, columns = _evaluate(sweep, one, folder, evaluate, notify)
        if evaluate:
            for study in sweep.studies:
                _study(sweep, one, folder, study, evaluate, notify)
        if one.trained is not None and _is_finished(folder):
            columns += _hours(sweep, one, folder)
    except (UsageError, RuntimeError, MemoryError) as error:
        if not isinstance(error, UsageError) and not is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        if Ranks.of_launch().rank == 0:
            run.log("failed", combination=one.name, reason=reason)
    published = sweep.printed(one)
    return CombinationRecord(
        name=one.name,
        values=dict(zip((axis.name for axis in sweep.axes), one.labels, strict=True)),
        state="failed" if reason else "done",
        reason=reason,
        holdout=holdout,
        test=test,
        published=PublishedScores(published.clean, published.robust) if published else None,
        columns=tuple(columns),
        folder="" if one.folder == one.name else one.folder,
        scale=_scale(sweep, one, test) if published else (),
        label=sweep.small.label(one.trained) if sweep.small and one.trained else "",
    )


def _started(recipe: Recipe, folder: Path) -> Recipe:
    """A recipe that starts from the model that the sweep trained first, if the recipe names it."""
    if recipe.model.start != START:
        return recipe
    return replace(recipe, model=replace(recipe.model, start=str(folder / START)))


def _scale(sweep: Sweep, one: Combination, test: TestScores | None) -> tuple[str, ...]:
    """Where a row differs from the run that the paper prints."""
    assert sweep.published is not None
    replaced = (f"the model {one.model}",) if one.model and sweep.recipe is not None else ()
    images = image_difference(sweep.published, test.n) if test else ()
    label = (sweep.small.label(one.trained),) if sweep.small and one.trained else ()
    return (*label, *sweep.scale, *replaced, *images)


def _evaluate(
    sweep: Sweep, one: Combination, folder: Path, evaluate: Evaluate, notify: ProgressCallback
) -> tuple[TestScores | None, list[ColumnRecord]]:
    """The scores of a row: of its first attack, and of every column."""
    published = sweep.printed(one)
    model = one.model or str(folder)
    calls = evaluations(one.columns, model, folder, sweep.images(one), sweep.threat, one.head, one.own_columns_of)
    records = {
        column.name: select(column, done, call.threat)
        for call, columns in calls.items()
        for done in [evaluate(call, notify)]
        for column in columns
    }
    shown = [
        (column, number, records[column.name].name)
        for column in one.columns
        if column.name in records and (number := measured(column, records[column.name])) is not None
    ]
    main = next((record for record in records.values() if record.robust), None)
    main = main or next(iter(records.values()), None)
    if main is not None and main.clean is not None and _CLEAN not in records:
        shown.insert(0, (Column(_CLEAN, _CLEAN), Measure.of(_CLEAN, main.clean), main.name))
    columns = [_column(column, measure, at, published) for column, measure, at in shown]
    if main is None:
        return None, columns
    return TestScores(main.name, main.n, main.clean, main.robust, [flag.code for flag in main.flags]), columns


def _study(
    sweep: Sweep, one: Combination, folder: Path, study: str, evaluate: Evaluate, notify: ProgressCallback
) -> None:
    """Carry out a study of a row's model, which leaves figures and a record, and no number of the table."""
    model = one.model or str(folder)
    head = f"-{one.head}" if one.head else ""
    evaluate(
        EvaluationTask(
            f"{model}#{one.head}" if one.head else model,
            folder / f"study{head}-{slug(study)}",
            sweep.images(one).usual,
            (),
            sweep.threat,
            study=study,
        ),
        notify,
    )


def _hours(sweep: Sweep, one: Combination, folder: Path) -> list[ColumnRecord]:
    """The GPU hours of the training, if it ran on GPUs and the paper reports them."""
    published, run = sweep.printed(one), Run.open(folder)
    if published is None or GPU_HOURS not in published.others or not ran_on_gpu(run):
        return []
    spent = [entry.values.get("device_hours") for entry in run.read_log("step")]
    known = [hours for hours in spent if isinstance(hours, float)]
    if not known:
        return []
    measure = Measure(GPU_HOURS, max(known), kind="hours", higher_is_better=False)
    return [_column(Column(GPU_HOURS, _CLEAN), measure, "", published)]


def ran_on_gpu(run: Run) -> bool:
    """Whether a run was computed on a GPU."""
    return not (run.manifest.device or "cpu").startswith("cpu")


def _column(column: Column, measure: Measure, evaluation: str, published: PublishedAccuracy | None) -> ColumnRecord:
    """A number beside the paper's; shares are compared in percent."""
    paper = published.of(column.printed_as) if published else None
    ours = None if measure.value is None else measure.value * (100 if measure.is_share else 1)
    difference = None if paper is None or ours is None else round(ours - paper, 4)
    return ColumnRecord(column.name, evaluation, measure, paper, difference)


def sweep_record(sweep: Sweep, rows: Sequence[CombinationRecord], left_out: Sequence[str] = ()) -> SweepRecord:
    """The table with these rows."""
    published = sweep.published
    return SweepRecord(
        recipe=sweep.recipe.name if sweep.recipe else "models",
        axes=[axis.name for axis in sweep.axes],
        suite=",".join(suite.name for suite in sweep.suites) or None,
        threat=str(sweep.threat) if sweep.threat and any(suite.needs_threat for suite in sweep.suites) else None,
        published=PublishedTable(published.source, published.attack, published.note) if published else None,
        best=best_combinations(rows),
        rows=rows,
        left_out=tuple(left_out),
    )


def _is_finished(folder: Path) -> bool:
    return (folder / "checkpoints" / "final.safetensors").exists()


def holdout_scores(run: Run) -> HoldoutScores | None:
    """The scores recorded in the selected checkpoint; None without a hold-out.

    It may be of an update that was undone after a non-finite loss: its weights stay the best.

    Raises:
        UsageError: If the checkpoint is missing.
    """
    best, entries = run.checkpoints / "best.safetensors", run.read_log("holdout", every=True)
    if not best.exists():
        if entries:
            raise UsageError(f"{best} is missing. Restore it, or delete {run.folder} to train again.")
        return None
    if selected := _SELECTED.fullmatch(models.read_tensors(best)[1].get("vitadel.selected", "")):
        scores: Mapping[str, float] = ast.literal_eval(selected["scores"])
        return HoldoutScores(int(selected["step"]), scores.get("clean"), scores.get("robust"))
    if not entries:
        return None
    kept = max((entry.values for entry in entries), key=_selected_by)
    return HoldoutScores(kept["step"], kept.get("clean"), kept.get("robust"))


def _selected_by(scores: Mapping[str, float]) -> float:
    """A score made of several, accuracy under attack, or clean accuracy: the first that there is."""
    return next((scores[key] for key in ("score", "robust", "clean") if scores.get(key) is not None), 0.0)


def best_combinations(rows: Sequence[CombinationRecord]) -> BestCombinations | None:
    """The combinations with the highest accuracy, measured on the hold-out if there is one, else on the test images."""
    for part, kind in _MEASURES:
        measured = {row.name: value for row in rows if (value := _measure(row, part, kind)) is not None}
        if measured:
            highest = max(measured.values())
            return BestCombinations(f"{part}.{kind}", [name for name, value in measured.items() if value == highest])
    return None


def _measure(row: CombinationRecord, part: str, kind: str) -> float | None:
    value: Accuracy | float | None = getattr(getattr(row, part), kind, None)
    return value.accuracy if isinstance(value, Accuracy) else value
