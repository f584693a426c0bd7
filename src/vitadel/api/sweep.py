"""`vd.sweep`: train every combination of some settings and tabulate the results."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitadel import threats
from vitadel.api.analyze import analyze, as_study
from vitadel.api.arguments import check_types, progress_of
from vitadel.api.evaluate import DEFAULT_THREAT, evaluate
from vitadel.api.sweep_result import SweepResult
from vitadel.api.train import as_recipe
from vitadel.attacks import ATTACKS, Attack, NamedAttack
from vitadel.core.errors import UsageError, spelled, unknown_name_error
from vitadel.core.files import slug
from vitadel.core.progress import ProgressCallback
from vitadel.core.settings import as_text
from vitadel.evaluate import Suite, attacks_of
from vitadel.evaluate.parsing import SINGLE_ATTACK, SuiteLike, as_suites, with_name
from vitadel.models import is_path
from vitadel.recipes import FORMER_RECIPE_NAMES, RECIPES, Recipe
from vitadel.recipes.columns import Column, EvaluationTask
from vitadel.recipes.published import PublishedSweep
from vitadel.recipes.published_tables import FORMER_NAMES, SWEEPS
from vitadel.recipes.scale import scale_differences
from vitadel.recipes.small import SmallScale, small_scale
from vitadel.recipes.sweep import AXES, Axis, Sweep, Value, run_sweep
from vitadel.runs.schema import SuiteRecord
from vitadel.threats import Threat


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
    """Train every combination of some settings and tabulate the results. Repeat the call to resume.

    Args:
        recipe: A name from `vitadel recipes`, a published table from `vitadel sweeps`, a `Recipe` or a `Sweep`; None to
            evaluate only `models`.
        run: The run folder; every combination is a run folder in it.
        models: Existing models to evaluate in place of trained ones: `{"label": "MODEL"}` or `["LABEL=MODEL",
            "MODEL"]`, where a path that exists may hold an = itself. In a published table, the label assigns the model
            to the row of this name; rows without a model are left out.
        axes: The settings to vary, with their values: `{"plan.epochs": [10, 20]}` or `["plan.epochs=10,20"]`.
        overrides: Settings to change in all combinations.
        data: A data set in place of the recipe's.
        test_data: A data set whose test images are used in place of those of `data`; or a list, which may also have one
            data set each of `imagenet-a:`, `imagenet-r:` and `cue-conflict:` for the suites on these images.
        attack: Attacks on the test images for every combination, each run independently of the others.
        suite: Suites to evaluate with; "none" for no evaluation. If neither `suite` nor `attack` is given, a published
            table is evaluated as in its paper, and a recipe is not evaluated.
        threat: The threat model of attacks and suites; by default that of the table, or linf:8/255.
        study: Studies to run on every row, as `analyze` takes them; by default those of the published figure.
        small: Train and evaluate at a reduced scale, about an hour on one GPU: smaller models, CIFAR-10 (or the CIFAR
            or digits data that `data` names), fewer epochs, 1000 test images. `overrides` are applied last.
        progress: None shows bars on a terminal, False shows nothing; or a callback.
        command: What the manifest records as the command.

    Returns:
        The table, as text when printed. `failures` has the combinations that failed; repeat the call to try them again.

    Raises:
        UsageError: If a combination cannot be trained, before any training.

    Example:
        >>> sweep("digits-adversarial", "runs/decay", axes={"weight-decay": [0.05, 0.5]})
    """
    if threat is not None:
        threat = threats.as_threat(threat)
    check_types(sweep, locals())
    given: dict[str, Any] = {
        "models": models,
        "axes": axes,
        "overrides": overrides,
        "data": data,
        "test_data": test_data,
        "attack": attack,
        "suite": suite,
        "threat": threat,
        "study": study,
        "small": small,
    }
    if isinstance(recipe, Sweep):
        _check_beside_sweep(given)
        chosen = recipe
    else:
        chosen = as_sweep(recipe, **given)
    with progress_of(progress) as notify:
        table = run_sweep(
            chosen,
            Path(run),
            evaluate=lambda one, notify: _run_evaluation(one, notify, command),
            notify=notify,
            command=command,
        )
    return SweepResult(Path(run), table)


def _run_evaluation(one: EvaluationTask, notify: ProgressCallback, command: str | None) -> Sequence[SuiteRecord]:
    """Evaluate a row of a table, or run its study, which has figures and no record."""
    if one.study:
        threat = one.threat if as_study(one.study).needs_threat else None
        analyze(one.model, one.data, one.study, run=one.run, threat=threat, progress=notify, command=command)
        return ()
    return evaluate(
        one.model,
        one.data,
        list(one.suites),
        run=one.run,
        threat=one.threat or DEFAULT_THREAT,
        scaling=one.scaling,
        progress=notify,
        command=command,
    ).records


def _check_beside_sweep(given: Mapping[str, object]) -> None:
    """Refuse arguments beside a `Sweep`: it holds these settings itself, so they would be ignored silently."""
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
    if published is None and isinstance(recipe, str) and FORMER_RECIPE_NAMES.get(recipe, recipe) not in RECIPES:
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
    """The given studies; by default those of the table, unless attacks or suites are given."""
    chosen = [study] if isinstance(study, str) else list(study)
    for one in chosen:  # an unknown name fails before anything is trained
        as_study(one)
    return tuple(chosen) or (published.studies if published and not given else ())


def _small(data: str | None, base: Recipe | None, name: "str | Recipe | None") -> SmallScale:
    if base is None:
        raise UsageError(
            f"{spelled('small')} trains small models, and {name or 'a sweep of models'} trains none. Leave it out."
        )
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
    """The axes with existing models in place of trained ones; a label of the table selects its row."""
    pairs = list(models.items()) if isinstance(models, Mapping) else [_labeled(one) for one in models]
    trained = [axis for axis in varied if axis.makes_models]
    if len(trained) > 1:
        names = " and ".join(axis.name for axis in trained)
        raise UsageError(f"models (--model) stand for the values of one axis, got {names}. Leave one of the axes out.")
    evaluated = [axis for axis in varied if not axis.makes_models]
    values = {value.label: value for axis in trained for value in axis.values}
    made = [
        dataclasses.replace(values.get(label, Value(label)), settings=(), change=None, recipe=None, model=model)
        for label, model in pairs
    ]
    return [Axis(trained[0].name if trained else "model", tuple(made)), *evaluated]


def _labeled(text: str) -> tuple[str, str]:
    """Label and model of `LABEL=MODEL`; a model without a label is its own label, and so is a path with an = in it."""
    label, equals, model = text.partition("=")
    if not equals or is_path(text):
        return text, text
    if not (label and model):
        raise UsageError(f"cannot read the model {text!r}. Write MODEL or LABEL=MODEL.")
    return label, model


def _columns(
    attack: "str | Attack | NamedAttack | Sequence[str | Attack | NamedAttack]",
    suite: "SuiteLike | Sequence[SuiteLike] | None",
    published: PublishedSweep | None,
) -> tuple[Column, ...]:
    """The evaluations of a row: the given ones, by default those of the paper."""
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
    """Match columns with published ones by evaluation; if none is `robust`, the first attack is."""
    same = {column.suite: column.name for column in published.columns}
    found = [dataclasses.replace(one, published=same.get(one.suite, "")) for one in columns]
    if all(one.published != "robust" for one in found):
        first = next(
            (number for number, one in enumerate(found) if attacks_of(one.suite)),
            None,
        )
        if first is not None:
            found[first] = dataclasses.replace(found[first], published="robust")
    return tuple(found)


def _attack_column(attack: "str | Attack | NamedAttack") -> Column:
    """The column of one attack, named by the text of the attack."""
    if isinstance(attack, str) and attack.partition(":")[0] not in ATTACKS:
        raise unknown_name_error("attack", attack.partition(":")[0], ATTACKS)
    if isinstance(attack, str):
        return Column(attack, attack)
    (made,) = as_suites([attack])
    return _suite_column(made)


def _suite_column(suite: Suite) -> Column:
    """The column of a suite; a suite of one attack is named by the text of the attack."""
    if suite.name == SINGLE_ATTACK and attacks_of(suite):
        return Column(suite.about, with_name(suite, slug(suite.about)))
    return Column(suite.name, suite)


def _axes(axes: Mapping[str, Sequence[object]] | Sequence[str | Axis], known: Sequence[Axis]) -> list[Axis]:
    """The given axes; some axes of a table, `known`, have names and labels of their own."""
    if isinstance(axes, Mapping):
        pairs = [(name, [_text(name, value) for value in values]) for name, values in axes.items()]
        return [_known_axis(name, labels, known) or Axis.of(name, labels) for name, labels in pairs]
    return [_read_axis(axis, known) if isinstance(axis, str) else axis for axis in axes]


def _read_axis(text: str, known: Sequence[Axis]) -> Axis:
    name, _, listed = text.partition("=")
    return _known_axis(name, listed.split(","), known) or Axis.read(text)


def _known_axis(name: str, labels: Sequence[str], known: Sequence[Axis]) -> Axis | None:
    """The axis of a table with the values of these labels; None if the values are not labels but settings.

    A label may contain commas, so several pieces may belong to one label.
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
    """The table's axes, replaced by given ones of the same name; a value of the table keeps its settings."""
    names = [axis.name for axis in given]
    meant = {(axis.name, value.label): value for axis in known for value in axis.values}
    chosen = (
        dataclasses.replace(axis, values=tuple(meant.get((axis.name, one.label), one) for one in axis.values))
        for axis in given
    )
    return [*(axis for axis in known if axis.name not in names), *chosen]
