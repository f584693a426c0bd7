"""`vd.sweep`: every combination of some settings, trained and tabulated."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitadel import threats
from vitadel.api.analyze import analyze, as_study
from vitadel.api.arguments import progress_of
from vitadel.api.evaluate import DEFAULT_THREAT, evaluate
from vitadel.api.results import ShortTable
from vitadel.api.train import as_recipe
from vitadel.attacks import ATTACKS, Attack, NamedAttack
from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.core.files import slug
from vitadel.core.progress import ProgressCallback
from vitadel.core.settings import as_text
from vitadel.core.stats import Accuracy
from vitadel.evaluate import AttackSuite, Suite
from vitadel.evaluate.parsing import SINGLE_ATTACK, SuiteLike, as_suites
from vitadel.recipes import RECIPES, Recipe
from vitadel.recipes.columns import Column, Evaluation
from vitadel.recipes.published import PublishedSweep
from vitadel.recipes.published_tables import FORMER_NAMES, SWEEPS
from vitadel.recipes.scale import scale_differences
from vitadel.recipes.small import SmallScale, small_scale
from vitadel.recipes.sweep import AXES, Axis, Sweep, Value, run_sweep
from vitadel.runs.schema import SuiteRecord
from vitadel.runs.sweep_schema import ColumnRecord, CombinationRecord, SweepRecord
from vitadel.threats import Threat

# marks a difference that is not one of the method alone
_OTHER_SCALE = "≠"
_COLUMNS = {"holdout": "hold-out", "test": "test", "published": "published"}


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What `vd.sweep` returns: the run folder and its table, as written to `table.json`."""

    run: Path
    table: SweepRecord

    @property
    def failures(self) -> dict[str, str]:
        """The combinations that failed, and why."""
        return {row.name: row.reason or "" for row in self.table.rows if row.state == "failed"}

    @property
    def combinations(self) -> int:
        """How many combinations there are."""
        return len(self.table.rows)

    def to_dict(self) -> dict[str, object]:
        """The table as plain JSON values."""
        return {"run": str(self.run), **self.table.to_json()}

    def tables(self) -> list[ShortTable]:
        """One row per combination, the best by the measure that says most starred; then every number by itself."""
        table, best, compared = self.table, self.table.best, self._compared()
        labeled = any(row.label for row in table.rows)
        shown = [
            (part, kind)
            for part in _COLUMNS
            for kind in ("clean", "robust")
            if any(_score(row, part, kind) is not None for row in table.rows) and not (compared and part == "published")
        ]
        cells = [
            [
                *(row.values[axis] for axis in table.axes),
                *([row.label] if labeled else []),
                *(self._cell(row, part, kind, interval=compared is None) for part, kind in shown),
            ]
            for row in table.rows
        ]
        columns = [
            *(axis.rpartition(".")[2] for axis in table.axes),
            *(["scale"] if labeled else []),
            *(f"{_COLUMNS[part]} {kind} %" for part, kind in shown),
        ]
        notes = [f"* best {best.measure.replace('.', ' ').replace('holdout', 'hold-out')}"] if best else []
        if published := table.published:
            notes.append(f"published: {published.source}; robust under {published.attack}. {published.note}".strip())
        notes += [f"{name} failed: {reason}" for name, reason in self.failures.items()]
        return [ShortTable(table.recipe, columns, cells, notes), *([compared] if compared else [])]

    def _compared(self) -> ShortTable | None:
        """Every number on test images by itself, beside that of the paper; None if the first table shows them all."""
        table = self.table
        numbers = [(row, one) for row in table.rows for one in row.columns]
        if not table.published and all(len(row.columns) <= 2 for row in table.rows):
            return None
        rows = [
            [*(row.values[axis] for axis in table.axes), one.column, *_compared_cells(one, row.scale)]
            for row, one in numbers
        ]
        reasons = dict.fromkeys(reason for row in table.rows for reason in row.scale if reason != row.label)
        if any(row.label for row in table.rows):
            reasons = {"the column `scale`": None, **reasons}
        notes = list(table.left_out)
        if reasons:
            notes.append(f"{_OTHER_SCALE} not the paper's scale: {'; '.join(reasons)}")
        columns = [*(axis.rpartition(".")[2] for axis in table.axes), "number", "ours", "95% interval"]
        if table.published:
            columns += ["published", "difference"]
            return ShortTable(f"\nbeside {table.published.source}", columns, rows, notes) if rows else None
        return ShortTable("\non test images", columns, [row[: len(columns)] for row in rows], notes)

    def _cell(self, row: CombinationRecord, part: str, kind: str, *, interval: bool) -> str:
        score, best = _score(row, part, kind), self.table.best
        if score is None:
            return "-"
        if part == "published":
            return f"{score:.2f}"
        star = "*" if best and best.measure == f"{part}.{kind}" and row.name in best.rows else ""
        if isinstance(score, Accuracy):
            return f"{score.percent}{star}" + (f" ({100 * score.low:.1f}-{100 * score.high:.1f})" if interval else "")
        return f"{100 * score:.1f}{star}"

    def __repr__(self) -> str:
        return "\n".join(map(str, self.tables()))


def _compared_cells(one: ColumnRecord, scale: Sequence[str]) -> list[str]:
    """Our number, its interval, the paper's, and the difference with a mark if the scale is another one."""
    measure = one.measure
    factor, sign = (100, "%") if measure.is_share else (1, "")

    def written(value: float | None) -> str:
        return "-" if value is None else f"{factor * value:.1f}{sign}"

    known = measure.low is not None and measure.high is not None
    published = "-" if one.published is None else f"{one.published:.2f}{sign}"
    difference = "-" if one.difference is None else f"{one.difference:+.1f}{f' {_OTHER_SCALE}' if scale else ''}"
    interval = f"{written(measure.low)}-{written(measure.high)}" if known else "-"
    return [written(measure.value), interval, published, difference]


def _score(row: CombinationRecord, part: str, kind: str) -> Accuracy | float | None:
    score: Accuracy | float | None = getattr(getattr(row, part), kind, None)
    return score


def sweep(
    recipe: str | Recipe | Sweep | None,
    run: str | Path,
    *,
    models: Mapping[str, str] | Sequence[str] = (),
    axes: Mapping[str, Sequence[object]] | Sequence[str | Axis] = (),
    overrides: Mapping[str, object] | Sequence[str] = (),
    data: str | None = None,
    test_data: str | Sequence[str] = (),
    attack: "str | Attack | NamedAttack | Sequence[str | Attack | NamedAttack]" = (),
    suite: "SuiteLike | Sequence[SuiteLike] | None" = None,
    threat: str | Threat | None = None,
    study: str | Sequence[str] = (),
    small: bool = False,
    progress: bool | ProgressCallback | None = None,
    command: str | None = None,
) -> SweepResult:
    """Train every combination of some settings and tabulate the results; the same call resumes.

    Args:
        recipe: A name from `vitadel recipes`, a published table from `vitadel sweeps`, a `Recipe` or a `Sweep`; None to
            evaluate `models` alone.
        run: The run folder; every combination is a run folder in it.
        models: Existing models that are evaluated in place of trained ones: `{"label": "MODEL"}` or
            `["LABEL=MODEL", "MODEL"]`. With the label of a row of a table, it is that row; other rows are left out.
        axes: What is varied: `{"plan.epochs": [10, 20]}` or `["plan.epochs=10,20"]`.
        overrides: Settings to change in all combinations.
        data: A data set in place of the recipe's.
        test_data: A data set whose test images are evaluated, in place of those of `data`; in a list, also one of
            `imagenet-a:`, `imagenet-r:` and `cue-conflict:` each, for the suites of these images.
        attack: Attacks to evaluate every combination with on the test images, each by itself.
        suite: Suites to evaluate with; "none" for nothing. By default, if there is no attack either, a published table
            is evaluated as its paper does, and a recipe is not.
        threat: The threat model of attacks and suites; that of the table, or linf:8/255, by default.
        study: Studies of every row, as `analyze` takes them; by default those of a published figure.
        small: Train and evaluate at a scale that one GPU does in an hour: smaller models, CIFAR-10 (or the CIFAR or the
            digits that `data` names), fewer epochs, 1000 test images. `overrides` are applied last.
        progress: None shows bars on a terminal, False shows nothing; or a callback.
        command: What the manifest records as the command.

    Returns:
        The table, printed as text. Combinations that failed are in `failures`; the same call tries them again.

    Raises:
        UsageError: If a combination cannot be trained, before any training.

    Example:
        >>> sweep("digits-adversarial", "runs/decay", axes={"weight-decay": [0.05, 0.5]})
    """
    if isinstance(recipe, Sweep):
        chosen = recipe
        _refuse_beside_sweep(
            models=models,
            axes=axes,
            overrides=overrides,
            data=data,
            test_data=test_data,
            attack=attack,
            suite=suite,
            threat=threat,
            small=small,
        )
    else:
        chosen = as_sweep(
            recipe,
            axes,
            overrides,
            models=models,
            data=data,
            test_data=test_data,
            attack=attack,
            suite=suite,
            threat=threat,
            study=study,
            small=small,
        )

    def evaluated(one: Evaluation, notify: ProgressCallback) -> Sequence[SuiteRecord]:
        if one.study:
            attacks = as_study(one.study).needs_threat
            within = one.threat if attacks else None
            analyze(one.model, one.data, one.study, run=one.run, threat=within, progress=notify, command=command)
            return ()
        done = evaluate(
            one.model,
            one.data,
            list(one.suites),
            run=one.run,
            threat=one.threat or DEFAULT_THREAT,
            scaling=one.scaling,
            progress=notify,
            command=command,
        )
        return done.records

    with progress_of(progress) as notify:
        table = run_sweep(chosen, Path(run), evaluate=evaluated, notify=notify, command=command)
    return SweepResult(Path(run), table)


def _refuse_beside_sweep(**given: object) -> None:
    """Refuse arguments beside a `Sweep`, which holds what they say; it would silently ignore them."""
    if names := [name for name, value in given.items() if value is not None and value not in ((), [], {}, False)]:
        raise UsageError(
            f"a Sweep holds its own settings, got {', '.join(names)} as well. Leave them out, or give the recipe."
        )


def as_sweep(
    recipe: str | Recipe | None,
    axes: Mapping[str, Sequence[object]] | Sequence[str | Axis] = (),
    overrides: Mapping[str, object] | Sequence[str] = (),
    *,
    models: Mapping[str, str] | Sequence[str] = (),
    data: str | None = None,
    test_data: str | Sequence[str] = (),
    attack: "str | Attack | NamedAttack | Sequence[str | Attack | NamedAttack]" = (),
    suite: "SuiteLike | Sequence[SuiteLike] | None" = None,
    threat: str | Threat | None = None,
    study: str | Sequence[str] = (),
    small: bool = False,
) -> Sweep:
    """The sweep that these arguments of `sweep` describe; given axes replace those of a published table."""
    published = SWEEPS.get(FORMER_NAMES.get(recipe, recipe)) if isinstance(recipe, str) else None
    if published is None and isinstance(recipe, str) and recipe not in RECIPES:
        raise unknown_name_error("recipe", recipe, {**RECIPES, **SWEEPS})
    name = published.recipe if published else recipe
    base = as_recipe(name) if name else None
    given = _axes(axes, published.axes if published else ())
    varied = _replaced(published.axes, given) if published else given
    if models:
        varied = _with_models(varied, models, published)
    columns = _columns(attack, suite, published)
    own = _settings(overrides)
    at = _small(data, base, recipe) if small else None
    images = [test_data] if isinstance(test_data, str) else list(test_data)
    evaluated = [column for values in varied for value in values.values for column in value.columns] or columns
    attacks = any(column.suite.needs_threat for column in evaluated)
    default = DEFAULT_THREAT if attacks else None  # as `evaluate` has it
    radius = threat or (published.threat if published else None) or default
    settings = published.settings if published else ()
    return Sweep(
        base,
        tuple(varied),
        settings if at else (*settings, *own),
        at.data if at else data,
        at.columns(columns) if at else columns,
        threats.as_threat(radius) if radius and (evaluated or study or (published and published.studies)) else None,
        published,
        tuple(at.test_data(images) if at else images),
        _scale(published, base, own, None if small else data, threat, columns) if published else (),
        at,
        tuple(own) if at else (),
        _studies(study, published, given=bool(attack or suite)),
    )


def _studies(study: str | Sequence[str], published: PublishedSweep | None, *, given: bool) -> tuple[str, ...]:
    """The studies that are given, else those of the table where nothing else is."""
    chosen = [study] if isinstance(study, str) else list(study)
    for one in chosen:  # refused before anything is trained
        as_study(one)
    return tuple(chosen) or (published.studies if published and not given else ())


def _small(data: str | None, base: Recipe | None, name: "str | Recipe | None") -> SmallScale:
    if base is None:
        raise UsageError(f"--small trains small models, and {name or 'a sweep of models'} trains none. Leave it out.")
    return small_scale(data, base)


def _scale(
    published: PublishedSweep,
    base: Recipe | None,
    own: Sequence[str],
    data: str | None,
    threat: "str | Threat | None",
    columns: Sequence[Column],
) -> tuple[str, ...]:
    return scale_differences(
        published,
        published_data=base.data if base else "imagenet:",
        settings=own,
        data=data,
        threat=None if threat is None else str(threats.as_threat(threat)),
        columns=columns,
    )


def _with_models(
    varied: Sequence[Axis], models: Mapping[str, str] | Sequence[str], published: PublishedSweep | None
) -> list[Axis]:
    """Existing models in place of what is trained: rows of a table by their labels, others as they are called."""
    pairs = list(models.items()) if isinstance(models, Mapping) else [_labeled(one) for one in models]
    trained = [axis for axis in varied if axis.makes_models]
    if len(trained) > 1:
        names = " and ".join(axis.name for axis in trained)
        raise UsageError(f"--model stands for the values of one axis, got {names}. Leave one of the axes out.")
    evaluated = [axis for axis in varied if not axis.makes_models]
    values = {value.label: value for axis in trained for value in axis.values}
    made = [
        dataclasses.replace(values.get(label, Value(label)), settings=(), change=None, recipe=None, model=model)
        for label, model in pairs
    ]
    return [Axis(trained[0].name if trained else "model", tuple(made)), *evaluated]


def _labeled(text: str) -> tuple[str, str]:
    """`LABEL=MODEL`, or a model that is called as it is written."""
    label, equals, model = text.partition("=")
    if equals and not (label and model):
        raise UsageError(f"cannot read --model {text!r}. Write MODEL or LABEL=MODEL.")
    return (label, model) if equals else (text, text)


def _columns(
    attack: "str | Attack | NamedAttack | Sequence[str | Attack | NamedAttack]",
    suite: "SuiteLike | Sequence[SuiteLike] | None",
    published: PublishedSweep | None,
) -> tuple[Column, ...]:
    """What rows are evaluated with: what is given, or else what the paper of a table evaluates with."""
    attacks: Sequence[str | Attack | NamedAttack] = (
        [attack] if isinstance(attack, str | Attack | NamedAttack) else list(attack)
    )
    given: list[SuiteLike] = [] if suite is None else list(suite) if isinstance(suite, list | tuple) else [suite]  # type: ignore[list-item]
    if not attacks and not given:
        return published.columns if published else ()
    if given in (["none"], ["None"]):
        given = []
    columns = (*(_attack_column(one) for one in attacks), *map(_suite_column, as_suites(given)))
    return _as_printed(columns, published) if published else columns


def _as_printed(columns: Sequence[Column], published: PublishedSweep) -> tuple[Column, ...]:
    """Columns with what they are compared with: what has the same evaluation, else the first attack with `robust`."""
    same = {column.suite: column.name for column in published.columns}
    found = [dataclasses.replace(one, published=same.get(one.suite, "")) for one in columns]
    if all(one.published != "robust" for one in found):
        first = next(
            (place for place, one in enumerate(found) if isinstance(one.suite, AttackSuite) and one.suite.attacks), None
        )
        if first is not None:
            found[first] = dataclasses.replace(found[first], published="robust")
    return tuple(found)


def _attack_column(attack: "str | Attack | NamedAttack") -> Column:
    """The column of one attack, called as it is written."""
    if isinstance(attack, str) and attack.partition(":")[0] not in ATTACKS:
        raise unknown_name_error("attack", attack.partition(":")[0], ATTACKS)
    if isinstance(attack, str):
        return Column(attack, attack)
    (made,) = as_suites([attack])
    return _suite_column(made)


def _suite_column(suite: Suite) -> Column:
    """The column of a suite; that of one attack is called as the attack is written."""
    if isinstance(suite, AttackSuite) and suite.name == SINGLE_ATTACK:
        return Column(suite.about, dataclasses.replace(suite, name=slug(suite.about)))
    return Column(suite.name, suite)


def _axes(axes: Mapping[str, Sequence[object]] | Sequence[str | Axis], known: Sequence[Axis]) -> list[Axis]:
    """The given axes; `known` are those of a table, some of which have names and labels of their own."""
    if isinstance(axes, Mapping):
        pairs = [(name, [_text(name, value) for value in values]) for name, values in axes.items()]
        return [_known_axis(name, labels, known) or Axis.of(name, labels) for name, labels in pairs]
    return [_read_axis(axis, known) if isinstance(axis, str) else axis for axis in axes]


def _read_axis(text: str, known: Sequence[Axis]) -> Axis:
    name, _, listed = text.partition("=")
    return _known_axis(name, listed.split(","), known) or Axis.read(text)


def _known_axis(name: str, labels: Sequence[str], known: Sequence[Axis]) -> Axis | None:
    """Rows of a table that its axis alone can name; None for an axis whose values stand for themselves.

    A label may have commas itself, so that several pieces are one.
    """
    axis = next((one for one in known if one.name == name and name not in AXES and "." not in name), None)
    if axis is None:
        return None
    values, chosen, rest = {value.label: value for value in axis.values}, [], list(labels)
    while rest:
        lengths = range(len(rest), 0, -1)
        length = next((one for one in lengths if ",".join(rest[:one]) in values), None)
        if length is None:
            raise unknown_name_error(f"value of the axis {name!r}", rest[0], values)
        chosen.append(values[",".join(rest[:length])])
        rest = rest[length:]
    return Axis(name, tuple(chosen))


def _settings(overrides: Mapping[str, object] | Sequence[str]) -> list[str]:
    if isinstance(overrides, Mapping):
        return [f"{path}={_text(path, value)}" for path, value in overrides.items()]
    return list(overrides)


def _text(path: str, value: object) -> str:
    text = as_text(value, ",")
    if text is None:
        raise UsageError(f'a sweep records its settings as text, got {path}={value!r}. Write it as text: "linf:4/255".')
    return text


def _replaced(known: Sequence[Axis], given: Sequence[Axis]) -> list[Axis]:
    """The given axes in place of the table's; a value that the table has keeps everything the table means by it."""
    names = [axis.name for axis in given]
    meant = {(axis.name, value.label): value for axis in known for value in axis.values}
    chosen = (
        dataclasses.replace(axis, values=tuple(meant.get((axis.name, one.label), one) for one in axis.values))
        for axis in given
    )
    return [*(axis for axis in known if axis.name not in names), *chosen]
