"""`vitadel evaluate`: suites on a model, one row per image: cascades of attacks, and surveys of all else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitadel.cli import show
from vitadel.cli.arguments import (
    BatchOption,
    ClassesOption,
    CompileOption,
    DataOption,
    ImageSizeOption,
    JsonOption,
    KeepOption,
    MeanOption,
    ModelArgument,
    ModelOptions,
    PatchSizeOption,
    PrecisionOption,
    PreprocessOption,
    RunOption,
    ScalingOption,
    SeedOption,
    SkipOption,
    SplitOption,
    StdOption,
    ThreatOption,
    open_model_and_data,
    read_engine,
    read_scaling,
    say_what_is_assumed,
)
from vitadel.cli.settings import with_settings, without_bulk
from vitadel.core.errors import UsageError, unknown

if TYPE_CHECKING:
    from vitadel.attacks import Engine, Scaling
    from vitadel.core.distributed import Ranks
    from vitadel.data import DataSet
    from vitadel.evaluate import Suite, Survey
    from vitadel.models import Model
    from vitadel.threats import Threat

# kinds of measures that are shares, shown in percent
_SHARES = ("accuracy", "error", "bias", "share")
_Keywords = dict[str, Any]
# data whose labels are not the model's classes, and the suites that know what to make of them
_OWN_LABELS = {"cue-conflict": "shape-bias"}


def evaluate(
    model: ModelArgument,
    data: DataOption,
    run: RunOption,
    suite: Annotated[
        str, typer.Option("--suite", help="NAME[:key=value,...] from `vitadel suites`, several with commas")
    ] = "quick",
    threat: ThreatOption = "linf:8/255",
    preprocess: PreprocessOption = None,
    classes: ClassesOption = None,
    image_size: ImageSizeOption = None,
    patch_size: PatchSizeOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    split: SplitOption = "test",
    seed: SeedOption = 0,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    compile: CompileOption = False,
    keep_images: KeepOption = False,
    scaling: ScalingOption = None,
    skip_unreadable: SkipOption = False,
    json: JsonOption = False,
) -> None:
    """Evaluate a model; an image that fell is not attacked again, finished rows are never redone."""
    chosen = read_suites(suite)
    if keep_images or scaling is not None:
        _refuse_without_cascade(chosen, "--keep-images" if keep_images else "--scaling")
    judge(
        "evaluate",
        chosen,
        Subject(
            model, data, preprocess, ModelOptions(classes, image_size, patch_size, mean, std), split, skip_unreadable
        ),
        threat=threat,
        run=run,
        seed=seed,
        engine=read_engine(batch, precision, compile),
        keep_images=keep_images,
        scaling=read_scaling(scaling),
        json=json,
    )


@dataclass(frozen=True, slots=True)
class Subject:
    """Which model is judged on which images, as the command line says it."""

    model: str
    data: str
    preprocess: str | None
    options: ModelOptions
    split: str
    skip: bool = False


def judge(
    kind: str,
    suites: "Sequence[Suite | Survey]",
    subject: Subject,
    *,
    threat: str,
    run: Path,
    seed: int,
    engine: "Engine",
    keep_images: bool,
    scaling: "Scaling | None",
    json: bool,
) -> None:
    """Carry out suites into a run folder and show what came of it."""
    from vitadel import threats as threats
    from vitadel.core.device import device_name
    from vitadel.core.distributed import Ranks
    from vitadel.evaluate import Suite, survey
    from vitadel.evaluate import evaluate as carry_out
    from vitadel.models import identity
    from vitadel.runs import Run

    ranks = Ranks.of_launch()
    radius = threats.read(threat)
    model, data, name = open_model_and_data(
        subject.model, subject.data, subject.preprocess, subject.options, skip=subject.skip
    )
    if subject.skip:
        data = _readable(data, subject.split, ranks)
    _refuse(suites, data, subject.split, model, radius, scaling)
    named = _named_files(suites, data, subject.split)
    assumed = subject.options.assumed(model, subject.model)
    parts = {
        "model": identity(model, name),
        "data": data.describe(),
        "split": subject.split,
        "suite": suites,
        "threat": radius,
        "seed": seed,
        **({} if scaling is None else {"scaling": scaling}),
        **({"keep_images": True} if keep_images else {}),  # begun without, a run could keep only the rest
        **({"files": named} if named else {}),
        **({"assumed": assumed} if assumed else {}),
        **({"skipped": data.split(subject.split).skipped} if subject.skip else {}),
    }
    claimed = Run.claim(run, kind, parts, device=device_name(), ranks=ranks)
    if not json:
        say_what_is_assumed(model, subject.model, subject.options)
    summaries = []
    with show.progress(quiet=json) as notify:
        both: _Keywords = {"threat": radius, "seed": seed, "split": subject.split, "ranks": ranks, "notify": notify}
        for suite in suites:
            if isinstance(suite, Suite):
                cascades: _Keywords = {"engine": engine, "keep_images": keep_images, "scaling": scaling}
                summaries += carry_out(model, data, suite, claimed, **both, **cascades)
            else:
                summaries.append(survey(model, data, suite, claimed, **both, batch=engine.rows))
    if json:
        show.as_json({"run": str(run), "evaluations": [without_bulk(summary) for summary in summaries]})
    else:
        _show(name, summaries)


def _show(name: str, summaries: Sequence[Mapping[str, object]]) -> None:
    """Cascades in one table, then the surveys one by one."""
    surveys = [summary for summary in summaries if "measures" in summary]
    if len(surveys) < len(summaries):
        _show_summaries(name, [summary for summary in summaries if "measures" not in summary])
    for summary in surveys:
        _show_survey(name, summary)


def read_suites(text: str) -> "list[Suite | Survey]":
    """What `clean,corruptions:severities=1+3,jpeg=85` stands for: commas stand between suites and between settings."""
    from vitadel.evaluate import SUITES, SURVEYS

    compile_units: list[str] = []
    for piece in text.split(","):
        head, equals, _ = piece.partition("=")
        if equals and ":" not in head and compile_units:  # a setting of the suite before it
            compile_units[-1] += ("," if ":" in compile_units[-1] else ":") + piece
        else:
            compile_units.append(piece)
    chosen: list[Suite | Survey] = []
    for piece in compile_units:
        name, colon, rest = piece.partition(":")
        if name in SURVEYS:
            chosen.append(with_settings(SURVEYS[name](), name, rest))
        elif name not in SUITES:
            raise unknown("suite", name, [*SUITES, *SURVEYS])
        elif colon:
            raise UsageError(f"the suite {name} is a cascade and has no settings, got {piece!r}. Write {name}.")
        else:
            chosen.append(SUITES[name])
    names = [suite.name for suite in chosen]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"the suite {twice} is named twice, and a run has room for one. Give each a --run of its own.")
    return chosen


def _refuse_without_cascade(suites: "Sequence[Suite | Survey]", flag: str) -> None:
    from vitadel.evaluate import Suite

    if not any(isinstance(suite, Suite) for suite in suites):
        names = ", ".join(suite.name for suite in suites)
        raise UsageError(f"{flag} is about cascades of attacks, and there is none among: {names}. Leave it out.")


def _refuse(
    suites: "Sequence[Suite | Survey]",
    data: "DataSet",
    split: str,
    model: "Model",
    threat: "Threat",
    scaling: "Scaling | None",
) -> None:
    """Before anything is written: suites, data, threat and model that do not go together."""
    from vitadel.evaluate import Suite, refuse_suite, refuse_survey, refuse_unwritable_names

    refuse_unwritable_names(data, split)
    own = _OWN_LABELS.get(data.spec.partition(":")[0])
    for suite in suites:
        if own is not None and suite.name != own:
            raise UsageError(
                f"the labels of {data.spec} are not the classes of a model, so {suite.name} can say nothing of them. "
                f"Write --suite {own}."
            )
        if isinstance(suite, Suite):
            refuse_suite(model, data, suite, threat=threat, split=split, scaling=scaling)
        else:
            refuse_survey(model, data, suite, threat=threat, split=split)


def _named_files(suites: "Sequence[Suite | Survey]", data: "DataSet", split: str) -> dict[str, Mapping[str, str]]:
    """What is in the files that suites name: a run that goes on with another file by the same name is another run."""
    from vitadel.evaluate import Referring

    found = {suite.name: suite.named_files(data, split) for suite in suites if isinstance(suite, Referring)}
    return {name: hashes for name, hashes in found.items() if hashes}


def _readable(data: "DataSet", split: str, ranks: "Ranks") -> "DataSet":
    """The data without what cannot be read; one process looks, for all."""
    from vitadel.data import unreadable, without

    return without(data, split, ranks.agree(lambda: [fault.id for fault in unreadable(data.split(split))]))


def _show_survey(title: str, summary: Mapping[str, object]) -> None:
    measures, flags = summary["measures"], summary["flags"]
    assert isinstance(measures, list)
    assert isinstance(flags, list)
    rows = [[str(one["name"]), _value(one), _interval(one), str(one["n"] or "-")] for one in measures]
    show.table(f"{summary['title']}: {title}", ["measure", "value", "95% interval", "images"], rows)
    show.line(str(summary["sentence"]))
    for flag in flags:
        show.line(f"{summary['name']}: {flag['sentence']} ({flag['code']})")


def _value(measure: Mapping[str, object]) -> str:
    return _number(measure["value"], str(measure["kind"]))


def _interval(measure: Mapping[str, object]) -> str:
    if measure["low"] is None or measure["high"] is None:
        return "-"
    kind = str(measure["kind"])
    return f"{_number(measure['low'], kind)}-{_number(measure['high'], kind)}"


def _number(value: object, kind: str) -> str:
    return f"{float(str(value)):.1%}" if kind in _SHARES else f"{float(str(value)):.1f}"


def _show_summaries(title: str, summaries: Sequence[Mapping[str, object]]) -> None:
    rows = []
    for summary in summaries:
        threat, flags = summary["threat"], summary["flags"]
        assert isinstance(flags, list)
        text = str(threat["text"]) if isinstance(threat, dict) else "-"
        rows.append([text, str(summary["n"]), _percent(summary["clean"]), _percent(summary["robust"]), str(len(flags))])
    columns = ["threat", "images", "clean", "robust", "flags"]
    if any("scaling" in summary for summary in summaries):
        rows = [[_scored_on(summary), *row] for summary, row in zip(summaries, rows, strict=True)]
        columns.insert(0, "scored on")
    show.table(title, columns, rows)
    for summary in summaries:
        flags, scaling = summary["flags"], summary.get("scaling")
        assert isinstance(flags, list)
        if isinstance(scaling, dict):
            show.line(f"{summary['name']}: {_factors(scaling['factors'])}; `rescaled` is the paper's protocol")
        for flag in flags:
            show.line(f"{summary['name']}: {flag['sentence']} ({flag['code']})")


def _scored_on(summary: Mapping[str, object]) -> str:
    from vitadel.evaluate import PAPER_PROTOCOL

    return "rescaled" if str(summary["suite"]).endswith(PAPER_PROTOCOL) else "model"


def _factors(factors: Mapping[str, object]) -> str:
    each = factors["attentions"]
    assert isinstance(each, list)
    probe = "" if factors["felled"] is None else f"; a short attack felled {factors['felled']} of {factors['of']}"
    return f"{len(each)} attentions scaled by {min(each):.2g} to {max(each):.2g}{probe}"


def _percent(value: object) -> str:
    if not isinstance(value, dict):
        return "-"
    return f"{value['accuracy']:.1%} ({value['low']:.1%}-{value['high']:.1%})"
